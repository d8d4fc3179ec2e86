"""What the tables of ``make accuracy`` share: their lines, and the options of their scripts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def shared_folder() -> Path:
    """Return the folder of public measurements."""
    return Path(os.environ.get("PERFCTL_SHARED", ROOT.parent / "shared")).resolve()


def parser_for(
    text: str | None, shared: str = "", traces: Path | None = None
) -> argparse.ArgumentParser:
    """Return the parser of a script with this docstring. ``shared``: the data set that it reads;
    ``traces``: where traced operations are kept, for scripts that trace."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if shared:
        help_ = f"folder that holds {shared}"
        parser.add_argument("--shared", type=Path, default=shared_folder(), help=help_)
    if traces is not None:
        help_ = "where traced operations are kept"
        parser.add_argument("--traces", type=Path, default=traces, help=help_)
    return parser


@dataclass
class Line:
    """What was measured, the result and the target."""

    what: str
    reached: str
    wanted: str
    """Empty: stands beside another line, and nothing is wanted."""
    good: bool
    note: str = ""

    def text(self) -> str:
        mark = "" if not self.wanted else "yes" if self.good else "NO"
        return f"{self.what:62}{self.reached:>14}{self.wanted:>14}{mark:>5}  {self.note}".rstrip()


def count_line(what: str, right: int, count: int, wanted: int | None = None) -> Line:
    """Return a line for ``right`` of ``count``, all of which are wanted, or as many as stated."""
    target = f"all {count}" if wanted is None else f"{wanted} of {wanted}"
    good = right == count and wanted in (None, count)
    return Line(what, f"{right} of {count}", target, good)


def print_lines(lines: Iterable[Line]) -> int:
    """Print each line when it is known; return 1 when one misses its target."""
    good = True
    for line in lines:
        print(line.text(), flush=True)
        good &= line.good
    return 0 if good else 1


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"
