"""Quantities of a model and of runs against a baseline."""
