.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 100, 59, 'perfctl:step:0', 281475094151175, 0),
    (10, 60, 59, 'fc1:forward', 281475094151175, 0);
