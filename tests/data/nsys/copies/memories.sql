.read ../empty-2024.2.sql
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, bytes, copyKind, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, dstDeviceId, dstContextId, migrationCause, graphNodeId);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, bytes, copyKind, srcKind, dstKind) VALUES
    (0, 5, 0, 7, 8, 1, 0, 2),
    (0, 5, 0, 7, 8, 2, 5, 1),
    (0, 5, 0, 7, 8, 8, 4, 7);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, bytes, copyKind, srcKind, dstKind, srcDeviceId, dstDeviceId) VALUES
    (0, 5, 0, 7, 8, 10, 2, 2, 0, 3);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, streamId, bytes, memKind);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, streamId, bytes, memKind) VALUES
    (0, 5, 0, 7, 8, 4);
