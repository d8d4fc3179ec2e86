.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'a<1>(int)'),
    (2, 'a');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, demangledName, shortName, gridY, blockZ, streamId, deviceId);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, demangledName, shortName, gridY, blockZ, streamId, deviceId) VALUES
    (-5, 9, 1, 2, 2, 3, 0, 1);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, demangledName, shortName) VALUES
    (7, 1, 2);
