"""A synthetic ncu CSV of any size: ``python scripts/speed/make_ncu.py long|wide LAUNCHES
METRICS OUT.csv``

``long`` is the form of ``ncu --csv`` (one row per launch and metric), ``wide`` that of
``ncu --page raw --csv`` (one row per launch, under a row of units). Two lines of ncu itself come
before the table. Every cell is quoted and numbers are grouped by commas, as under a C or
en_US locale.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator
from pathlib import Path

from make_nsys import kernel_names

IDENTITY = (
    *(
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
    ),
    *("Device", "CC"),
)
FIRST_METRICS = [
    ("gpu__time_duration.sum", "nsecond", 25_000.0),
    ("launch__registers_per_thread", "register/thread", 64),
    ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", 40_000_000),
    ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", 10_000_000),
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", 900_000_000),
    ("dram__bytes_read.sum", "byte", 30_000_000),
    ("dram__bytes_write.sum", "byte", 20_000_000),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", 60.0),
]
"""(name, unit, usual size): whole numbers where the size is one."""


def metrics(count: int) -> list[tuple[str, str, float]]:
    """The first ``count`` metrics; after the real names above, numbered stall reasons."""
    more = (
        f"smsp__average_warps_issue_stalled_reason_{number}_per_issue_active.ratio"
        for number in range(count)
    )
    return [*FIRST_METRICS, *((name, "inst", 3.0) for name in more)][:count]


def launches(
    count: int, wanted: list[tuple[str, str, float]]
) -> Iterator[tuple[list[str], list[str]]]:
    """(identity cells, value cells) of each launch."""
    chance = random.Random(11)  # noqa: S311
    names = kernel_names()
    for number in range(count):
        grid = f"({chance.randint(1, 2000)}, 1, 1)"
        name = names[chance.randrange(60)][1]
        identity = [
            str(number),
            "4242",
            "python3.11",
            "127.0.0.1",
            name,
            "1",
            "7",
            "(128, 1, 1)",
            grid,
            "0",
            "9.0",
        ]
        values = []
        for _, _, size in wanted:
            value = size * chance.lognormvariate(0, 0.5)
            values.append(f"{int(value):,}" if isinstance(size, int) else f"{value:,.2f}")
        yield identity, values


def make(kind: str, count: int, metric_count: int, out: Path) -> None:
    """Write the file; an existing one is replaced."""
    wanted = metrics(metric_count)
    with out.open("w", newline="", encoding="utf-8") as file:
        file.write(
            "==PROF== Connected to process 4242 (/usr/bin/python3.11)\n"
            "==PROF== Disconnected from process 4242\n"
        )
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        if kind == "wide":
            writer.writerow([*IDENTITY, *(name for name, _, _ in wanted)])
            writer.writerow([*[""] * len(IDENTITY), *(unit for _, unit, _ in wanted)])
        else:
            writer.writerow(
                [*IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
            )
        for identity, values in launches(count, wanted):
            if kind == "wide":
                writer.writerow([*identity, *values])
                continue
            for (name, unit, _), value in zip(wanted, values, strict=True):
                writer.writerow([*identity, "Command line profiler metrics", name, unit, value])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("long", "wide"))
    parser.add_argument("launches", type=int)
    parser.add_argument("metrics", type=int)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    make(asked.kind, asked.launches, asked.metrics, asked.out)
