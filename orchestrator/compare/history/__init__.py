"""A quantity over time or commits, and where it changed."""
