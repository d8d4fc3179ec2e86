.read ../empty-2024.2.sql
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, streamId, correlationId, bytes);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET (start, end, bytes) VALUES
    (1, 2, 8);
