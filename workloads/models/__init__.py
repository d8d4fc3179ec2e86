"""The built-in models, and models by name."""
