.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 10, 59, 'a', 281475094151175, 0);
INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES
    (20, 59, 'a', 281475094151175, 0);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (30, 50, 60, 'a', 281475094151175, 0);
