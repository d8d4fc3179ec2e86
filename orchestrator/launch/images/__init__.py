"""Apptainer and Singularity images."""
