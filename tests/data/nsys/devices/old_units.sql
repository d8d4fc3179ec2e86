.read ../empty-2020.3.sql
CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId, name, numMultiprocessors, computeCapabilityMajor, computeCapabilityMinor, globalMemorySize, globalMemoryBandwidth, coreClockRate);
INSERT INTO TARGET_INFO_CUDA_GPU (deviceId, name, numMultiprocessors, globalMemorySize, globalMemoryBandwidth, coreClockRate) VALUES
    (0, 'V100', 80, 32510, 0, 1380000),
    (1, 'V100', 80, 48601, 4026531840, 1380000),
    (2, 'V100', 80, 16777215, 0, 1380000),
    (3, 'V100', 80, 16777216, 0, 1380000),
    (4, 'V100', 80, 10495524864, 760080000, 1380000);
CREATE TABLE TARGET_INFO_GPU (vmId, deviceId, name, busLocation, isDiscrete);
INSERT INTO TARGET_INFO_GPU (deviceId, name) VALUES
    (0, 'V100'),
    (1, 'V100'),
    (2, 'V100'),
    (3, 'V100'),
    (4, 'V100');
