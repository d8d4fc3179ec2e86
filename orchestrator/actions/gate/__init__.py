"""The gate: what a pull request changes in a committed baseline."""
