"""One module for each profiler."""
