.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES
    (0, 75, 'cuDNN', 281475094151175, 3),
    (0, 75, '', 281475094151175, 4);
INSERT INTO NVTX_EVENTS (start, eventType, globalTid, domainId) VALUES
    (0, 75, 281475094151175, 5);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES
    (0, 1, 59, 'call', 281475094151175);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (1, 2, 59, 'call', 281475094151175, 0),
    (2, 3, 59, 'call', 281475094151175, 3),
    (3, 4, 59, 'call', 281475094151175, 4),
    (4, 5, 59, 'call', 281475094151175, 5),
    (5, 6, 59, 'call', 281475094151175, 6),
    (9, 10, 59, 'call', 281475110928391, 3);
