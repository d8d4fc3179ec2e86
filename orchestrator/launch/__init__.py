"""Run workloads under profilers and keep their reports on disk."""
