"""Formulas worked out with numbers, line by line."""
