"""Formula, count and time side by side for every layer."""
