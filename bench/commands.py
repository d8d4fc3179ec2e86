"""What small commands cost: CPU time beside ``import typer``, and beside another perfctl

    python bench/commands.py [--against PYTHON] [--rounds N]

The store holds the recorded sweeps of tests/data/recorded-cpu; each interpreter makes its own, and a cache of its own. What is
"first" runs with an empty cache. All commands of all
interpreters run in turn, so that other work on the machine meets all alike. Times are medians of CPU seconds (user and
system, of the process and its children).
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
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
    "calculator, 80 models": ["calculator", "--out", "calculator.html", "--force"],
}
TORCH = "import torch, torchvision"
TRACED = {
    "estimate resnet18": ["estimate", "torchvision:resnet18"],
    "predict resnet50": ["predict", "torchvision:resnet50", "--device", "A100", "--batch", "32"],
    "predict hf:bert": ["predict", "hf:bert", "--device", "A100", "--batch", "32"],
    "predict convnext_base": ["predict", "timm:convnext_base", "--device", "A100", "--batch", "32"],
    "generate hf:llama": ["predict", "hf:llama", "--prompt", "512", "--generate", "128", "--device", "H100"],
}
"""Models that are traced the first time; a second call takes what the first one kept."""
REACH = {
    "perfctl --help": "at most 1.2x import typer", "perfctl runs": "0.4 s", "perfctl show 1": "0.5 s", "perfctl ledger": "0.6 s",
    "perfctl report": "1.2 s", "calculator, 80 models": "2 s", "estimate resnet18, first": f"at most 1.3x {TORCH}",
    **{f"{label}, first": "10 s" for label in TRACED if label != "estimate resnet18"},
    **{f"{label}, second": "2 s" for label in TRACED if label != "estimate resnet18"},
}  # fmt: skip


def cpu_seconds(command: list[str], folder: Path) -> float:
    """CPU time of one process that must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def works(python: str) -> dict[str, list[str]]:
    """Label -> command, yardsticks among them, in the order in which they run."""
    found = {"import typer": [python, "-c", "import typer"], TORCH: [python, "-c", TORCH]}
    found |= {label: [python, "-m", "perfctl", *words] for label, words in COMMANDS.items()}
    for label, words in TRACED.items():
        found |= {f"{label}, {turn}": [python, "-m", "perfctl", *words] for turn in ("first", "second")}
    return found


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
                shutil.rmtree(folder / "cache", ignore_errors=True)
                for label, command in works(python).items():
                    seconds = cpu_seconds(command, folder)
                    if number:  # the first round fills caches
                        spent[label, python].append(seconds)
    median = {key: statistics.median(values) for key, values in spent.items()}
    heads = (
        "command",
        "CPU s",
        "of the yardstick",
        "to be reached",
        *(["the other's CPU s", "ratio"] if asked.against else []),
    )
    rows = [heads]
    for label in works(sys.executable):
        mine = median[label, sys.executable]
        yardstick = TORCH if label.startswith(tuple(TRACED)) else "import typer"
        row = [label, f"{mine:.3f}", f"{mine / median[yardstick, sys.executable]:.2f}x", REACH.get(label, "")]
        if asked.against:
            other = median[label, asked.against]
            row += [f"{other:.3f}", f"{mine / other:.2f}"]
        rows.append(tuple(row))
    for row in rows:
        print("  ".join(cell.ljust(30) for cell in row).rstrip())


if __name__ == "__main__":
    main()
