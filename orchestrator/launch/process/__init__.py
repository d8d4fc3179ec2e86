"""Processes: start, watch, stop."""
