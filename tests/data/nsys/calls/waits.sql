.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaDeviceSynchronize_v3020'),
    (2, 'cudaStreamSynchronize_v3020'),
    (3, 'cudaLaunchKernel_v7000'),
    (4, 'cuCtxSynchronize'),
    (5, 'cudaEventSynchronize'),
    (6, 'cudaDeviceSynchronizeNot_v3020');
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (100, 200, 59, 'perfctl:step:0', 281475094151175, 0),
    (200, 300, 59, 'perfctl:step:1', 281475094151175, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (50, 90, 281475094151173, 0, 1),
    (120, 150, 281475094151173, 1, 2),
    (160, 170, 281475094151173, 2, 3),
    (199, 230, 281475094151173, 3, 4),
    (250, 260, 281475110928389, 4, 5),
    (270, 280, 281475094151173, 5, 6);
