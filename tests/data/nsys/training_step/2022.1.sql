.read ../empty-2022.1.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaLaunchKernel'),
    (2, 'gemm(int)'),
    (3, 'gemm');
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES
    (-5, 75, 'cudnn', 281475094151175, 3);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 1000, 59, 'perfctl:step:4', 281475094151175, 0),
    (10, 400, 59, 'perfctl:phase:forward', 281475094151175, 0),
    (20, 100, 59, 'conv1:forward', 281475094151175, 0),
    (30, 90, 59, 'cudnnConvolutionForward', 281475094151175, 3),
    (450, 900, 59, 'perfctl:phase:backward', 281475094151175, 0),
    (500, 600, 59, 'conv1:backward', 281475094151176, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId, sharedMemoryLimitConfig);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory) VALUES
    (140, 150, 0, 1, 7, 1, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (195, 205, 0, 1, 7, 2, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (300, 310, 0, 1, 7, 3, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (610, 620, 0, 1, 7, 4, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (800, 810, 0, 1, 7, 5, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (40, 42, 281475094151175, 1, 1),
    (95, 97, 281475094151175, 2, 1),
    (200, 202, 281475094151175, 3, 1),
    (510, 512, 281475094151176, 4, 1),
    (700, 702, 281475094151176, 5, 1);
