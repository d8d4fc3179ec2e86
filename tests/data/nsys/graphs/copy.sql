.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'Graph Node Creation'),
    (2, 'cudaLaunchKernel');
CREATE TABLE NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId, uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue, jsonTextId, jsonText);
INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES
    (100, 200, 59, 'conv1:forward', 281475094151175, 0),
    (300, 400, 59, 'fc:forward', 281475094151175, 0),
    (500, 600, 59, 'fc:backward', 281475094151176, 0);
CREATE TABLE CUDA_GRAPH_NODE_EVENTS (start, end, nameId, eventClass, globalTid, graphNodeId, originalGraphNodeId);
INSERT INTO CUDA_GRAPH_NODE_EVENTS (start, end, nameId, globalTid, graphNodeId) VALUES
    (110, 111, 1, 281475094151175, 1);
INSERT INTO CUDA_GRAPH_NODE_EVENTS (start, end, nameId, globalTid, graphNodeId, originalGraphNodeId) VALUES
    (701, 702, 1, 281475094151175, 101, 1);
INSERT INTO CUDA_GRAPH_NODE_EVENTS (start, end, nameId, globalTid, graphNodeId) VALUES
    (250, 251, 1, 281475094151175, 2);
INSERT INTO CUDA_GRAPH_NODE_EVENTS (start, end, nameId, globalTid, graphNodeId, originalGraphNodeId) VALUES
    (702, 703, 1, 281475094151175, 102, 2);
INSERT INTO CUDA_GRAPH_NODE_EVENTS (start, end, nameId, globalTid, graphNodeId) VALUES
    (310, 311, 1, 281475094151175, 3);
INSERT INTO CUDA_GRAPH_NODE_EVENTS (start, end, nameId, globalTid, graphNodeId, originalGraphNodeId) VALUES
    (703, 704, 1, 281475094151175, 103, 3);
INSERT INTO CUDA_GRAPH_NODE_EVENTS (start, end, nameId, globalTid, graphNodeId) VALUES
    (510, 511, 1, 281475094151176, 4);
INSERT INTO CUDA_GRAPH_NODE_EVENTS (start, end, nameId, globalTid, graphNodeId, originalGraphNodeId) VALUES
    (704, 705, 1, 281475094151175, 104, 4);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId) VALUES
    (900, 902, 281475094151175, 5, 2);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, bytes, copyKind, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, dstDeviceId, dstContextId, migrationCause, graphNodeId);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind, graphNodeId) VALUES
    (500, 505, 0, 1, 7, 5, 281475094151168, 1024, 8, 103);
