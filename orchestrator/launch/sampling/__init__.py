"""Readings of devices and host while a run goes on."""
