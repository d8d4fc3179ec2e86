"""How busy the GPU and the CPU were."""
