"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Batches = Annotated[
    str, typer.Option("--batches", "-b", help="Batch sizes, one process each: 16,32,64.")
]
Workload = Annotated[
    str | None,
    typer.Option(
        "--workload",
        "-w",
        help="Built-in workload, if no script follows --. Default: mnist_cnn.",
    ),
]
Mode = Annotated[str | None, typer.Option(help="train or infer.")]
Steps = Annotated[
    int | None,
    typer.Option(help="Steps to measure. Default: 10 (1 with ncu)."),
]
Warmup = Annotated[
    int | None, typer.Option(help=("Warm-up steps before the measured steps. Default: 3."))
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto (cuda if there is a GPU).")]
Precision = Annotated[str | None, typer.Option(help="fp32 (TF32 off), tf32, bf16 or fp16.")]
Repeat = Annotated[
    int,
    typer.Option(
        min=1,
        max=1000,
        help="Runs per batch size, one process each; compare uses their spread.",
    ),
]
Timeout = Annotated[float | None, typer.Option(min=1, help="Stop a run after this many seconds.")]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help=(
            "Memory limit for parsing one report, for example 4G; 0 means no limit. Default: "
            "$PERFCTL_MEMORY_LIMIT, or the smaller of 2 GiB and a quarter of RAM."
        ),
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(help=("Results database. Default: ./perfctl.db (sweeps: next to --out).")),
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        help="Print md (Markdown), tex (LaTeX) or html with complete tables, instead of text.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Peaks = Annotated[
    str,
    typer.Option(
        "--peaks",
        help=(
            "Roofline peaks: published (data sheet) or measured (20 s benchmark on this machine, "
            "cached)."
        ),
    ),
]


def names(text: str | None) -> list[str]:
    """ "a, b" as a list; empty for None."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
