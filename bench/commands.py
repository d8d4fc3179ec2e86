"""What commands cost that read a store: CPU time beside ``import typer``, and beside another perfctl

    python bench/commands.py [--against PYTHON] [--rounds N]

The store holds the recorded sweeps of tests/data/recorded-cpu; each interpreter makes its own. All commands of all
interpreters run in turn, so that other work on the machine meets all alike. Times are medians of CPU seconds (user and
system, of the process and its children).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

RECORDED = Path(__file__).parent.parent / "tests" / "data" / "recorded-cpu"
COMMANDS = {
    "perfctl --help": ["--help"],
    "perfctl runs": ["runs"],
    "perfctl show 1": ["show", "1"],
    "perfctl ledger": ["ledger"],
    "perfctl report": ["report"],
}


def cpu_seconds(command: list[str], folder: Path) -> float:
    """CPU time of one process that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often each command runs (default 7)")
    parser.add_argument("--against", metavar="PYTHON", help="interpreter with another perfctl, for a ratio of the two")
    asked = parser.parse_args()
    pythons = [sys.executable, *([asked.against] if asked.against else [])]
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folders = {python: Path(name) / str(number) for number, python in enumerate(pythons)}
        for python, folder in folders.items():
            folder.mkdir()
            cpu_seconds([python, "-m", "perfctl", "ingest", str(RECORDED)], folder)
        for number in range(asked.rounds + 1):
            for python, folder in folders.items():
                work = {"import typer": [python, "-c", "import typer"]}
                work |= {label: [python, "-m", "perfctl", *words] for label, words in COMMANDS.items()}
                for label, command in work.items():
                    seconds = cpu_seconds(command, folder)
                    if number:  # the first round fills caches
                        spent[label, python].append(seconds)
    median = {key: statistics.median(values) for key, values in spent.items()}
    heads = ("command", "CPU s", "of import typer", *(["the other's CPU s", "ratio"] if asked.against else []))
    rows = [heads]
    for label in ("import typer", *COMMANDS):
        mine = median[label, sys.executable]
        row = [label, f"{mine:.3f}", f"{mine / median['import typer', sys.executable]:.1f}x"]
        if asked.against:
            other = median[label, asked.against]
            row += [f"{other:.3f}", f"{mine / other:.2f}"]
        rows.append(tuple(row))
    for row in rows:
        print("  ".join(cell.ljust(18) for cell in row).rstrip())


if __name__ == "__main__":
    main()
