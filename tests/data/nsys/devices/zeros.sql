.read ../empty-2024.2.sql
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value);
INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES
    ('NvDriverVersion', '550.54');
CREATE TABLE TARGET_INFO_GPU (vmId, id, name, totalMemory, memoryBandwidth, clockRate, smCount, cuDevice, computeMajor, computeMinor);
INSERT INTO TARGET_INFO_GPU (id, name, totalMemory, memoryBandwidth, clockRate, smCount, cuDevice, computeMajor, computeMinor) VALUES
    (5, 'A', 8, 9, 10, 1, 0, 9, 0),
    (6, '', 0, 0, 0, 0, 1, 0, 5);
INSERT INTO TARGET_INFO_GPU (id, name, cuDevice) VALUES
    (7, 'hidden', -1);
INSERT INTO TARGET_INFO_GPU (id, name, totalMemory, memoryBandwidth, clockRate, smCount, cuDevice, computeMajor) VALUES
    (8, 'C', -1, -1, -1, -1, 3, 1);
