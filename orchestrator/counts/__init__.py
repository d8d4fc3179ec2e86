"""What the hardware executed: counters, kernel names, grids, derived counts, device peaks."""
