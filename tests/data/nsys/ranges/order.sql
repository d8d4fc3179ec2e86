.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (10, 20, 59, 'inner', 281475094151175, 0),
    (10, 50, 59, 'outer', 281475094151175, 0),
    (0, 5, 59, 'first', 281475094151175, 0);
