"""Everything that runs outside the profiled process: launch, ingest, store, the rooms that
compute, report, and the command line."""
