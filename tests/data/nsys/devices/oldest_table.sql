.read ../empty-2020.3.sql
CREATE TABLE TARGET_INFO_GPU (vmId, deviceId, name, busLocation);
INSERT INTO TARGET_INFO_GPU (deviceId, name) VALUES
    (1, 'V100'),
    (0, '');
INSERT INTO TARGET_INFO_GPU (name) VALUES
    ('T4');
