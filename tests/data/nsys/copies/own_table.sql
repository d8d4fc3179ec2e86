.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'cudaLaunchKernel');
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id, name, label);
INSERT INTO ENUM_CUDA_MEMCPY_OPER (id, name, label) VALUES
    (1, '-', 'Host-to-Device'),
    (11, '-', 'Unified Host-to-Device');
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (0, 100, 59, 'conv1:forward', 281475094151175, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (10, 12, 281475094151175, 1, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, bytes, copyKind, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, dstDeviceId, dstContextId, migrationCause, graphNodeId);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind) VALUES
    (500, 505, 0, 1, 7, 1, 281475094151168, 4096, 1),
    (500, 505, 0, 1, 7, 2, 281475094151168, 4096, 2),
    (500, 505, 0, 1, 7, 3, 281475094151168, 4096, 8),
    (500, 505, 0, 1, 7, 4, 281475094151168, 4096, 10),
    (500, 505, 0, 1, 7, 5, 281475094151168, 4096, 11);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, contextId, streamId, correlationId, globalPid, value, bytes);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, streamId, correlationId, globalPid, bytes) VALUES
    (7, 9, 0, 7, 1, 281475094151168, 64);
