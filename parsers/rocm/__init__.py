"""Reports of AMD's profilers: rocprofv3, rocprof, Omniperf and rocprof-compute."""
