.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaLaunchKernel'),
    (2, 'gemm(int)'),
    (3, 'gemm');
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 50, 59, 'first', 281475094151175, 0),
    (30, 90, 59, 'second', 281475094151175, 1);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, endGlobalTid, domainId) VALUES
    (0, 500, 60, 'any thread', 281475094151175, 281475094151176, 0);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (35, 500, 60, 'one thread', 281475094151175, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, demangledName, shortName, mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId, sharedMemoryLimitConfig);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory) VALUES
    (110, 120, 0, 1, 7, 1, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (140, 150, 0, 1, 7, 2, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (160, 170, 0, 1, 7, 3, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (141, 151, 0, 1, 7, 4, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (10, 12, 281475094151175, 1, 1),
    (40, 42, 281475094151175, 2, 1),
    (60, 62, 281475094151175, 3, 1),
    (41, 43, 281475094151176, 4, 1);
