.read ../empty-2026.1.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'gemm(int)'),
    (2, 'gemm');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, demangledName, shortName, mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId, sharedMemoryLimitConfig, qmdBulkReleaseDone, qmdPreexitDone, qmdLastCtaDone, graphId, clusterX, clusterY, clusterZ, clusterSchedulingPolicy, maxPotentialClusterSize, maxActiveClusters, sharedMemoryRequestedPercentage);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, graphNodeId, graphId, clusterX, clusterY, clusterZ) VALUES
    (1000, 1010, 0, 2, 7, 4, 281475127705600, 1, 2, 40, 2, 3, 4, 32, 2, 1, 16, 0, 1099511627776, 11, 2, 1, 1),
    (1000, 1010, 0, 1, 7, 5, 281475094151168, 1, 2, 40, 2, 3, 4, 32, 2, 1, 16, 0, 0, 0, 0, 0, 0);
