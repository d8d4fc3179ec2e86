"""How much memory a step needs."""
