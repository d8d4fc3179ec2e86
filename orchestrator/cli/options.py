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
        help="Built-in workload, where no program follows --. Default: mnist_cnn.",
    ),
]
Mode = Annotated[str | None, typer.Option(help="train or infer.")]
Steps = Annotated[
    int | None,
    typer.Option(help="Measured steps. Default: 10; under ncu 1, because counts repeat."),
]
Warmup = Annotated[int | None, typer.Option(help="Steps before the measured ones. Default: 3.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU.")]
Precision = Annotated[str | None, typer.Option(help="fp32 (TF32 off), tf32, bf16 or fp16.")]
Repeat = Annotated[
    int,
    typer.Option(
        min=1,
        max=1000,
        help="Runs of each batch size, one process each; compare uses their spread.",
    ),
]
Timeout = Annotated[
    float | None, typer.Option(min=1, help="Seconds after which a batch size is ended.")
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help=(
            "Memory that the reading of a report may take: 4G; 0 is no limit. Default: "
            "PERFCTL_MEMORY_LIMIT, else 2G, or a quarter of the machine's."
        ),
    ),
]
Store = Annotated[
    Path | None, typer.Option(help="The store. Default: perfctl.db here; for sweeps, beside --out.")
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        help="md (Markdown), tex (LaTeX) or html instead of text, with whole tables.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Peaks = Annotated[
    str,
    typer.Option(
        "--peaks",
        help=(
            "Peaks of the roofline: published, or measured (once on this machine, then kept by the "
            "store)."
        ),
    ),
]


def names(text: str | None) -> list[str]:
    """ "a, b" as a list; empty for None."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
