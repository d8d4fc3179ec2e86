"""NVIDIA's tools that take machine code out of files and print it: cuobjdump, nvdisasm, ptxas."""
