.read ../empty-2024.2.sql
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES
    (-9, 75, 'NCCL', 281475094151175, 1);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 8, 59, 'ncclAllReduce', 281475094151175, 1),
    (10, 11, 59, 'ncclGroupEnd', 281475094151175, 2),
    (20, 21, 59, 'ncclMine', 281475094151175, 0);
