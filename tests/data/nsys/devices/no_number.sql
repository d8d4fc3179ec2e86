.read ../empty-2020.3.sql
CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId, name, numMultiprocessors, computeCapabilityMajor, computeCapabilityMinor, globalMemorySize, globalMemoryBandwidth, coreClockRate);
INSERT INTO TARGET_INFO_CUDA_GPU (name, numMultiprocessors, computeCapabilityMajor, computeCapabilityMinor, globalMemoryBandwidth, coreClockRate) VALUES
    ('G', 1, 1, 0, 1, 1);
INSERT INTO TARGET_INFO_CUDA_GPU (deviceId, computeCapabilityMajor, computeCapabilityMinor, globalMemorySize, globalMemoryBandwidth, coreClockRate) VALUES
    (1, 1, 0, 1, 1, 1);
