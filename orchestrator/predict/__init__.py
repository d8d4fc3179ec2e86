"""How long a step takes on another device."""
