"""Events of a Kineto trace, some 1 MB at a time, and the members of the trace beside them.

A trace is one JSON object, plain or gzipped, on one line or pretty-printed. What is read of it is
cut where one event ends and the next begins, and each block is decoded at once; the arguments of
events stay text until they are needed. A comma between two braces may also lie in an argument or a
string: what lies before it is then no complete array, so that the one before it is tried.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from perfctl.parsers.common.json import GZIP_MAGIC
from perfctl.parsers.common.lines import encoding_of
from perfctl.records.errors import ReportError

TOOL = "torch"
CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 1 << 20
"""Blocks of 8 MB take more than twice the CPU time: most of it goes to fresh pages of memory."""
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
_GAP = re.compile(r"[ \t\r\n,]*")
_ARRAY_BEGIN = '{"":['
_PARTIAL = re.compile(r"[-+.\w\\]{0,9}\s*\Z")
"""What a cut leaves of a number, a word or an escape."""
_TOKEN = re.compile(
    r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(-?(?:inf(?:inity)?|nan)\b)|(,(?=[ \t\r\n,]*[\]},]))',
    re.DOTALL | re.IGNORECASE,
)
"""A string, a bare inf or nan, or a comma too many.

Possessive: a regular expression that may go back remembers each character, 150 bytes of memory
for one of a string."""
_FAULT = re.compile(
    r'(\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
    r"|(\\u[0-9a-fA-F]{4})|(\\)|[\x00-\x1f]"
)
"""In a string: an escape that is right; half of a pair; a lone backslash; a control character."""


class Event(msgspec.Struct, gc=False):
    """One element of ``traceEvents`` with the members that are read, whatever their types are."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


_EVENTS = msgspec.json.Decoder(list[Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[Event], float_hook=str)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_BROKEN_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_METADATA = msgspec.json.Decoder(dict[str, Any], float_hook=str)


def nanoseconds(value: object) -> int | None:
    """Return microseconds, a number or the text of one, as ns; None if unusable."""
    if type(value) is float:
        number = round(value * 1000)
    elif type(value) is int:
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


def read_int64(value: object) -> int | None:
    """Return an integer, or the text of one, that fits into 64 bits; None for anything else."""
    if type(value) is str:
        try:
            value = int(value)
        except ValueError:
            return None
    return value if type(value) is int and -_INT64 <= value < _INT64 else None


class TraceStream:
    """One trace. Raises ReportError, naming the event and the byte, when the file is cut off,
    broken, or a gzip bomb."""

    def __init__(self, path: Path) -> None:
        self.metadata: dict[str, Any] = {}
        """Members of the trace but its events; complete once all blocks are read. Numbers with a
        fraction are text."""
        self.repaired = False
        """Whether bare inf, nan, lone backslashes, commas or characters had to be repaired."""
        self._path = path
        self._buffer = b""
        self._bytes = self._elements = 0
        self._ended = False

    def blocks(self) -> Iterator[list[Event]]:
        """Yield the events, many at a time, in the order of the file."""
        with self._path.open("rb") as file:
            self._chunks = self._read_utf8(file)
            head = self._read_head()
            is_whole = not head
            while not is_whole:
                self._fill(BLOCK_BYTES)
                is_last = self._ended
                events = None
                for repair in (False, True):
                    if events is None and is_last:
                        events = self._decode_tail(head, repair=repair)
                    elif events is None:
                        events = self._decode_block(repair=repair)
                if events is None:
                    self._raise_broken()
                    self._fill(2 * len(self._buffer))
                else:
                    yield events
                    is_whole = is_last

    def _read_head(self) -> bytes:
        """Return the text up to the events; empty where the trace has none."""
        while True:
            self._fill(2 * len(self._buffer) or CHUNK_BYTES)
            for match in _ARRAY.finditer(self._buffer):
                head = self._buffer[: match.end()]
                if any(self._decode_metadata(head + b"]}", repair=way) for way in (False, True)):
                    self._buffer = self._buffer[match.end() :]
                    return head
            if self._ended:
                break
            if len(self._buffer) > MAX_VALUE_BYTES:
                raise self._error("broken JSON: its first 64 MiB hold no events", BROKEN)
        if not any(self._decode_metadata(self._buffer, repair=way) for way in (False, True)):
            self._raise_broken(is_object=True)
        return b""

    def _decode_block(self, *, repair: bool) -> list[Event] | None:
        """Return the events of the buffer but the last, which may go on in the next block."""
        for end, begin in islice(_find_edges(self._buffer), _EDGES_TRIED):
            events = self._decode_events(self._buffer[:end], repair=repair)
            if events is not None:
                self._buffer = self._buffer[begin:]
                return events
        return None

    def _decode_tail(self, head: bytes, *, repair: bool) -> list[Event] | None:
        """Return the last events, where the array and the object around it end as they should."""
        end = len(self._buffer)
        for _ in range(_REPAIRED_ENDS_TRIED if repair else _ENDS_TRIED):
            end = self._buffer.rfind(b"]", 0, end)
            if end < 0:
                break
            if self._decode_metadata(head + self._buffer[end:], repair=repair):
                events = self._decode_events(self._buffer[:end], repair=repair)
                if events is not None:
                    return events
        return None

    def _decode_metadata(self, text: bytes, *, repair: bool) -> bool:
        """Keep the members of an object without its events; False where it is none."""
        try:
            members = _METADATA.decode(_repair(text) if repair else text)
        except _BROKEN_JSON:
            return False
        if members.get("traceEvents"):  # a second array, or no array
            return False
        self.repaired |= repair
        self.metadata = members
        return True

    def _decode_events(self, text: bytes, *, repair: bool) -> list[Event] | None:
        given = b"[%b]" % text
        array = _repair(given) if repair else given
        try:
            try:
                events = _EVENTS.decode(array)
                if any(type(event.ts) is float and event.ts >= EXACT_TIMES_MAX for event in events):
                    events = _EXACT_EVENTS.decode(array)
                self._elements += len(events)
            except msgspec.ValidationError:  # elements that are no objects, numbers out of range
                elements = list(map(bytes, _ELEMENTS.decode(array)))
                self._elements += len(elements)
                objects = b",".join(element for element in elements if element[:1] == b"{")
                events = _EXACT_EVENTS.decode(b"[%b]" % objects)
        except _BROKEN_JSON:
            return None
        self.repaired |= array != given
        return events

    def _raise_broken(self, *, is_object: bool = False) -> None:
        """Raise for the fault in the buffer, unless what is not read yet may complete it.

        ``is_object``: the buffer is a whole file, and not the rest of one from some event on.
        """
        text = _repair(self._buffer).decode("utf-8", "replace")
        decoder = JSONDecoder(strict=False)
        at = shift = 0
        elements = self._elements
        try:
            while not is_object:
                at = _GAP.match(text, at).end()  # type: ignore[union-attr]
                if text[at : at + 1] == "]":
                    break
                _, at = decoder.raw_decode(text, at)
                elements += 1
            if not is_object:
                shift = at - len(_ARRAY_BEGIN)
                decoder.decode(_ARRAY_BEGIN + text[at:])
            else:
                decoder.decode(text)
            fault, position = "it is no object with one array of events", 0
        except JSONDecodeError as error:
            fault, position = error.msg, error.pos + shift
        except (ValueError, RecursionError) as error:
            fault, position = str(error) or "it is nested too deeply", at
        is_partial = fault != "Extra data" and _PARTIAL.match(text, position) is not None
        is_unfinished = is_partial or fault.startswith("Unterminated")
        if not self._ended and (is_unfinished or shift):
            if len(self._buffer) <= MAX_VALUE_BYTES:
                return
            fault = f"it has more than {MAX_VALUE_BYTES >> 20} MiB"
        self._elements = elements
        if self._ended and is_unfinished:
            raise self._error(f"the JSON is cut off{self._position()}", STOPPED)
        byte = self._bytes - len(self._buffer) + len(text[: position if is_object else at].encode())
        raise self._error(
            f"broken JSON after {elements} complete events, at byte {byte}: expected a value "
            f"({fault})",
            BROKEN,
        )

    def _fill(self, size: int) -> None:
        """Read until the buffer has at least so many bytes, or the file ends."""
        parts, length = [self._buffer], len(self._buffer)
        while length < size and not self._ended:
            data = next(self._chunks, None)
            if data is None:
                self._ended = True
            else:
                parts.append(data)
                length += len(data)
        self._buffer = b"".join(parts)

    def _read_utf8(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the unpacked text in UTF-8, without a mark at its beginning."""
        decode = None
        for data in self._read(file):
            if not self._bytes:
                encoding = encoding_of(data)
                data = data.removeprefix(codecs.BOM_UTF8)
                if not encoding.startswith("utf-8"):
                    decode = codecs.getincrementaldecoder(encoding)("replace").decode
            text = data if decode is None else decode(data).encode()
            self._bytes += len(text)
            yield text

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        data = file.read(CHUNK_BYTES)
        if data.startswith(GZIP_MAGIC):
            try:
                yield from self._unzip(file, data)
            except zlib.error as error:
                reason = f"the gzip data is damaged{self._position()} ({error})"
                raise self._error(reason, "Copy the file again") from None
            return
        while data:
            yield data
            data = file.read(CHUNK_BYTES)

    def _unzip(self, file: BinaryIO, data: bytes) -> Iterator[bytes]:
        zipped = zlib.decompressobj(31)
        packed_bytes = unpacked_bytes = 0
        while data or (not zipped.eof and zipped.unconsumed_tail):
            packed_bytes += len(data)
            while data:
                if zipped.eof:  # padding, or a further member
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    zipped = zlib.decompressobj(31)
                unpacked = zipped.decompress(data, CHUNK_BYTES)
                unpacked_bytes += len(unpacked)
                if unpacked_bytes > max(MIN_BOMB_BYTES, MAX_EXPANSION * packed_bytes):
                    raise self._error(
                        f"the gzip data unpacks to more than {MAX_EXPANSION} times its size "
                        f"({unpacked_bytes >> 20} MiB from {packed_bytes >> 10} KiB so far); no "
                        "trace does that",
                        "If it is a trace, unpack it with gzip and pass the plain JSON",
                    )
                if unpacked:
                    yield unpacked
                data = zipped.unused_data if zipped.eof else zipped.unconsumed_tail
            data = file.read(1 << 16)
        while not zipped.eof and (unpacked := zipped.decompress(b"", CHUNK_BYTES)):
            yield unpacked
        if not zipped.eof:
            raise self._error(f"the gzip data is cut off{self._position()}", STOPPED)

    def _position(self) -> str:
        after = f" after {self._elements} complete events," if self._elements else ""
        return f"{after} at byte {self._bytes} of the JSON" if self._bytes else after.rstrip(",")

    def _error(self, reason: str, remedy: str) -> ReportError:
        return ReportError(self._path, TOOL, reason, remedy)


def _find_edges(text: bytes) -> Iterator[tuple[int, int]]:
    """Yield, from the end, where an object ends and the next one begins, with a comma between."""
    begin = len(text)
    while (begin := text.rfind(b"{", 0, begin)) > 0:
        first = max(0, begin - 512)
        before = text[first:begin].rstrip()
        if before.endswith(b",") and (before := before[:-1].rstrip()).endswith(b"}"):
            yield first + len(before), begin


def _repair(text: bytes) -> bytes:
    """Return JSON with what it does not allow repaired: bare inf and nan and lone backslashes
    (Kineto wrote them before 2023), commas too many, and characters that are no UTF-8."""
    if len(text) > MAX_REPAIR_BYTES:
        return text
    return _TOKEN.sub(_repair_token, text.decode("utf-8", "replace")).encode()


def _repair_token(match: re.Match[str]) -> str:
    """Return null for a bare inf or nan, nothing for a comma too many; a string with what JSON does
    not allow escaped."""
    if match[1]:
        return "null"
    return "" if match[2] else _FAULT.sub(_repair_escape, match[0])


def _repair_escape(match: re.Match[str]) -> str:
    if match[1]:
        return match[0]
    if match[2]:
        return "\\ufffd"
    return r"\\" if match[3] else f"\\u{ord(match[0]):04x}"
