.read ../empty-2024.2.sql
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, syncType);
INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, syncType) VALUES
    (0, 10, 3),
    (0, 20, 3),
    (0, 5, 4);
