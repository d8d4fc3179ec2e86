.read ../empty-2024.2.sql
CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS (start, end, numberOfPageFaults);
INSERT INTO CUDA_UM_GPU_PAGE_FAULT_EVENTS (start, end, numberOfPageFaults) VALUES
    (0, 9, 3),
    (0, 9, 4);
CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS (start, address);
INSERT INTO CUDA_UM_CPU_PAGE_FAULT_EVENTS (start, address) VALUES
    (0, 4096);
