"""Reads a large JSON object, plain or gzipped, one array element at a time and in little memory."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from perfctl.parsers.text.lines import encoding_of, readable
from perfctl.records.errors import ReportError

CHUNK_BYTES = 1 << 20
MAX_VALUE_CHARS = 64 << 20
"""Largest event or metadata value, in bytes; no profiler comes near it, so more means
broken JSON."""
MAX_REPAIR_CHARS = 32 << 20
"""Of a longer value nothing is repaired: each backslash takes 0.2 us and 100 bytes."""
MAX_EXPANSION = 200
"""Real traces shrink 15 to 40 times in gzip; more than this, past MIN_BOMB_BYTES, is refused."""
MIN_BOMB_BYTES = 256 << 20

GZIP_MAGIC = b"\x1f\x8b"
STOPPED = (
    "The profiled program was probably stopped while it wrote the file: run it again, or copy the "
    "file again"
)
BROKEN = (
    "Record the file again with the profiler; editing or joining files can lose a bracket or a "
    "quote"
)

_SPACE = re.compile(r"[ \t\r\n]*").match
_GAP = re.compile(r"[ \t\r\n,]*").match
_STRING_OR_BARE = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(-?(?:inf|nan)\b)', re.DOTALL)
"""Possessive: a regular expression that may go back remembers each character, 150 bytes of memory
for one of a string."""
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4}|(?:u[0-9a-fA-F]{0,3})?\Z)|\\')
"""A token at the end of the text may continue in the next chunk, so it is not repaired yet."""
_NEAR_END = 64
"""A fault this near the end of the text may be a token that the next chunk completes."""

Take = Callable[[str, int], tuple[int, int]]
"""A text and where an element, or the space before it, begins -> where the first begins that was
not taken, and how many were. Only whole elements may be taken."""

LIMIT = 64 << 20
"""Largest file in bytes; its objects take some ten times as much memory."""

_LARGEST = 2**63
R = TypeVar("R")


def peek(head: bytes) -> str:
    """Decode the first bytes of a file, unpacked if gzipped; "" if that is not possible."""
    if head.startswith(GZIP_MAGIC):
        try:
            head = zlib.decompressobj(31).decompress(head, 1 << 18)
        except zlib.error:
            return ""
    return head.decode(encoding_of(head), "replace").removeprefix("\ufeff")


class JsonStream:
    """Iterates over the members of one JSON object; the elements of one array come singly. Numbers
    with a fraction come out as their text, so that nothing is lost to binary floats. Raises
    ReportError, naming the event and the byte, when the file is cut off, broken, or a gzip bomb.

    ``take`` may read elements of the array from the text itself, which then do not come out."""

    def __init__(self, path: Path, tool: str, array: str, take: Take | None = None) -> None:
        self._path, self._tool, self._array = path, tool, array
        self._take = take
        self._decode = json.JSONDecoder(parse_float=str, strict=False).raw_decode
        self._text = ""
        self._at = self._bytes = self._elements = 0
        self._ended = False
        self.repaired = False
        """True when bare inf, nan or lone backslashes had to be repaired to read the file."""

    def members(self) -> Iterator[tuple[str, Any]]:
        """(key, value) of each member; for the array, (key, element) once for each of
        its elements."""
        with self._path.open("rb") as file:
            self._chunks = self._read(file)
            first = next(self._chunks, b"")
            self._chunks = chain([first], self._chunks)
            encoding = encoding_of(first)
            self._decoder = codecs.getincrementaldecoder(
                "utf-8-sig" if encoding == "utf-8" else encoding
            )("replace")
            self._expect("{")
            while (mark := self._next(_GAP)) != "}":
                if mark != '"':
                    raise self._broken("a member name")
                key = self._value()
                self._expect(":")
                if key == self._array and self._next(_SPACE) == "[":
                    self._at += 1
                    for element in self._array_items():
                        yield key, element
                else:
                    yield key, self._value()
            self._at += 1
            if self._next(_SPACE):
                raise self._broken("the end of the file")

    def _array_items(self) -> Iterator[Any]:
        decode, take = self._decode, self._take
        while True:
            text, at = self._text, self._at
            try:
                while True:
                    if take is not None:
                        at, taken = take(text, at)
                        self._elements += taken
                    at = _GAP(text, at).end()  # type: ignore[union-attr]
                    if text[at] == "]":
                        self._at = at + 1
                        return
                    element, end = decode(text, at)
                    if type(element) is not dict and self._may_go_on(text, end):
                        break
                    at = end
                    self._elements += 1
                    yield element
            except (IndexError, ValueError, RecursionError):
                pass
            self._at = at  # the slow path: read more text, repair, or raise
            if self._next(_GAP) == "]":
                continue
            element = self._value()
            self._elements += 1
            yield element

    def _value(self) -> Any:
        want = CHUNK_BYTES
        while True:
            try:
                value, end = self._decode(self._text, _SPACE(self._text, self._at).end())  # type: ignore[union-attr]
                if not self._may_go_on(self._text, end):
                    self._at = end
                    return value
                fault, position = "Unterminated number", end
            except json.JSONDecodeError as error:
                fault, position = error.msg, error.pos
            except ValueError as error:  # an integer of more than 4300 digits
                raise self._broken(f"a value ({error})") from None
            except RecursionError:
                raise self._broken("a value (it is nested too deeply)") from None
            unfinished = fault.startswith("Unterminated") or position >= len(self._text) - _NEAR_END
            size = len(self._text) - self._at
            if unfinished and not self._ended and size < MAX_VALUE_CHARS:
                self._fill(want)
                want *= 2
            elif unfinished and size >= MAX_VALUE_CHARS:
                raise self._broken(f"a value of less than {MAX_VALUE_CHARS >> 20} MiB")
            elif (
                size > MAX_REPAIR_CHARS or not self._repair()
            ):  # a second repair changes nothing unless more text was read
                raise (
                    self._cut()
                    if unfinished and self._ended
                    else self._broken(f"a value ({fault})")
                )

    def _may_go_on(self, text: str, end: int) -> bool:
        """True for a number that may continue in the next chunk: "1" of "12", of "1.5",
        of "1e-7"."""
        return not self._ended and end + 4 > len(text) and text[end - 1] not in '"]}'

    def _repair(self) -> bool:
        """Kineto before 2023 wrote bare inf and nan, and Windows paths with lone backslashes."""
        text = self._text[self._at :]
        better = _STRING_OR_BARE.sub(_mended, text)
        if better == text:
            return False
        self._text, self._at, self.repaired = better, 0, True
        return True

    def _next(self, skip: Any) -> str:
        """The next character after what ``skip`` passes over, not consumed; "" at the end of a
        whole file."""
        while True:
            self._at = skip(self._text, self._at).end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._fill(CHUNK_BYTES)

    def _expect(self, mark: str) -> None:
        if self._next(_SPACE) != mark:
            raise self._broken(f"'{mark}'")
        self._at += 1

    def _fill(self, want: int) -> None:
        parts = [self._text[self._at :]]
        while want > 0:
            data = next(self._chunks, b"")
            self._bytes += len(data)
            want -= len(data)
            parts.append(self._decoder.decode(data, final=not data))
            if not data:
                self._ended = True
                break
        self._text, self._at = "".join(parts), 0

    def _read(self, file: Any) -> Iterator[bytes]:
        data = file.read(CHUNK_BYTES)
        if not data.startswith(GZIP_MAGIC):
            while data:
                yield data
                data = file.read(CHUNK_BYTES)
            return
        try:
            yield from self._unzip(file, data)
        except zlib.error as error:
            raise self._error(
                f"the gzip data is damaged{self._position()} ({error})", "Copy the file again"
            ) from None

    def _unzip(self, file: Any, data: bytes) -> Iterator[bytes]:
        zipped = zlib.decompressobj(31)
        packed = unpacked = 0
        while data:
            packed += len(data)
            while data:
                if zipped.eof:  # padding, or a further member
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    zipped = zlib.decompressobj(31)
                unpacked_bytes = zipped.decompress(data, CHUNK_BYTES)
                unpacked += len(unpacked_bytes)
                self._check_expansion(packed, unpacked)
                if unpacked_bytes:
                    yield unpacked_bytes
                data = zipped.unused_data if zipped.eof else zipped.unconsumed_tail
            data = file.read(1 << 16)
        while not zipped.eof and (
            unpacked_bytes := zipped.decompress(zipped.unconsumed_tail, CHUNK_BYTES)
        ):
            yield unpacked_bytes
        if not zipped.eof:
            raise self._cut("the gzip data is")

    def _check_expansion(self, packed: int, unpacked: int) -> None:
        if unpacked > MIN_BOMB_BYTES and unpacked > MAX_EXPANSION * packed:
            sizes = f"{unpacked >> 20} MiB from {packed >> 10} KiB so far"
            reason = (
                f"the gzip data unpacks to more than {MAX_EXPANSION} times its size ({sizes}); no "
                "trace does that"
            )
            raise self._error(
                reason, "If it is a trace, unpack it with gzip and pass the plain JSON"
            )

    def _position(self) -> str:
        after = f" after {self._elements} complete events," if self._elements else ""
        return f"{after} at byte {self._bytes} of the JSON" if self._bytes else after.rstrip(",")

    def _cut(self, what: str = "the JSON is") -> ReportError:
        return self._error(f"{what} cut off{self._position()}", STOPPED)

    def _broken(self, wanted: str) -> ReportError:
        if self._ended and self._at >= len(self._text):
            return self._cut()
        # repairs make it longer
        byte = max(0, self._bytes - len(self._text[self._at :].encode("utf-8", "replace")))
        return self._error(
            f"broken JSON after {self._elements} complete events, at byte {byte}: expected "
            f"{wanted}",
            BROKEN,
        )

    def _error(self, reason: str, remedy: str) -> ReportError:
        return ReportError(self._path, self._tool, reason, remedy)


def _mended(found: re.Match[str]) -> str:
    """null for a bare inf or nan; a string with its lone backslashes doubled."""
    if found[1]:
        return "null"
    return _ESCAPE.sub(lambda escape: escape[0] if escape[1] is not None else "\\\\", found[0])


def read_whole(path: Path, tool: str, remedy: str) -> Any:
    """Return the content of the file. Raises ReportError with ``remedy`` when it is too long, cut
    off, or not JSON."""
    with readable(path, tool, remedy):
        size = path.stat().st_size
        if size > LIMIT:
            raise ReportError(path, tool, f"{size:,} bytes of JSON are too many", remedy)
        data = path.read_bytes()
    try:
        return json.loads(
            data.decode(encoding_of(data), "replace").lstrip("\ufeff"), parse_constant=str
        )
    except (ValueError, RecursionError) as error:
        reason = f"it is not complete JSON ({str(error)[:200] or 'nested too deep'})"
        raise ReportError(path, tool, reason, remedy) from error


def typed(kind: type[R], row: Mapping[str, Any]) -> R:
    """One record of ``kind``, a NamedTuple or dataclass. Raises TypeError, or OverflowError beyond
    64 bits."""
    made = kind(**row)
    for name, wanted in _fields(cast(Any, kind)).items():
        value = getattr(made, name)
        if not isinstance(value, wanted):
            raise TypeError(f"{kind.__name__}.{name} is {str(value)[:60]!r}")
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise OverflowError(f"{kind.__name__}.{name} does not fit 64 bits")
    return made


@lru_cache(maxsize=16)
def _fields(kind: type[Any]) -> dict[str, Any]:
    """A whole number stands for a float as well."""
    hints = get_type_hints(kind).items()
    return {
        name: hint | int if float in (hint, *getattr(hint, "__args__", ())) else hint
        for name, hint in hints
    }
