"""Traces of models that are kept from one call to the next."""
