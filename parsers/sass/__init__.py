"""Machine code of GPU kernels: ELF files (cubin), containers in programs (fatbin), text of nvdisasm."""
