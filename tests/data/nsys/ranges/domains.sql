.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cuDNN'),
    (2, 'cuBLAS');
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, eventType, globalTid, textId, domainId) VALUES
    (0, 75, 281475094151175, 1, 1);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (10, 20, 59, 'call', 281475094151175, 1);
INSERT INTO NVTX_EVENTS (start, eventType, globalTid, textId, domainId) VALUES
    (0, 75, 281475127705607, 2, 1);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (10, 20, 59, 'call', 281475127705609, 1),
    (30, 40, 59, 'call', 281475094151175, 8);
