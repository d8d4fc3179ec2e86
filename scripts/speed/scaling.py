"""Does cost grow faster than work? ``python scripts/speed/scaling.py``, a part of run.py
(``--large``: 100 times the work)

Synthetic runs (make_sweeps.py) at 1, 10 and 100 times the kernels, layers, batch sizes and runs in
a store. For each command, in a process of its own: CPU seconds (user and system), peak memory, and
the growth from the previous size. Growth above 10 for ten times the work means that cost grows
faster than work.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from make_sweeps import make
from measure import spend


class Size(NamedTuple):
    """One store."""

    sweeps: int
    batches: int
    layers: int
    kernels: int


SIZES: dict[str, tuple[Size, ...]] = {
    "kernels of a run": tuple(Size(1, 2, 5, kernels) for kernels in (1_000, 10_000, 100_000)),
    "layers": tuple(Size(1, 2, layers, 6 * layers) for layers in (5, 50, 500)),
    "batch sizes": tuple(Size(1, batches, 5, 100) for batches in (2, 20, 200)),
    "runs of a store": tuple(Size(sweeps, 5, 5, 100) for sweeps in (4, 40, 400)),
}


def main() -> None:
    """Print one table per dimension."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--large", action="store_true", help="100 times the work too: half an hour of CPU time"
    )
    parser.add_argument("--only", default="", help="only dimensions whose name holds this text")
    asked = parser.parse_args()
    for dimension, sizes in SIZES.items():
        if asked.only in dimension:
            table(dimension, sizes if asked.large else sizes[:2])


def table(dimension: str, sizes: tuple[Size, ...]) -> None:
    """CPU seconds, MB and growth of every stage."""
    print(
        f"\n{dimension}: {', '.join(str(tuple(size)) for size in sizes)} (sweeps, batch sizes, "
        "layers, kernels)"
    )
    print(
        f"{'stage':10}" + "".join(f" {'CPU s':>8} {'MB':>5} {'growth':>7}" for _ in sizes),
        flush=True,
    )
    lines: dict[str, str] = {}
    before: dict[str, float] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="perfctl-bench-") as folder:
            make(*size, Path(folder) / "perfctl-runs")
            for stage, words in stages():
                seconds, memory = cost(words, Path(folder))
                growth = f"{seconds / before[stage]:.1f}x" if stage in before else ""
                before[stage] = seconds
                lines[stage] = (
                    lines.get(stage, f"{stage:10}") + f" {seconds:8.2f} {memory:5.0f} {growth:>7}"
                )
            for name, file in (("store, MB", "perfctl.db"), ("page, MB", "page.html")):
                lines[name] = (
                    lines.get(name, f"{name:10}")
                    + f" {(Path(folder) / file).stat().st_size / 1e6:8.2f} {'':13}"
                )
    print("\n".join(lines.values()), flush=True)


def stages() -> Iterator[tuple[str, list[str]]]:
    """(stage, command), in the order in which they need each other."""
    yield "ingest", ["ingest", "perfctl-runs"]
    yield "runs", ["runs"]
    yield "show", ["show", "1"]
    yield "ledger", ["ledger"]
    yield "compare", ["compare", "run:1", "run:2", "--anyway"]
    yield "export", ["export"]
    yield "report", ["report", "--out", "page.html"]
    yield "gather", ["slurm", "gather", "perfctl-runs", "--store", "gathered.db"]


def cost(words: list[str], folder: Path) -> tuple[float, float]:
    """(CPU seconds, peak memory in MB). Exit codes 1 and 3 are results of a comparison,
    not failures."""
    allowed = (0, 1, 3) if words[0] == "compare" else (0,)
    spent = spend([sys.executable, "-m", "perfctl", *words], folder, allowed=allowed)
    return spent.seconds, spent.megabytes


if __name__ == "__main__":
    main()
