"""Run one process per batch size, here or on a cluster."""
