"""Reads text reports: encoding, lines up to a length limit, and the lines of other programs around
those of the tool. Such files are grown by ``>>`` in loops, cut off by ``kill``, redirected by
PowerShell (UTF-16, BOM, CRLF), and shared with whatever else the script prints."""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

from perfctl.parsers.common.pasted import Unwrap, find_decoration_removers
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, pluralize_count

LINE_LIMIT = 4 * 2**20
"""Longest line that is looked at, in characters; ncu's widest rows are below 100 thousand."""
BLOCK = 2**18
"""Read at a time; no more than LINE_LIMIT."""
HEAD_BYTES = 65536
"""Of a file's beginning, by which its line ends are told."""
TAIL_BYTES = 16384
"""Bytes of a file's end to check where its beginning is program output."""

_TOOL_LINE = re.compile(r"==(PROF|ERROR|WARNING)== ?(.*)")
_KEPT_LINES = 1000
LINES = 1_000_000
"""Of a file: with one reading a line some 350 MB. A GPU read once a second has so many in
eleven days."""
_KEPT = 5
_SHOWN = 160
Read = Callable[[int], str]
"""Returns some so many characters more, or fewer; "" at the end."""


_GPU_LINE = re.compile(
    r"\W{0,8}(?:(?:Detected|Found|Selected|Using) )?(?:CUDA )?(?:GPU|device)"
    r"(?: \d{1,2}| name)?\s{0,20}[:=]\s{0,8}"
    r"((?:NVIDIA|Tesla|GeForce|Quadro) [\w .-]{0,60}\w)\s{0,8}"
    r"(?:[(,;\[] ?(?:(?:Compute |CC |SM[ _])(\d{1,2})\.?(\d)\b)?.*)?\s*",
    re.IGNORECASE,
)
"""A line in which a program names its GPU: "GPU: NVIDIA A100 (Compute 8.0, ...)"."""


@dataclass(slots=True)
class SurroundingLines:
    """The lines around the CSV."""

    tool_lines: Tally[tuple[str, str]] = field(default_factory=Tally)
    """(PROF, ERROR or WARNING; text) -> how often, in order of first appearance."""
    cut_rows: int = 0
    broken_rows: int = 0
    """Rows that do not fit their table, of nsys stats."""
    unended: int = 0
    """Tables of nsys stats at whose last row the file ends without a line end."""
    null_lines: int = 0
    """Lines with NUL bytes, which text has none of."""
    has_no_units: bool = False
    """A table lacks the row of units below its header."""
    first_line: str = ""
    gpus: set[tuple[str, str | None]] = field(default_factory=set)
    """(name, compute capability) of GPUs in the program's own output."""

    def describe_nul_lines(self) -> str | None:
        """What the lines with NUL bytes mean; None without any."""
        if not self.null_lines:
            return None
        lines = pluralize_count(self.null_lines, "line", "holds", "hold")
        return f"{lines} NUL bytes, so a part of the file was never written, or was lost"

    def add_non_csv_line(self, line: str) -> None:
        """Add one line that is not part of the CSV; pieces of a progress bar, separated by CR,
        count singly."""
        for part in filter(str.strip, line.split("\r")):
            self.first_line = self.first_line or part[:1000].strip()
            if len(self.gpus) < _KEPT_LINES and (match := _GPU_LINE.fullmatch(part)):
                self.gpus.add((match[1], f"{match[2]}.{match[3]}" if match[2] else None))
            if match := _TOOL_LINE.match(part):
                key = (match[1], match[2].strip()[:2000])
                if key in self.tool_lines or len(self.tool_lines) < _KEPT_LINES:
                    self.tool_lines[key] += 1


def guess_encoding(head: bytes) -> str:
    """The encoding of a text file, from its first bytes."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if head.startswith(b"\xef\xbb\xbf"):
        return "utf-8-sig"
    sample = head[:512]
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(sample) >= 4 and sample[first::2].count(0) > len(sample) // 3:
            return encoding
    return "utf-8"


def read_beginning_and_end(path: Path, head: bytes) -> Iterator[str]:
    """Yield the beginning of a text file and its end ("" where ``head`` is the whole file), for
    sniffing: a program may print much before the tool's first line."""
    encoding = guess_encoding(head)
    if not head or (encoding == "utf-8" and b"\0" in head[:512]):
        return
    text = head.decode(encoding, "replace")
    line_end = "\r" if has_only_cr_line_ends(text) else "\r\n"
    steps = find_decoration_removers(text)
    yield apply_decoration_removers(text, steps).replace(line_end, "\n")
    tail = b""
    with suppress(OSError), path.open("rb") as file:
        if (size := path.stat().st_size) > len(head):
            file.seek(max(0, (size - TAIL_BYTES) & ~1))
            tail = file.read(TAIL_BYTES + 2)
    text = tail.decode(encoding.removesuffix("-sig"), "replace")
    yield apply_decoration_removers(text, steps).replace(line_end, "\n")


def apply_decoration_removers(text: str, steps: Sequence[Unwrap]) -> str:
    """Return the text after the steps, one after another."""
    for step in steps:
        text = step(text)
    return text


def has_only_cr_line_ends(text: str) -> bool:
    """Return whether lines end with CR alone, as on old Macs and in what some spreadsheets save;
    not progress bars."""
    return "\r" in text and "\n" not in text


@contextmanager
def open_undecorated_text(path: Path) -> Iterator[Read]:
    """Open the file as text, without what was put around its lines (``pasted``); bytes that do not
    decode become U+FFFD. Lines end at "\n" and keep a "\r" before it; if its beginning has "\r"
    alone, that becomes "\n". Python's text files decode 8 KB at a time, which takes twice as
    long."""
    with path.open("rb", buffering=0) as file:
        head = file.read(HEAD_BYTES)
        encoding = guess_encoding(head)
        file.seek(0)
        beginning = head.decode(encoding, "replace")
        has_cr = has_only_cr_line_ends(beginning)
        decoder = codecs.getincrementaldecoder(encoding)("replace")

        def read(size: int) -> str:
            while data := file.read(size):
                if text := decoder.decode(data):  # else these bytes hold no whole character
                    return text.replace("\r", "\n") if has_cr else text
            return decoder.decode(b"", final=True)

        if steps := find_decoration_removers(beginning):
            text = "".join(iter(partial(read, BLOCK), ""))
            yield io.StringIO(apply_decoration_removers(text, steps), newline="").read
        else:
            yield read


class LineReader:
    """The lines of a file; one longer than LINE_LIMIT is dropped and counted, never held whole."""

    def __init__(self, read: Read, log: SurroundingLines) -> None:
        self._read, self._log = read, log
        self._lines: list[str] = [""]
        """What was read last, without the "\n"; the last may go on in what is not read yet."""
        self._at = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while self._at == len(self._lines) - 1:
            if not self._read_block():
                line, self._lines[-1] = self._lines[-1], ""
                if not line:
                    raise StopIteration
                return line
        self._at += 1
        return self._lines[self._at - 1] + "\n"

    def pop_suffixes_after_prefix(self, prefix: str) -> list[str]:
        """What follows ``prefix`` in the lines straight ahead that begin with it, without the "\n";
        they are taken. [] also where the next line is not read yet."""
        endings: list[str] = []
        for line in islice(self._lines, self._at, len(self._lines) - 1):
            ending = line.removeprefix(prefix)  # a third of the time of startswith and a slice
            if len(ending) == len(line):
                break
            endings.append(ending)
        self._at += len(endings)
        return endings

    def _read_block(self) -> bool:
        """Read the next lines; False at the end of the file."""
        text = self._read(BLOCK)
        if "\0" in text:
            self._log.null_lines += sum("\0" in line for line in text.split("\n"))
        self._lines, self._at = (self._lines[-1] + text).split("\n"), 0
        # with its "\n", or what will follow
        if len(self._lines[0]) >= LINE_LIMIT:
            self._log.cut_rows += 1
            while len(self._lines) == 1 and (following := self._read(BLOCK)):
                self._lines = following.split("\n")
            self._lines[0] = ""
            self._at = min(1, len(self._lines) - 1)
        return bool(text)


class ToolTextFile:
    """The lines of one file. Raises ReportError when there are too many."""

    def __init__(self, path: Path, tool: str) -> None:
        self.path, self._tool = path, tool
        self.ends_whole = True
        """False once the last line has been seen without its end."""
        self.line = 0
        """Number of the line that was read last, from 1."""
        self._log = SurroundingLines()
        self._strays: list[str] = []
        self._stray_count = 0

    def __iter__(self) -> Iterator[str]:
        """Lines without their ends; blank lines too. Lines with NUL bytes are strays."""
        with open_undecorated_text(self.path) as read:
            for number, line in enumerate(LineReader(read, self._log), 1):
                self.line, self.ends_whole = number, line.endswith("\n")
                line = line.rstrip("\r\n")
                if number > LINES:
                    reason = f"it has more than {LINES:,} lines, which do not fit into memory"
                    remedy = "Pass a part of the file (head, tail) or every tenth sample"
                    raise ReportError(self.path, self._tool, reason, remedy)
                if "\0" in line:
                    self.record_stray_line(line)
                else:
                    yield line

    def record_stray_line(self, line: str) -> None:
        """Set aside a line that is not the tool's."""
        self._stray_count += 1
        if len(self._strays) < _KEPT:
            self._strays.append(
                "".join(c if c.isprintable() else "?" for c in line.strip()[:_SHOWN])
            )

    def find_unwritten_part_gaps(self, quantity: str) -> Iterator[Gap]:
        """What may be missing: a part of the file that was never written."""
        if holes := self._log.describe_nul_lines():
            yield Gap(quantity, "unreadable", holes)

    def make_skipped_lines_diagnostics(self) -> Iterator[Diagnostic]:
        """What was left out."""
        if count := self._stray_count:
            examples = "; ".join(f"'{line}'" for line in self._strays)
            text = f"{count} of {max(self.line, count)} lines are not samples, such as {examples}"
            yield Diagnostic("info", "perfctl", text)
        if count := self._log.cut_rows:
            text = f"{count} lines longer than 4 million characters were skipped"
            yield Diagnostic("warning", "perfctl", text)


@lru_cache(maxsize=2)
def decode_head_lines(head: bytes) -> list[str]:
    """The first lines of a file, for sniffing; lines with NUL bytes are left out. One parser after
    another asks for them."""
    text = head.decode(guess_encoding(head), "replace")
    text = apply_decoration_removers(text, find_decoration_removers(text))
    return [line for line in text.splitlines()[:400] if "\0" not in line]
