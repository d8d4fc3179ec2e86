"""Known GPUs and CPUs, and their peaks."""
