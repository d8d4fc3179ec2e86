.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaLaunchKernel');
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (0, 5, 281475094151175, 1, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end);
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end) VALUES
    (1, 2);
