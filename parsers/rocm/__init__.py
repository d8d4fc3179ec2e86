"""Reports of rocprofv3. Those of rocprof v1 and rocprof-compute are refused by name."""
