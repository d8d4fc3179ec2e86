.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaLaunchKernel'),
    (2, 'python'),
    (3, 'autograd'),
    (4, 'sshd');
INSERT INTO ThreadNames (nameId, globalTid) VALUES
    (2, 281475094151175),
    (3, 281475094151176),
    (4, 281475027042307);
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 10, 59, 'a', 281475094151175, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (20, 25, 281475094151176, 1, 1);
