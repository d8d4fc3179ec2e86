"""Sums of hardware counters, and the FLOPs they mean."""
