"""Two runs or studies side by side."""
