"""Jobs for Slurm."""
