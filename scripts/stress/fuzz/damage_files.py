"""Damages the other binary reports by their structure: report files of Nsight Compute, pickles,
archives and gzip files."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None,
    -1,
    0,
    1,
    2**63 - 1,
    2**63,
    -(2**63),
    2**200,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "\ud800",
    "\0",
    "\u202e",
    "9" * 400,
    [],
    {},
    [[]],
    (),
    True,
    {"x": []},
    "y" * 99_999,
)

Damage = Callable[[Path, Path, Random], list[str]]


def of_bytes(data: bytearray, random: Random) -> str:
    """Anywhere in the file."""
    how = random.choice(("bits", "bits", "noise", "cut", "hole", "zeros", "twice", "length"))
    at = random.randrange(max(1, len(data)))
    size = random.choice((1, 4, 64, 1024))
    if how == "bits":
        for _ in range(random.choice((1, 1, 4, 30))):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif how == "noise":
        data[at : at + size] = random.randbytes(size)
    elif how == "cut":
        del data[at:]
    elif how == "hole":
        del data[at : at + size]
    elif how == "zeros":
        data[at : at + size] = bytes(size)
    elif how == "twice":
        data[at:at] = data[at : at + size]
    else:
        data[at : at + 4] = struct.pack("<I", random.choice((0, 1, len(data), 2**31, 2**32 - 1)))
    return f"bytes, {how}"


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _fields(message: bytes) -> list[tuple[int, int, Any]]:
    """(number, wire type, value) of a protobuf message; raises where it is none."""
    found, at = [], 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            found.append((tag >> 3, kind, value))
            continue
        length, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + length > len(message) or not tag >> 3:
            raise ValueError
        found.append((tag >> 3, kind, message[at : at + length]))
        at += length
    return found


def _message(fields: list[tuple[int, int, Any]]) -> bytes:
    out = bytearray()
    for number, kind, value in fields:
        out += _as_varint(number << 3 | kind)
        out += (
            _as_varint(value)
            if kind == 0
            else (_as_varint(len(value)) if kind == 2 else b"") + value
        )
    return bytes(out)


def _changed(message: bytes, random: Random, notes: list[str], depth: int = 0) -> bytes:
    """The message with one change in it or in a message within it; what encloses it fits again."""
    fields = _fields(message)
    if not fields:
        return b"\x08\x01"
    at = random.randrange(len(fields))
    number, kind, value = fields[at]
    if kind == 2 and value and random.random() < 0.9:
        try:
            fields[at] = number, kind, _changed(value, random, notes, depth + 1)
            return _message(fields)
        except (ValueError, LookupError):
            pass
    how = random.choice(("dropped", "doubled", "value", "value", "value", "number", "swapped"))
    notes.append(f"field {number} {how} at depth {depth}")
    if how == "dropped":
        del fields[at]
    elif how == "doubled":
        fields.insert(at, fields[at])
    elif how == "number":
        fields[at] = random.randrange(1, 30), kind, value
    elif how == "swapped":
        fields[at], fields[0] = fields[0], fields[at]
    elif kind == 0:
        fields[at] = number, kind, random.choice((0, 1, value + 1, 2**31, 2**63 - 1, 2**64 - 1))
    elif kind == 2:
        data = bytearray(value or b"x")
        fields[at] = (
            number,
            kind,
            random.choice(
                (
                    b"",
                    b"\xff\xfe",
                    b"n" * 70_000,
                    bytes(data[: len(data) // 2]),
                    random.randbytes(8),
                )
            ),
        )
    else:
        odd = (
            bytes(len(value)),
            b"\xff" * len(value),
            struct.pack("<d", float("inf"))[-len(value) :],
            random.randbytes(len(value)),
        )
        fields[at] = number, kind, random.choice(odd)
    return _message(fields)


def ncu_rep(source: Path, target: Path, random: Random) -> list[str]:
    """A block of the file missing, twice or moved, or one field in the messages of one."""
    data = source.read_bytes()
    notes: list[str] = []
    if random.random() < 0.3:
        changed = bytearray(data)
        notes.append(of_bytes(changed, random))
        target.write_bytes(changed)
        return notes
    head = 8 + struct.unpack("<I", data[4:8])[0]
    blocks, at = [], head
    while at + 4 <= len(data):
        size = struct.unpack("<I", data[at : at + 4])[0]
        header = data[at + 4 : at + 4 + size]
        payload = next(
            (value for number, kind, value in _fields(header) if (number, kind) == (5, 0)), 0
        )
        blocks.append((header, data[at + 4 + size : at + 4 + size + payload]))
        at += 4 + size + payload
    one = random.randrange(len(blocks))
    how = random.choice(
        (
            "payload",
            "payload",
            "payload",
            "payload",
            "header",
            "dropped",
            "doubled",
            "moved",
            "emptied",
        )
    )
    header, payload = blocks[one]
    if how == "payload":
        header, payload = header, _payload(payload, random, notes)
        fields = [
            (n, k, len(payload)) if (n, k) == (5, 0) else (n, k, v) for n, k, v in _fields(header)
        ]
        blocks[one] = _message(fields), payload
    elif how == "header":
        blocks[one] = _changed(header, random, notes), payload
    elif how == "dropped":
        del blocks[one]
    elif how == "doubled":
        blocks.insert(one, blocks[one])
    elif how == "moved":
        blocks[one], blocks[0] = blocks[0], blocks[one]
    else:
        blocks[one] = header, b""
    notes.append(f"block {how}")
    out = [data[:head], *(struct.pack("<I", len(h)) + h + p for h, p in blocks)]
    target.write_bytes(b"".join(out))
    return notes[::-1]


def _payload(payload: bytes, random: Random, notes: list[str]) -> bytes:
    """Pieces with their size before each, or one message; where it is neither, some of
    its bytes."""
    pieces, at = [], 0
    while at + 4 <= len(payload):
        size = struct.unpack("<I", payload[at : at + 4])[0]
        if at + 4 + size > len(payload):
            break
        pieces.append(payload[at + 4 : at + 4 + size])
        at += 4 + size
    try:
        if pieces and at == len(payload):
            one = random.randrange(len(pieces))
            pieces[one] = _changed(pieces[one], random, notes)
            return b"".join(struct.pack("<I", len(piece)) + piece for piece in pieces)
        return _changed(payload, random, notes)
    except (ValueError, LookupError):
        data = bytearray(payload or b"\0")
        notes.append(of_bytes(data, random))
        return bytes(data)


def value_in(tree: Any, random: Random) -> str:
    """One value in a tree of lists and dictionaries is another, is missing, or stands
    there twice."""
    path, at = [], tree
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return "nothing"
        key = random.choice(keys)
        path.append(key if isinstance(at, dict) else "[]")
        if isinstance(at[key], dict | list) and at[key] and random.random() < 0.9:
            at = at[key]
            continue
        how = random.choice(("value", "value", "value", "dropped", "doubled"))
        if how == "dropped":
            del at[key]
        elif how == "doubled" and isinstance(at, list):
            at.insert(key, at[key])
        elif how == "doubled":
            at[f"{key}_x"] = at[key]
        else:
            at[key] = odd = random.choice(ODD)
            how = f"= {str(odd)[:12]!r}"
        return f"value {'.'.join(map(str, path))} {how}"


def snapshot(source: Path, target: Path, random: Random) -> list[str]:
    """A pickle of plain data: its content, or its instructions."""
    data = bytearray(source.read_bytes())
    if random.random() < 0.4:
        notes = [of_bytes(data, random)]
    else:
        from perfctl.parsers.common.plain_pickle import (
            read_plain_pickle_and_step_count,  # runs nothing of the file
        )

        tree, _ = read_plain_pickle_and_step_count(source, "fuzz", "")
        notes = [value_in(tree, random) for _ in range(random.choice((1, 1, 3)))]
        if random.random() < 0.05:
            tree["segments"].append(tree)
            notes.append("inside itself")
        data = bytearray(pickle.dumps(tree, protocol=random.choice((2, 3, 4, 4, 5))))
    target.write_bytes(data)
    return notes


def gzipped(source: Path, target: Path, random: Random) -> list[str]:
    """A gzip file, or what is in it."""
    inner = bytearray(gzip.decompress(source.read_bytes()))
    how = random.choice(
        ("outside", "outside", "inside", "trailer", "members", "bomb", "garbage behind")
    )
    notes = [of_bytes(inner, random)] if how == "inside" else [f"gzip, {how}"]
    data = bytearray(gzip.compress(bytes(inner), 1, mtime=0))
    if how == "outside":
        notes.append(of_bytes(data, random))
    elif how == "trailer":
        data[-random.randrange(1, 9)] ^= 1 << random.randrange(8)
    elif how == "members":
        half = random.randrange(len(inner))
        data = bytearray(
            gzip.compress(bytes(inner[:half]), 1) + gzip.compress(bytes(inner[half:]), 1)
        )
    elif how == "bomb":
        data = bytearray(gzip.compress(bytes(inner) + b" " * random.choice((10**6, 10**8)), 9))
    elif how == "garbage behind":
        data += random.choice((b"\0" * 512, random.randbytes(40)))
    target.write_bytes(data)
    return notes


def archive(source: Path, target: Path, random: Random) -> list[str]:
    """A tar or zip archive with one report: odd members, odd headers, damaged bytes."""
    content = source.read_bytes()
    out = io.BytesIO()
    name = random.choice(
        (
            "a/report.json.gz",
            "../up.json.gz",
            "/abs.json.gz",
            "a" * 300 + ".gz",
            "n\xff\u202e.json.gz",
            "a//b/./c.json.gz",
            "CON\\x",
        )
    )
    if target.suffix == ".zip":
        with zipfile.ZipFile(
            out, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        ) as made:
            for _ in range(random.choice((1, 1, 2))):
                made.writestr(name, content)
    else:
        with tarfile.open(
            fileobj=out, mode=random.choice(("w", "w:gz", "w:bz2")), format=random.randrange(3)
        ) as made:
            for kind in random.choices(
                (
                    tarfile.REGTYPE,
                    tarfile.SYMTYPE,
                    tarfile.LNKTYPE,
                    tarfile.FIFOTYPE,
                    tarfile.DIRTYPE,
                ),
                (8, 1, 1, 1, 1),
                k=2,
            ):
                member = tarfile.TarInfo(name)
                member.type, member.size = kind, len(content) if kind == tarfile.REGTYPE else 0
                member.linkname = random.choice(("/etc/passwd", name, "../x"))
                made.addfile(member, io.BytesIO(content))
    data = bytearray(out.getvalue())
    notes = [f"archive of {name[:20]!r}"]
    if random.random() < 0.8:
        notes.append(of_bytes(data, random))
    target.write_bytes(data)
    return notes
