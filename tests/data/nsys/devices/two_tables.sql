.read ../empty-2024.2.sql
CREATE TABLE TARGET_INFO_GPU (vmId, id, name, totalMemory, memoryBandwidth, clockRate, smCount, cuDevice, computeMajor, computeMinor);
INSERT INTO TARGET_INFO_GPU (id, name, smCount, cuDevice) VALUES
    (0, 'first', 80, 0);
CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId, name, numMultiprocessors, computeCapabilityMajor, computeCapabilityMinor, globalMemorySize, globalMemoryBandwidth, coreClockRate);
INSERT INTO TARGET_INFO_CUDA_GPU (deviceId, name, numMultiprocessors, computeCapabilityMajor, computeCapabilityMinor, globalMemorySize, coreClockRate) VALUES
    (0, 'second', 99, 7, 0, 17179869184, 3);
