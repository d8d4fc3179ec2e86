"""Pure functions: records in, records out."""
