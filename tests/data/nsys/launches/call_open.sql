.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'gemm(int)'),
    (2, 'gemm');
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 10, 59, 'a:forward', 281475094151175, 0),
    (5, 9, 59, 'b:forward', 281475094151175, 0),
    (11, 20, 59, 'c:forward', 281475094151175, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, globalTid, correlationId) VALUES
    (10, 281475094151175, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, demangledName, shortName, mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId, sharedMemoryLimitConfig);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory) VALUES
    (1000, 1010, 0, 1, 7, 1, 281475094151168, 1, 2, 40, 2, 3, 4, 32, 2, 1, 16, 0);
