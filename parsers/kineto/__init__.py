"""Kineto traces, which the PyTorch profiler writes."""
