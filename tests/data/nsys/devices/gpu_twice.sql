.read ../empty-2026.1.sql
CREATE TABLE TARGET_INFO_GPU (vmId, id, name, totalMemory, memoryBandwidth, clockRate, smCount, cuDevice, computeMajor, computeMinor);
INSERT INTO TARGET_INFO_GPU (id, name, cuDevice) VALUES
    (0, 'G0', 0),
    (1, 'G1', 1);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid);
INSERT INTO TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid) VALUES
    (0, 0, 7),
    (0, 1, 9);
