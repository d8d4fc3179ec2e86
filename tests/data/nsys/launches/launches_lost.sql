.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaLaunchKernel_v7000');
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId, returnValue) VALUES
    (10, 14, 281475094151175, 0, 1, 0),
    (20, 31, 281475094151175, 1, 1, 0);
