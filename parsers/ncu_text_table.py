"""One table of ncu's console text: a ruler of dashes gives the columns; long cells continue in the next row.

Up to 2022.3 the details page has columns of 70, 15 and 30 characters; a longer metric name is broken hard and goes on in a row
of its own. Long values are broken between words. Later tables are as wide as their cells. Numbers stand at the right edge,
so a row that does not end at the edge of its table has been cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

METRIC_COLUMNS = ("Metric Name", "Metric Unit", "Metric Value")
SUMMARY_COLUMNS = ("Metric Name", "Metric Unit", "Minimum", "Maximum", "Average")

_RULER = re.compile(r" *-{3,}(?: -{3,})+\s*")
_NUMBER = re.compile(r"[0-9.,+-]+")
_LONGEST_RULER = 4000
_MOST_LINES = 200_000


def spans_of(line: str) -> tuple[tuple[int, int], ...]:
    """Columns (from, to) of a ruler; empty for any other line."""
    if len(line) > _LONGEST_RULER or "---" not in line or not _RULER.fullmatch(line):
        return ()
    return tuple((match.start(), match.end()) for match in re.finditer("-+", line))


class TextTable:
    """Takes the lines below a ruler until the table ends."""

    def __init__(
        self, spans: Sequence[tuple[int, int]], ruler: str, *, open_above: bool = False, by_left: bool = False
    ) -> None:
        self._spans, self._ruler = spans, ruler
        self._closes = not open_above
        """Whether a second ruler ends the table; one whose header is above its only ruler ends with a blank line."""
        self._by_left = by_left
        self._cells: list[list[str]] = []
        self._header = False
        self._closed = False
        self.broken = 0
        """Rows that were cut off or do not fit the columns."""

    def take(self, line: str) -> bool:
        """Take in one line; False when the table ended before it."""
        if self._closed:
            return False
        text = line.rstrip()
        if not text:
            self._closed = line.endswith("\n")  # a blank line without its line end may be a cut row
            return not self._closed
        if text == self._ruler:
            if self._header and not self._cells:
                self._closes = True  # the ruler between header and rows
            else:
                self._closed = True
            return True
        if self._is_foreign(text):
            self._closed = True
            return False
        self._take_row(text, whole=line.endswith("\n"))
        return True

    def unclosed(self) -> int:
        """1 when the text ended in the middle of this table."""
        return int(self._closes and not self._closed)

    def _is_foreign(self, text: str) -> bool:
        """Return whether the table has ended: a tool's line, a new section, or text left of the table."""
        left = self._spans[0][0]
        return text.startswith("==") or bool(text[:left].strip()) or text.lstrip().startswith("Section: ")

    def _take_row(self, text: str, *, whole: bool) -> None:
        cells = [text[start:end] for start, end in self._spans]
        if [cell.strip() for cell in cells[:2]] == ["Metric Name", "Metric Unit"]:
            self._header = True
            return
        between = "".join(text[end : end + 1] for _, end in self._spans)
        if between.strip() or len(self._cells) >= _MOST_LINES or not self._is_whole(text, cells, whole=whole):
            self.broken += 1
            return
        self._cells.append(cells)

    def _is_whole(self, text: str, cells: list[str], *, whole: bool) -> bool:
        if self._by_left:
            return whole
        if not cells[-1].strip():  # a name that continues, or a metric without a value
            return whole
        return len(text) == self._spans[-1][1]

    def rows(self) -> list[list[str]]:
        """The rows with their broken cells put together again."""
        found: list[list[str]] = []
        full = False
        for cells in self._cells:
            if found and self._goes_on(cells, full=full):
                parts = zip(found[-1], cells, strict=True)
                found[-1] = [_joined(old, new, words=index > 1) for index, (old, new) in enumerate(parts)]
            else:
                found.append([cell.strip() for cell in cells])
            full = self._is_full(cells)
        if found and not self._closed and ((full and not self._fits()) or not _NUMBER.fullmatch(found[-1][-1])):
            del found[-1]  # the text ends here: the rest of this row may be missing
            self.broken += 1
        self.broken += sum(not row[0] for row in found)
        return [row for row in found if row[0]]

    def _is_full(self, cells: list[str]) -> bool:
        start, end = self._spans[0]
        return len(cells[0].rstrip()) >= end - start - 1

    def _goes_on(self, cells: list[str], *, full: bool) -> bool:
        """Return whether this line continues the row before: a name after a full column, a value where there is no name."""
        if self._by_left:
            return False
        name, *others = (cell.strip() for cell in cells)
        return not (name or others[0]) or (full and not any(others) and not self._fits())

    def _fits(self) -> bool:
        """Return whether columns are as wide as their cells (raw page, and after 2022.3), so that a full one does not continue."""
        return self._header or not self._closes


def _joined(old: str, new: str, *, words: bool) -> str:
    """A broken cell: values are broken between words, names anywhere."""
    new = new.strip()
    return f"{old} {new}" if words and old and new else old + new
