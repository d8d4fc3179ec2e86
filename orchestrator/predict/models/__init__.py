"""How long a step takes on another device, and what it costs."""
