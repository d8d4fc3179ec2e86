"""The version of perfctl."""

__version__ = "1.0.0"
