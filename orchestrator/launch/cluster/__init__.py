"""Jobs for Slurm, PBS and LSF."""
