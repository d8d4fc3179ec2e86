"""Executed instructions that follow from a launch's kernel name, grid and shape, where no counter
measured them."""
