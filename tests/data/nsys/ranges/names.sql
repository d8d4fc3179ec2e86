.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'fc1:forward'),
    (2, 'other');
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId) VALUES
    (0, 100, 59, 281475094151175, 1, 0);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId, domainId) VALUES
    (10, 20, 59, 'fc2:forward', 281475094151175, 2, 0);
INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, domainId) VALUES
    (30, 40, 59, 281475094151175, 0);
INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId) VALUES
    (50, 60, 59, 281475094151175, 999, 0);
