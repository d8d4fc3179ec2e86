"""What is proved without the hardware that it is for, by what, and what only the hardware can show:
``python scripts/proof/hardware_status.py`` prints the table.

``scripts/record_reports.py`` records what it can on a machine with a GPU. A row leaves this table
when a recording in tests/data proves it. "both ncu" and "both nsys" are Debian 12's 2022.3 and
2022.4 and Debian 13's 2024.1 and 2023.4, whose option parsers and lists of counters need no GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Row(NamedTuple):
    """One subject. ``tests``: files below tests/ that hold the proof; ``open``: "" for nothing."""

    subject: str
    proof: str
    open: str
    tests: tuple[str, ...] = ()


STATUS = (
    Row(
        "image render",
        "Apptainer 1.4.5",
        "NVIDIA's default base image",
        ("launch/profilers/test_image_real.py",),
    ),
    Row(
        "clean environment of an image",
        "tests",
        "CUDA_VISIBLE_DEVICES with --nv",
        ("launch/cluster/test_readable.py",),
    ),
    Row("time to write before the limit", "Slurm 22.05, nsys", "writing a large ncu report"),
    Row("kill and cancel", "Slurm 22.05: no process left", "the same with ncu"),
    Row("requeue, node failure", "Slurm 22.05", ""),
    Row("cores of a step", "Slurm 22.05", "", ("launch/cluster/test_slurm_real.py",)),
    Row("apt's lock", "tests", "", ("scripts/test_install_nsight.py",)),
    Row(
        "kernels that wait for other GPUs are excluded",
        "both ncu, 23 kernel names",
        "names of other libraries",
        ("launch/profilers/test_ncu.py",),
    ),
    Row(
        "only rank 0 under ncu",
        "tests",
        "waiting of the other ranks in NCCL",
        ("workloads/script/test_launchers.py",),
    ),
    Row("--stall", "a program that prints ncu's lines and hangs", "a very large kernel"),
    Row("--replay-mode range, app-range refused", "both ncu", "ranges with collectives"),
    Row("--tool-args", "both tools accept all lists", "--graph-profiling, --set, --section"),
    Row("counters chosen by chip", "both ncu: gv100, ga100, gh100", "gb110, gb10b, gb20b"),
    Row("Blackwell's tensor pipe", "public reports, a count on a B300", "lists of gb100, gb202"),
    Row("grace before SIGKILL", "stand-ins that write slowly", "the assumed 2 MiB/s"),
    Row("one lock per GPU for all users", "two users on one machine", ""),
    Row("threads in scripts", "tests on a CPU", "DataParallel on two GPUs"),
    Row("os._exit, closed descriptors", "tests", "the same under nsys and ncu"),
    Row("micro-batches", "Accelerate, Lightning, Trainer, DeepSpeed", ""),
    Row("torch.compile with CUDA graphs", "CPU path of reduce-overhead", "graph replays"),
    Row("FSDP2, torchrun", "two ranks with gloo", "NCCL; two nodes"),
    Row("Python 3.8, torch 1.8.1 to 2.4", "CPU runs", "backward kernels under nsys and DLProf"),
    Row("perfctl dlprof", "its command line (--dry-run)", "a DLProf container"),
)


def main() -> None:
    """Print the table."""
    print("| subject | proved by | open |\n|---|---|---|")
    for row in STATUS:
        proof = ", ".join((row.proof, *row.tests))
        print(f"| {row.subject} | {proof} | {row.open or '-'} |")


if __name__ == "__main__":
    main()
