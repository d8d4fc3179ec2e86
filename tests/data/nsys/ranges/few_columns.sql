.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, text);
INSERT INTO NVTX_EVENTS (start, end, eventType, text) VALUES
    (1, 5, 59, 'fc:forward');
INSERT INTO NVTX_EVENTS (start, eventType, text) VALUES
    (2, 34, 'here');
