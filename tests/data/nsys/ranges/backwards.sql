.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (10, 4, 59, 'backwards', 281475094151175, 0),
    (20, 20, 59, 'moment', 281475094151175, 0),
    (-30, -10, 59, 'early', 281475094151175, 0);
