"""Metric cells of one ncu file: compact in memory, and in a temporary file when there are too many.

A cell is three 4-byte numbers: launch, metric, printed text. Each distinct text is kept once. When more than
``TEXTS`` texts or ``CELLS`` cells are held at the end of a launch, they move to a temporary file as one part and
a new part begins: long counts rarely repeat, and 1 GB of CSV has millions of them.
"""

from __future__ import annotations

import json
import tempfile
import weakref
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import IO

from perfctl.parsers.errors import ReportError
from perfctl.parsers.units import StyleEvidence

TEXTS = 400_000
"""Distinct texts of a part, and one launch more: some 60 MB."""
CELLS = 4_000_000
"""Cells of a part, and one launch more: 48 MB."""
LAUNCHES = 100_000
"""Of a file; their names and facts stay in memory, some 2.5 KB each."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some cells, one array per item, and the texts that the numbers in ``text`` refer to."""

    launch: array[int]
    key: array[int]
    text: array[int]
    texts: list[str]


class _Numbers(dict[str, int]):
    """Printed text -> its number; a new text gets the next number and goes to ``texts``."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self._texts)
        self._texts.append(text)
        return number


class _Endings(dict[str, int]):
    """End of a line after the quote that opens its last cell -> number of that cell's text.

    Raises KeyError when the end is not one complete cell without quotes inside.
    """

    def __init__(self, ids: _Numbers) -> None:
        super().__init__()
        self._ids = ids

    def __missing__(self, ending: str) -> int:
        text = ending.rstrip("\r\n,")
        if text.find('"') != len(text) - 1:
            raise KeyError(ending)
        number = self[ending] = self._ids[text[:-1]]
        return number


class Cells:
    """All cells of a file, in its order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.launch, self.key, self.text = array("I"), array("I"), array("I")
        self.texts: list[str] = []
        self.ids = _Numbers(self.texts)
        """Text -> its number in this part."""
        self.endings = _Endings(self.ids)
        """The same for readers of whole lines. Emptied with the texts."""
        self._evidence = StyleEvidence()
        self._file: IO[bytes] | None = None
        self._sizes: list[tuple[int, int]] = []
        """Of each part in the file: cells, bytes of its texts."""

    def end(self, launch: int) -> None:
        """All cells since the last call are of this launch.

        Raises ReportError where there are too many launches, or the temporary file has no room.
        """
        self.launch.extend(repeat(launch, len(self.key) - len(self.launch)))
        if len(self.texts) > TEXTS or len(self.key) > CELLS:
            self._put_away()
        if launch >= LAUNCHES:
            reason = f"it holds more than {LAUNCHES:,} launches, which do not fit into memory"
            raise ReportError(
                self._path, "ncu", reason, "Split it between two launches and put the header above each part"
            )

    def evidence(self) -> StyleEvidence:
        """Evidence of all texts for the decimal style; call it once, at the end."""
        for text in self.texts:
            self._evidence.add(text)
        return self._evidence

    def parts(self) -> Iterator[Part]:
        """Yield the parts in order; one at a time is in memory."""
        at = 0
        for count, size in self._sizes:
            assert self._file is not None
            self._file.seek(at)
            launch, key, text = array("I"), array("I"), array("I")
            for numbers in (launch, key, text):
                numbers.fromfile(self._file, count)
            texts = json.loads(self._file.read(size))
            at = self._file.tell()
            yield Part(launch, key, text, texts)
        yield Part(self.launch, self.key, self.text, self.texts)

    def _put_away(self) -> None:
        self.evidence()
        try:
            self._write(json.dumps(self.texts).encode("ascii"))
        except OSError as error:
            reason = (
                f"metrics that do not fit into memory cannot be written to {tempfile.gettempdir()} ({error.strerror})"
            )
            remedy = "Set TMPDIR to a folder with at least as much free space as the report has bytes"
            raise ReportError(self._path, "ncu", reason, remedy) from error
        for numbers in (self.launch, self.key, self.text):
            del numbers[:]
        for kept in (self.texts, self.ids, self.endings):
            kept.clear()

    def _write(self, texts: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="perfctl-ncu-")  # noqa: SIM115  # lives as long as the cells
            weakref.finalize(self, self._file.close)
        self._sizes.append((len(self.key), len(texts)))
        for numbers in (self.launch, self.key, self.text):
            numbers.tofile(self._file)
        self._file.write(texts)
        self._file.flush()
