.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 100, 59, 'perfctl:step:3', 281475094151175, 0);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, domainId) VALUES
    (10, 90, 59, 'lost', 0),
    (20, 30, 59, 'lost in lost', 0);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (40, 50, 59, 'fc:forward', 281475094151175, 0);
