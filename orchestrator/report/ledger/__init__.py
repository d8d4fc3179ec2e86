"""The ledger on the page and in files."""
