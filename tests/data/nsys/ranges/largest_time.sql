.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 9223372036854775806, 59, 'long', 281475094151175, 0);
INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES
    (0, 59, 'open', 281475094151175, 0);
