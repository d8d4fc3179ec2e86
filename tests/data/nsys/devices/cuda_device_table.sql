.read ../empty-2026.1.sql
CREATE TABLE TARGET_INFO_GPU (vmId, id, name, totalMemory, memoryBandwidth, clockRate, smCount, cuDevice, computeMajor, computeMinor);
INSERT INTO TARGET_INFO_GPU (id, name, cuDevice) VALUES
    (0, 'A', 0),
    (3, 'D', 3);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid);
INSERT INTO TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid) VALUES
    (3, 0, 7);
