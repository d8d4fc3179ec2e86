"""Everything that runs outside the profiled process: launch, store, analyse, report, and the
command line."""
