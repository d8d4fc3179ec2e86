.read ../empty-2024.2.sql
CREATE TABLE TARGET_INFO_GPU (vmId, id, name, totalMemory, memoryBandwidth, clockRate, smCount, cuDevice, computeMajor, computeMinor);
INSERT INTO TARGET_INFO_GPU (id, name) VALUES
    (4, 'hidden');
INSERT INTO TARGET_INFO_GPU (id, name, cuDevice) VALUES
    (5, 'seen', 0);
