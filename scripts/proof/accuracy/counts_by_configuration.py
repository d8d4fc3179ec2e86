"""Do launches with the same kernel, grid and block have the same counts? Public counters of every
launch say when not.

    python scripts/proof/accuracy/counts_by_configuration.py a100_operators/linear.csv REPORT...

``linear.csv`` has a row per launch of a Linear layer on an A100: kernel, m, k, n and counts. It has
no grid; one kernel with the same m and n, and the same number of FMULs (one per output and slice of
k), has the same grid. REPORT: files of ncu.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator.counts.counters.work import group_counters_by_launch, is_flop_counter

COUNTS = ("ffma", "fmul", "fadd", "hfma", "pipe_tensor")
Groups = Mapping[Hashable, Sequence[tuple[float | None, ...]]]


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    if not arguments:
        sys.exit(f"usage: {sys.argv[0]} a100_operators/linear.csv [REPORT ...]")
    with Path(arguments[0]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    print(
        "| launches grouped by | groups | launches | equal counts | other counts | largest ratio |"
    )
    print("|---|---|---|---|---|---|")
    grid = _grouped(rows, ("kernel", "launch", "m", "n", "fmul"))
    depths = {
        key: {row["k"] for row in rows if _key(row, ("kernel", "launch", "m", "n", "fmul")) == key}
        for key in grid
    }
    print(
        _line(
            "Linear, A100: kernel and grid, several k",
            {key: grid[key] for key in grid if len(depths[key]) > 1},
        )
    )
    shape = _grouped(rows, ("kernel", "launch", "m", "k", "n"))
    print(_line("Linear, A100: kernel, grid and m, k, n", shape))
    for name in arguments[1:]:
        report = parsers.parse(Path(name))
        values = group_counters_by_launch(report.counters)
        by_launch: dict[Hashable, list[tuple[float | None, ...]]] = defaultdict(list)
        has_grid = False
        for kernel in report.kernels:
            counted = {
                metric: value
                for metric, value in values.get(kernel.launch, {}).items()
                if is_flop_counter(metric) and metric.endswith(".sum")
            }
            has_grid |= kernel.grid_x is not None
            key = (
                kernel.name,
                kernel.grid_x,
                kernel.grid_y,
                kernel.grid_z,
                kernel.block_x,
                kernel.block_y,
                kernel.block_z,
            )
            by_launch[key].append(tuple(counted[metric] for metric in sorted(counted)))
        print(
            _line(
                f"{Path(name).name}: "
                f"kernel{', grid and block' if has_grid else ' (no grid in the file)'}",
                by_launch,
            )
        )


def _key(row: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(row[name] for name in names)


def _grouped(
    rows: Iterable[Mapping[str, str]], names: Sequence[str]
) -> dict[tuple[str, ...], list[tuple[float, ...]]]:
    found: dict[tuple[str, ...], list[tuple[float, ...]]] = defaultdict(list)
    for row in rows:
        found[_key(row, names)].append(tuple(float(row[name]) for name in COUNTS))
    return found


def _line(what: str, groups: Groups) -> str:
    repeated = [found for found in groups.values() if len(found) > 1]
    same = sum(len(set(found)) == 1 for found in repeated)
    ratios = [
        max(tops) / min(tops)
        for found in repeated
        if (tops := [counts[0] or 0 for counts in found]) and min(tops) > 0
    ]
    launches = sum(map(len, repeated))
    return (
        f"| {what} | {len(repeated)} | {launches} | {same} | {len(repeated) - same} | "
        f"{max(ratios, default=1):.4g} |"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
