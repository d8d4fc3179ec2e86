"""A comparison of two sides: in sentences, as a page, and for the terminal, a pull request
and programs."""
