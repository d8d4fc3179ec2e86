.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'gemm(int)'),
    (2, 'gemm');
CREATE TABLE TARGET_INFO_GPU (vmId, id, name, totalMemory, memoryBandwidth, clockRate, smCount, cuDevice, computeMajor, computeMinor);
INSERT INTO TARGET_INFO_GPU (id, name, cuDevice) VALUES
    (0, 'G0', 0),
    (1, 'G1', 1),
    (2, 'G2', 2),
    (3, 'G3', 3);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, demangledName, shortName, mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId, sharedMemoryLimitConfig);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory) VALUES
    (1000, 1010, 3, 1, 7, 1, 281475094151168, 1, 2, 40, 2, 3, 4, 32, 2, 1, 16, 0),
    (1000, 1010, 1, 1, 7, 1, 281475094151168, 1, 2, 40, 2, 3, 4, 32, 2, 1, 16, 0);
