"""Events of a Kineto trace, some 256 kB at a time, and the members of the trace beside them.

A trace is one JSON object, plain or gzipped, on one line or pretty-printed. What is read of it is
cut where one event ends and the next begins, and each block is decoded at once; the arguments of
events stay text until they are needed. A comma between two braces may also lie in an argument or a
string: what lies before it is then no complete array, so that the one before it is tried.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from perfctl.parsers.common.json import GZIP_MAGIC
from perfctl.parsers.common.lines import guess_encoding
from perfctl.records.errors import ReportError

TOOL = "torch"
CHUNK_BYTES = 1 << 18
BLOCK_BYTES = 1 << 18
"""Blocks of 2 MB take a third more CPU time, which goes to fresh pages of memory, of 8 MB twice."""
MAX_VALUE_BYTES = 64 << 20
"""Largest event or metadata; no profiler comes near it, so more means broken JSON."""
MAX_REPAIR_BYTES = 32 << 20
"""Of a longer text nothing is repaired: each backslash takes 0.2 us and 100 bytes."""
MAX_EXPANSION = 200
"""Real traces shrink 15 to 40 times in gzip; more than this, past MIN_BOMB_BYTES, is refused."""
MIN_BOMB_BYTES = 256 << 20
EXACT_TIMES_MAX = 2.0**43
"""Microseconds below which a binary float has whole nanoseconds."""
STOPPED = (
    "The profiled program was probably stopped while it wrote the file: run it again, or copy the "
    "file again"
)
BROKEN = (
    "Record the file again with the profiler; editing or joining files can lose a bracket or a "
    "quote"
)
_INT64 = 1 << 63
_DIGITS_MAX = 20
_EDGES_TRIED = 8
_ENDS_TRIED = 2000
_REPAIRED_ENDS_TRIED = 20
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_PARTIAL = re.compile(rb"[-+.\w\\]{0,9}\s*\Z")
"""What a cut leaves of a number, a word or an escape."""
_TOKEN = re.compile(
    r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(-?(?:inf(?:inity)?|nan)\b)',
    re.DOTALL | re.IGNORECASE,
)
"""A string, or a bare inf or nan.

Possessive: a regular expression that may go back remembers each character, 150 bytes of memory
for one of a string."""
_FAULT = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|(\\)|[\x00-\x1f]')
"""In a string: an escape that is right; a lone backslash; a control character."""

Int64 = Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64 - 1)] | None
"""A number that fits into 64 bits; None where it is not given."""


class TraceEvent(msgspec.Struct, gc=False):
    """One element of ``traceEvents`` with the members that are read, whatever their types are."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


_EVENTS = msgspec.json.Decoder(list[TraceEvent])
_EXACT_EVENTS = msgspec.json.Decoder(list[TraceEvent], float_hook=str)
_BROKEN_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_METADATA = msgspec.json.Decoder(dict[str, Any], float_hook=str)


def parse_microseconds_as_ns(value: object) -> int | None:
    """Return microseconds, a number or the text of one, as ns; None if unusable."""
    if type(value) is float:
        return round(value * 1000) if -_INT64 < value < _INT64 else None
    if type(value) is int:
        number = value * 1000
    elif type(value) is str:
        try:
            decimal = Decimal(value)
            if decimal.adjusted() > _DIGITS_MAX:  # before an integer of a million digits is made
                return None
            number = round(decimal * 1000)
        except (ValueError, ArithmeticError):  # those of decimals among them
            return None
    else:
        return None
    return number if -_INT64 <= number < _INT64 else None


def parse_int64(value: object) -> int | None:
    """Return an integer, or the text of one, that fits into 64 bits; None for anything else."""
    if type(value) is str:
        try:
            value = int(value)
        except ValueError:
            return None
    return value if type(value) is int and -_INT64 <= value < _INT64 else None


class TraceStream:
    """One trace. Raises ReportError, naming the byte, when the file is cut off, broken, or a gzip
    bomb."""

    def __init__(self, path: Path) -> None:
        self.metadata: dict[str, Any] = {}
        """Members of the trace but its events; complete once all blocks are read. Numbers with a
        fraction are text."""
        self.repaired = False
        """Whether bare inf, nan, lone backslashes or characters had to be repaired."""
        self._path = path
        self._buffer = self._head = b""
        self._bytes = 0
        self._ended = False

    def iterate_event_blocks(self) -> Iterator[list[TraceEvent]]:
        """Yield the events, many at a time, in the order of the file."""
        with self._path.open("rb") as file:
            self._chunks = self._read_as_utf8(file)
            self._read_until_first_event()
            is_complete = False
            while not is_complete:
                self._fill_buffer(BLOCK_BYTES)
                is_last = self._ended
                decode = self._decode_last_events if is_last else self._decode_block
                events = decode(repair=False)
                if events is None:
                    events = decode(repair=True)
                if events is None:
                    self._raise_unless_unfinished()
                    self._fill_buffer(2 * len(self._buffer))
                else:
                    yield events
                    is_complete = is_last

    def _read_until_first_event(self) -> None:
        """Read up to the first event."""
        while not self._ended:
            self._fill_buffer(2 * len(self._buffer) or CHUNK_BYTES)
            for match in _ARRAY.finditer(self._buffer):
                self._head = self._buffer[: match.end()]
                text = self._head + b"]}"
                if any(self._decode_metadata(text, repair=repair) for repair in (False, True)):
                    self._buffer = self._buffer[match.end() :]
                    return
            if len(self._buffer) > MAX_VALUE_BYTES:
                raise self._make_error("broken JSON: its first 64 MiB hold no events", BROKEN)
        self._raise_unless_unfinished(before=b"")

    def _decode_block(self, *, repair: bool) -> list[TraceEvent] | None:
        """Return the events of the buffer but the last, which may go on in the next block."""
        for end, begin in islice(_find_object_boundaries(self._buffer), _EDGES_TRIED):
            events = self._decode_events(self._buffer[:end], repair=repair)
            if events is not None:
                self._buffer = self._buffer[begin:]
                return events
        return None

    def _decode_last_events(self, *, repair: bool) -> list[TraceEvent] | None:
        """Return the last events, where the array and the object around it end as they should."""
        end = len(self._buffer)
        for _ in range(_REPAIRED_ENDS_TRIED if repair else _ENDS_TRIED):
            end = self._buffer.rfind(b"]", 0, end)
            if end < 0:
                break
            if self._decode_metadata(self._head + self._buffer[end:], repair=repair):
                events = self._decode_events(self._buffer[:end], repair=repair)
                if events is not None:
                    return events
        return None

    def _decode_metadata(self, text: bytes, *, repair: bool) -> bool:
        """Keep the members of an object without its events; False where it is none."""
        try:
            members = _METADATA.decode(_repair_invalid_json(text) if repair else text)
        except _BROKEN_JSON:
            return False
        if members.get("traceEvents"):  # a second array, or no array
            return False
        self.repaired |= repair
        self.metadata = members
        return True

    def _decode_events(self, text: bytes, *, repair: bool) -> list[TraceEvent] | None:
        original = b"[%b]" % text
        array = _repair_invalid_json(original) if repair else original
        try:
            try:
                events = _EVENTS.decode(array)
                is_exact = all(
                    type(event.ts) is not float or event.ts < EXACT_TIMES_MAX for event in events
                )
            except msgspec.ValidationError:  # a number that no float can be
                is_exact = False
            if not is_exact:
                events = _EXACT_EVENTS.decode(array)
        except _BROKEN_JSON:
            return None
        self.repaired |= array != original
        return events

    def _raise_unless_unfinished(self, before: bytes = b'{"":[') -> None:
        """Raise for the fault in the buffer, unless what is not read yet may complete it.

        ``before``: what makes a JSON object of the buffer, which begins with an event.
        """
        text = _repair_invalid_json(self._buffer)
        fault, position = "it is not an object with one array of events", 0
        is_unfinished = not self._ended
        try:
            _METADATA.decode(before + text)
        except msgspec.DecodeError as error:
            fault, _, byte = str(error).removeprefix("JSON is malformed: ").partition(" (byte ")
            position = int(byte[:-1]) - len(before) if byte else 0
            is_partial = _PARTIAL.match(text, position) is not None and "trailing" not in fault
            is_unfinished = fault.endswith("truncated") or is_partial
        except (UnicodeDecodeError, RecursionError) as error:
            fault, is_unfinished = str(error), False
        if is_unfinished and not self._ended:
            if len(self._buffer) <= MAX_VALUE_BYTES:
                return
            fault = f"a value has more than {MAX_VALUE_BYTES >> 20} MiB"
        elif is_unfinished:
            raise self._make_error(
                f"the JSON is truncated at byte {self._bytes} of the JSON", STOPPED
            )
        byte_of_fault = self._bytes - len(self._buffer) + position
        raise self._make_error(f"broken JSON at byte {byte_of_fault}: {fault}", BROKEN)

    def _fill_buffer(self, min_bytes: int) -> None:
        """Read until the buffer has at least so many bytes, or the file ends."""
        parts, length = [self._buffer], len(self._buffer)
        while length < min_bytes and not self._ended:
            data = next(self._chunks, b"")
            parts.append(data)
            length += len(data)
            self._bytes += len(data)
            self._ended = not data
        self._buffer = b"".join(parts)

    def _read_as_utf8(self, file: BinaryIO) -> Iterator[bytes]:
        """Return the unpacked text in UTF-8, without a mark at its beginning."""
        chunks = self._read_unpacked_bytes(file)
        head = next(chunks, b"")
        encoding = guess_encoding(head)
        chunks = chain([head.removeprefix(codecs.BOM_UTF8)], chunks)
        if encoding.startswith("utf-8"):
            return chunks
        return (text.encode() for text in codecs.iterdecode(chunks, encoding, "replace"))

    def _read_unpacked_bytes(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the text, unpacked where it is gzipped."""
        is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        source = gzip.GzipFile(fileobj=file) if is_packed else file
        unpacked_bytes = 0
        try:
            while data := source.read(CHUNK_BYTES):
                unpacked_bytes += len(data)
                packed_bytes = file.tell()
                if unpacked_bytes > max(MIN_BOMB_BYTES, MAX_EXPANSION * packed_bytes):
                    raise self._make_error(
                        f"the gzip data unpacks to more than {MAX_EXPANSION} times its size "
                        f"({unpacked_bytes >> 20} MiB from {packed_bytes >> 10} KiB so far), which "
                        "no trace does",
                        "If it is a trace, unpack it with gzip and pass the plain JSON",
                    )
                yield data
        except EOFError:
            raise self._make_error(
                f"the gzip data is truncated at byte {self._bytes} of the JSON", STOPPED
            ) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            reason = f"the gzip data is damaged at byte {self._bytes} of the JSON ({error})"
            raise self._make_error(reason, "Copy the file again") from None

    def _make_error(self, reason: str, remedy: str) -> ReportError:
        return ReportError(self._path, TOOL, reason, remedy)


def _find_object_boundaries(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield, from the end, where an object ends and the next one begins, with a comma between."""
    begin = len(text)
    while (begin := text.rfind(b"{", 0, begin)) > 0:
        first = max(0, begin - 512)
        before = text[first:begin].rstrip()
        if before.endswith(b",") and (before := before[:-1].rstrip()).endswith(b"}"):
            yield first + len(before), begin


def _repair_invalid_json(text: bytes) -> bytes:
    """Return JSON with what it does not allow repaired: bare inf and nan and lone backslashes
    (Kineto wrote them before 2023), and characters that are no UTF-8."""
    if len(text) > MAX_REPAIR_BYTES:
        return text

    def repair_token(token: re.Match[str]) -> str:
        return "null" if token[1] else _FAULT.sub(repair_fault, token[0])

    def repair_fault(fault: re.Match[str]) -> str:
        if fault[1]:
            return fault[1]
        return r"\\" if fault[2] else f"\\u{ord(fault[0]):04x}"

    return _TOKEN.sub(repair_token, text.decode("utf-8", "replace")).encode()
