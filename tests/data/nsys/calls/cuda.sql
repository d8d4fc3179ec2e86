.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaMalloc_v3020'),
    (2, 'cudaLaunchKernel_v7000');
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (0, 7, 281475094151175, 0, 1),
    (10, 14, 281475094151175, 0, 2),
    (20, 31, 281475094151175, 1, 2),
    (40, 42, 281475094151175, 2, 2);
