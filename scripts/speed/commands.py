"""What small commands cost: CPU time and memory, beside ``import typer`` and
``import torch, torchvision``

    python scripts/speed/commands.py [--only WORD]... [--rounds N] [--runs N] [--against PYTHON]

Start-up, in CPU seconds and as ratio to ``import typer``: --only=--help --only=runs --only=show
--only=ledger --only=report.

Each row is printed as soon as it is measured. Times are medians: CPU seconds (user and system, of
the process and its children), and seconds until it ended. Memory is the largest peak of one
process. One store holds the recorded sweeps of tests/data/recorded-cpu, another one 2,000 runs that
``make_sweeps.py`` makes up (400 models, 5 batch sizes, 5 layers, 100 kernels); "first" and "cold"
have an empty cache. With --against, the same command of another interpreter's perfctl runs after
each, so that other work on the machine meets both alike.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from measure import Spent, spend

BENCH = Path(__file__).resolve().parent
RECORDED = BENCH.parents[1] / "tests" / "data" / "recorded-cpu"
TYPER, TORCH = "import typer", "import torch, torchvision"
PER_MODEL = 5
"""Runs of each model in the large store: one a batch size."""


class Work(NamedTuple):
    """One row of the table."""

    label: str
    words: tuple[str, ...]
    """Of perfctl; of a yardstick, the Python that is run."""
    reach: str = ""
    yardstick: str = TYPER
    store: str = "recorded"
    """recorded or many."""
    clears: bool = False
    """Is the cache emptied first?"""
    rounds: int | None = None
    """At most so many."""


WORKS = (
    Work(TYPER, (TYPER,)),
    Work(TORCH, (TORCH,), yardstick=TORCH),
    Work("--help", ("--help",), f"1.2x {TYPER}"),
    Work("runs", ("runs",), "0.4 s"),
    Work("show 1", ("show", "1"), "0.5 s"),
    Work("ledger", ("ledger",), "0.6 s"),
    Work("report", ("report",), "1.2 s"),
    Work(
        "estimate resnet18, first",
        ("estimate", "torchvision:resnet18"),
        f"1.3x {TORCH}",
        TORCH,
        clears=True,
    ),
    Work("estimate resnet18, again", ("estimate", "torchvision:resnet18"), "", TORCH),
    Work(
        "calculator, all models, cold",
        ("calculator", "--out", "calculator.html", "--force"),
        "60 s",
        clears=True,
    ),
    Work(
        "calculator, all models, again",
        ("calculator", "--out", "calculator.html", "--force"),
        "2 s",
    ),
    Work("ledger, many runs", ("ledger",), "10 s waited, 200 MB", store="many", rounds=3),
    Work("ledger --json, many runs", ("ledger", "--json"), "", store="many", rounds=3),
    Work(
        "export, many runs",
        ("export", "--out", "ledger.csv", "--force"),
        "10 s waited, 200 MB",
        store="many",
        rounds=3,
    ),
    *(
        Work(
            f"{label}, {turn}", ("predict", *words), reach, TORCH, clears=turn == "first", rounds=1
        )
        for label, words in {
            "predict resnet50": ("torchvision:resnet50", "--device", "A100", "--batch", "32"),
            "predict hf:bert": ("hf:bert", "--device", "A100", "--batch", "32"),
            "predict convnext_base": ("timm:convnext_base", "--device", "A100", "--batch", "32"),
            "generate hf:llama": (
                "hf:llama",
                "--prompt",
                "512",
                "--generate",
                "128",
                "--device",
                "H100",
            ),
        }.items()
        for turn, reach in (("first", "10 s"), ("again", "2 s"))
    ),
)


def run(command: list[str], folder: Path) -> Spent:
    """Run one process that must succeed."""
    return spend(command, folder, more={"XDG_CACHE_HOME": str(folder.parent / "cache")})


class Side:
    """One interpreter's perfctl with stores and a cache of its own, which are made when they are
    first needed."""

    def __init__(self, python: str, folder: Path, runs: int) -> None:
        self.python, self.folder, self.runs = python, folder, runs

    def once(self, work: Work) -> Spent:
        """One measurement."""
        folder = self.folder / work.store
        if not folder.exists():
            folder.mkdir(parents=True)
            self._fill(folder, work.store)
        if work.clears:
            shutil.rmtree(self.folder / "cache", ignore_errors=True)
        is_yardstick = work.label in (TYPER, TORCH)
        start = [self.python, "-c"] if is_yardstick else [self.python, "-m", "perfctl"]
        return run([*start, *work.words], folder)

    def _fill(self, folder: Path, store: str) -> None:
        source = RECORDED
        if store == "many":
            source = folder / "runs"
            sizes = [str(size) for size in (self.runs // PER_MODEL, PER_MODEL, 5, 100)]
            run([self.python, str(BENCH / "make_sweeps.py"), *sizes, str(source)], folder)
        run([self.python, "-m", "perfctl", "ingest", str(source)], folder)
        if store == "many":
            shutil.rmtree(source)


def medians(work: Work, sides: list[Side], rounds: int) -> Iterator[Spent]:
    """Of each side; they take turns, and the first round, which fills caches, does not count where
    more follow."""
    spent: list[list[Spent]] = [[] for _ in sides]
    rounds = min(rounds, work.rounds or rounds)
    for number in range(rounds + (rounds > 1)):
        for side, found in zip(sides, spent, strict=True):
            one = side.once(work)
            found += [one] if number or rounds == 1 else []
    for found in spent:
        seconds, waited = (
            statistics.median(times) for times in zip(*(one[:2] for one in found), strict=True)
        )
        yield Spent(seconds, waited, max(one.megabytes for one in found))


def main() -> None:
    """Measure and print, row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        metavar="WORD",
        action="append",
        help="only rows whose name has this in it (repeatable)",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each command is measured (default 3)"
    )
    parser.add_argument(
        "--runs", type=int, default=2000, help="runs of the large store (default 2000)"
    )
    parser.add_argument(
        "--against",
        metavar="PYTHON",
        help="interpreter with another perfctl, for a ratio of the two",
    )
    asked = parser.parse_args()
    works = [work for work in WORKS if any(word in work.label for word in asked.only or [""])]
    needed = {work.yardstick for work in works}
    base: dict[str, float] = {}
    more = ("| the other's CPU s | ratio " if asked.against else "") + "|"
    print(
        f"| command | CPU s | waited s | of its yardstick | peak memory, MB | to be reached {more}"
    )
    print("|---|---|---|---|---|---" + ("|---|---|" if asked.against else "|"), flush=True)
    with tempfile.TemporaryDirectory() as name:
        pythons = [sys.executable, *([asked.against] if asked.against else [])]
        sides = [
            Side(python, Path(name) / str(number), asked.runs)
            for number, python in enumerate(pythons)
        ]
        for work in WORKS:
            if work not in works and work.label not in needed:
                continue
            mine, *other = medians(work, sides, asked.rounds)
            base.setdefault(work.label, mine.seconds)
            cells = [
                work.label,
                f"{mine.seconds:.2f}",
                f"{mine.waited:.2f}",
                f"{mine.seconds / base[work.yardstick]:.2f}x",
            ]
            cells += [f"{mine.megabytes:.0f}", work.reach]
            cells += [
                text
                for one in other
                for text in (f"{one.seconds:.2f}", f"{mine.seconds / one.seconds:.2f}")
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
