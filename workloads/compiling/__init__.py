"""What compilers make of kernels and models, on a machine without a GPU."""
