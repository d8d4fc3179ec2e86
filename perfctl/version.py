"""The version of perfctl."""

__version__ = "2.0.0"
