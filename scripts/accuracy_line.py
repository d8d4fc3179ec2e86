"""One line of the table of ``make accuracy``."""

from __future__ import annotations

from dataclasses import dataclass


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
