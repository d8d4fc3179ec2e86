.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaLaunchKernel'),
    (2, 'gemm(int)'),
    (3, 'gemm'),
    (9001, 'cudaMemsetAsync_v3020');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, demangledName, shortName, mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId, sharedMemoryLimitConfig);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory) VALUES
    (1100, 1110, 0, 1, 7, 1, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (2100, 2110, 0, 1, 7, 2, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (3100, 3110, 0, 1, 7, 3, 281475094151168, 2, 3, 40, 2, 3, 4, 32, 2, 1, 16, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (1000, 1002, 281475094151175, 1, 1),
    (2000, 2002, 281475094151175, 2, 1),
    (3000, 3002, 281475094151175, 3, 1),
    (4000, 4002, 281475094151175, 4, 1),
    (5000, 5002, 281475094151175, 5, 9001),
    (5000, 5002, 281475094151175, 6, 9001),
    (5000, 5002, 281475094151175, 7, 9001),
    (5000, 5002, 281475094151175, 8, 9001);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, bytes, copyKind, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, dstDeviceId, dstContextId, migrationCause, graphNodeId);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind) VALUES
    (500, 505, 0, 1, 7, 5, 281475094151168, 64, 1),
    (500, 505, 0, 1, 7, 6, 281475094151168, 64, 1),
    (500, 505, 0, 1, 7, 7, 281475094151168, 64, 1);
