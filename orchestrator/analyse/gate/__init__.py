"""Quantities of a model, of runs and of machine code against a baseline."""
