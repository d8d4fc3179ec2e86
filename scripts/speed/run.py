"""How fast reports become rows, beside a yardstick measured in the same run: ``make bench``

Each work and each yardstick is a process of its own, run alternately (A B A B ...), start-up
included. Times are medians of CPU seconds (user and system, of the process and its children), which
other work on the machine disturbs least. The table also shows the ratio of the elapsed times.
Inputs are made on the first run and kept in .bench/. Nothing is asserted: the table shows
the results.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure import CommandFailedError, spend

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
CSV = """
import csv, sys
with open(sys.argv[1], newline="") as file:
    next(line for line in file if line.startswith('"ID"'))
    rows = csv.reader(file)
    next(rows)
    table = [[float(cell.replace(",", "")) for cell in row[11:]] for row in rows]
"""
PANDAS = "import pandas, sys; pandas.read_csv(sys.argv[1], skiprows=2, thousands=',')"
PARSE = (
    "import perfctl, pathlib, sys; report = perfctl.parse(pathlib.Path(sys.argv[1])); "
    "list(report.counters)"
)
BOTH = """
import subprocess, sys
perfctl, store, files = [sys.executable, "-m", "perfctl"], sys.argv[1], sys.argv[2]
subprocess.run([*perfctl, "ingest", "--again", "--store", store, files], check=True)
subprocess.run([*perfctl, "report", "--store", store, "--out", store + ".html"], check=True)
"""
OPEN = """
import os, subprocess, sys
environment = {**os.environ, "XDG_CACHE_HOME": sys.argv[1]}
perfctl = [sys.executable, "-m", "perfctl", "open"]
subprocess.run([*perfctl, "--no-browser", sys.argv[2]], check=True, env=environment)
subprocess.run([*perfctl, "--forget"], check=True, env=environment)
"""
"""The forgetting is part of the time: one start of perfctl."""
JSON = "import json, sys; json.load(open(sys.argv[1]))"
HTA = "from hta.common.trace import parse_trace_file as parse; import sys; parse(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the table."""

    name: str
    command: Sequence[str]
    yardstick: str
    """What it is compared with: the name of another work, or of a yardstick."""
    reach: float | None
    """The ratio that is to be reached: at least this many times faster where ``faster``, else at
    most this many times the yardstick. None where the ratio is only shown."""
    faster: bool = False
    memory_mb: int | None = None
    """Peak memory to stay under."""


@dataclass(slots=True)
class Measured:
    """Times of the runs of one command."""

    seconds: list[float] = field(default_factory=list)
    """CPU time."""
    elapsed: list[float] = field(default_factory=list)
    memory_mb: float = 0.0
    trouble: str = ""

    def median(self) -> float:
        return statistics.median(self.seconds)


def main() -> None:
    """Make the inputs, measure in turn, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run (default 3)")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="size of the inputs; 0.1 for a quick look (default 1)",
    )
    parser.add_argument("--only", default="", help="only works whose name holds this text")
    parser.add_argument(
        "--data", type=Path, default=HERE.parents[1] / ".bench", help="where inputs are kept"
    )
    parser.add_argument(
        "--hta-python",
        default=PYTHON,
        help="an interpreter that has HTA; its pandas may be another one",
    )
    parser.add_argument(
        "--large",
        action="store_true",
        help="scaling.py at 100 times the work too: half an hour more",
    )
    asked = parser.parse_args()
    asked.data.mkdir(exist_ok=True)
    hta = asked.hta_python if has_hta(asked.hta_python) else None
    wanted = [work for work in works(asked.data, asked.scale, hta) if asked.only in work.name]
    yardsticks, skipped = known_yardsticks(asked.data, asked.scale, hta)
    commands: dict[str, Sequence[str]] = {}
    for work in wanted:
        if work.yardstick in yardsticks:
            commands[work.yardstick] = yardsticks[work.yardstick]
        commands[work.name] = work.command
    for command in commands.values():
        make_input(Path(command[-1]), asked.scale)
    measured = measure(commands, asked.rounds, asked.data)
    print_table(wanted, measured, skipped)
    for name in ("annotation", "calculator", "commands", "page", "sampling", "scaling"):
        if name.startswith(asked.only):
            print(flush=True)
            more = ["--large"] if name == "scaling" and asked.large else []
            subprocess.run([PYTHON, str(HERE / f"{name}.py"), *more], check=True)


def has_hta(python: str) -> bool:
    """Whether this interpreter can import HTA (HolisticTraceAnalysis on PyPI; best in its own
    environment)."""
    return (
        shutil.which(python) is not None
        and not subprocess.run([python, "-c", "import hta"], capture_output=True).returncode
    )


def inputs(scale: float) -> dict[str, Sequence[str]]:
    """File name -> the command that makes it, without the file."""

    def size(count: int) -> str:
        return str(max(1, int(count * scale)))

    return {
        f"nsys-1M-{scale:g}.sqlite": [str(HERE / "make_nsys.py"), size(1_000_000)],
        f"nsys-5M-{scale:g}.sqlite": [str(HERE / "make_nsys.py"), size(5_000_000)],
        f"ncu-long-{scale:g}.csv": [str(HERE / "make_ncu.py"), "long", size(10_000), "80"],
        f"ncu-raw-{scale:g}.csv": [str(HERE / "make_ncu.py"), "wide", size(1_000), "80"],
        f"kineto-10-{scale:g}.json": [str(HERE / "make_kineto.py"), size(7_000)],
        f"kineto-100-{scale:g}.json": [str(HERE / "make_kineto.py"), size(70_000)],
        f"kineto-300-{scale:g}.json": [str(HERE / "make_kineto.py"), size(210_000)],
        f"tasks-200-{scale:g}.runs": [str(HERE / "make_sweeps.py"), "1", size(200), "5", "100"],
    }


def works(data: Path, scale: float, hta: str | None) -> list[Work]:
    """The works in the order of the table; the input is the last argument of each command."""
    files = {name.rsplit("-", 1)[0]: str(data / name) for name in inputs(scale)}

    def ingest(kind: str) -> list[str]:
        return [
            PYTHON,
            "-m",
            "perfctl",
            "ingest",
            "--again",
            "--store",
            str(data / "store.db"),
            files[kind],
        ]

    small, large = "nsys SQLite, 1M kernels: ingest", "nsys SQLite, 5M kernels: ingest"
    trace, long_trace = "Kineto, 100 MB: ingest", "Kineto, 300 MB: ingest"
    tasks = "200 runs of a sweep: ingest, report"
    both = [PYTHON, "-c", BOTH, str(data / "store.db"), files["tasks-200"]]
    gather = [
        PYTHON,
        "-m",
        "perfctl",
        "slurm",
        "gather",
        "--store",
        str(data / "store.db"),
        files["tasks-200"],
    ]
    opened = {
        kind: [PYTHON, "-c", OPEN, str(data / "cache"), files[kind]]
        for kind in ("kineto-10", "kineto-100")
    }
    kineto = "HTA parse" if hta else "json.load (HTA is not installed)"
    return [
        Work(small, ingest("nsys-1M"), "nsys stats nvtxkernsum", 7, faster=True, memory_mb=300),
        Work(large, ingest("nsys-5M"), small, 5.5),
        Work("ncu long CSV, 10k x 80: ingest", ingest("ncu-long"), "pandas.read_csv", 2.5),
        Work(
            "ncu raw CSV, 1k x 80: parse",
            [PYTHON, "-c", PARSE, files["ncu-raw"]],
            "csv module, to floats",
            8,
        ),
        Work("ncu raw CSV, 1k x 80: ingest", ingest("ncu-raw"), "csv module, to floats", None),
        Work(trace, ingest("kineto-100"), kineto, 6 if hta else None, faster=True, memory_mb=260),
        Work(long_trace, ingest("kineto-300"), trace, 3.3, memory_mb=500),
        Work("Kineto, 10 MB: open", opened["kineto-10"], "import typer", None),
        Work("Kineto, 100 MB: open", opened["kineto-100"], kineto, None),
        Work(tasks, both, "import typer", None),
        Work("200 tasks of a sweep: slurm gather", gather, tasks, 1.2),
        Work("perfctl --help", [PYTHON, "-m", "perfctl", "--help"], "import typer", 1.5),
    ]


def known_yardsticks(
    data: Path, scale: float, hta: str | None
) -> tuple[dict[str, Sequence[str]], dict[str, str]]:
    """(name -> command, name -> why it is not measured)."""
    files = {name.rsplit("-", 1)[0]: str(data / name) for name in inputs(scale)}
    found: dict[str, Sequence[str]] = {
        "pandas.read_csv": [PYTHON, "-c", PANDAS, files["ncu-long"]],
        "csv module, to floats": [PYTHON, "-c", CSV, files["ncu-raw"]],
        "HTA parse": [hta or PYTHON, "-c", HTA, files["kineto-100"]],
        "json.load (HTA is not installed)": [PYTHON, "-c", JSON, files["kineto-100"]],
        "import typer": [PYTHON, "-c", "import typer"],
    }
    if shutil.which("nsys") is None:
        return found, {"nsys stats nvtxkernsum": "nsys is not installed"}
    listed = subprocess.run(
        ["nsys", "stats", "--help-reports"], capture_output=True, text=True, check=False
    ).stdout
    report = "nvtx_kern_sum" if "nvtx_kern_sum" in listed else "nvtxkernsum"  # renamed in 2023.1
    options = [
        "-q",
        "--force-overwrite",
        "true",
        "--report",
        report,
        "--format",
        "csv",
        "--output",
        str(data / "sums"),
    ]
    found["nsys stats nvtxkernsum"] = ["nsys", "stats", *options, files["nsys-1M"]]
    return found, {}


def make_input(path: Path, scale: float) -> None:
    """Make the input if it does not exist yet."""
    command = inputs(scale).get(path.name)
    if command is None or path.exists():
        return
    print(f"making {path.name}", file=sys.stderr, flush=True)
    part = path.with_name(f"{path.name}.part")
    subprocess.run([PYTHON, *command, str(part)], check=True)
    part.replace(path)


def measure(commands: dict[str, Sequence[str]], rounds: int, data: Path) -> dict[str, Measured]:
    """Run all in turn, ``rounds`` times; one that fails is not run again."""
    measured = {name: Measured() for name in commands}
    for number in range(rounds):
        for name, command in commands.items():
            if measured[name].trouble:
                continue
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            for store in data.glob("store.db*"):
                store.unlink()
            _run(command, measured[name])
    return measured


def _run(command: Sequence[str], into: Measured) -> None:
    try:
        spent = spend(command)
    except CommandFailedError as error:
        into.trouble = str(error)
        return
    into.seconds.append(spent.seconds)
    into.elapsed.append(spent.waited)
    into.memory_mb = max(into.memory_mb, spent.megabytes)


def print_table(wanted: list[Work], measured: dict[str, Measured], skipped: dict[str, str]) -> None:
    """Print one row per work."""
    rows = [("work", "CPU s", "MB", "yardstick", "its CPU s", "ratio", "elapsed", "reach", "")]
    rows += [_row(work, measured, skipped) for work in wanted]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _row(work: Work, measured: dict[str, Measured], skipped: dict[str, str]) -> tuple[str, ...]:
    mine, other = measured[work.name], measured.get(work.yardstick)
    if mine.trouble:
        return (work.name, "-", "-", work.yardstick, "-", "-", "-", "-", f"failed, {mine.trouble}")
    took = (work.name, f"{mine.median():.2f}", f"{mine.memory_mb:.0f}")
    memory = "" if work.memory_mb is None else f", under {work.memory_mb} MB"
    fits = work.memory_mb is None or mine.memory_mb < work.memory_mb
    if other is None or not other.seconds:
        why = skipped.get(work.yardstick) or (other.trouble if other else "it was not asked for")
        kept = f"; memory {_verdict(fits)}" if memory else ""
        return (
            *took,
            work.yardstick,
            "-",
            "-",
            "-",
            memory.removeprefix(", "),
            f"not judged: {why}{kept}",
        )
    ratio = _ratio(work, mine.seconds, other.seconds)
    shown = f"{ratio:.1f}x faster" if work.faster else f"{ratio:.1f}x"
    yard = (
        work.yardstick,
        f"{other.median():.2f}",
        shown,
        f"{_ratio(work, mine.elapsed, other.elapsed):.1f}x",
    )
    if work.reach is None:
        kept = f"; memory {_verdict(fits)}" if memory else ""
        return (*took, *yard, memory.removeprefix(", "), f"time not judged{kept}")
    good: Callable[[float, float], bool] = float.__ge__ if work.faster else float.__le__
    reach = f"{work.reach:g}x faster" if work.faster else f"at most {work.reach:g}x"
    return (*took, *yard, f"{reach}{memory}", _verdict(fits and good(ratio, float(work.reach))))


def _ratio(work: Work, mine: Sequence[float], other: Sequence[float]) -> float:
    a, b = statistics.median(mine), statistics.median(other)
    return b / a if work.faster else a / b


def _verdict(reached: bool) -> str:
    return "ok" if reached else "missed"


if __name__ == "__main__":
    main()
