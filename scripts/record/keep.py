"""What leaves the machine: the files that a replay needs, made small, without secrets and without
the machine's own names."""

from __future__ import annotations

import getpass
import gzip
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

KEPT = (
    "run.json",
    "workload.json",
    "launches.json",
    "report.sqlite",
    "report.csv",
    "report.pt.trace.json.gz",
    "report.ncu-rep",
    "samples.csv",
    "samples.nvidia-smi.csv",
)
LARGEST_BYTES = 4_000_000
"""A larger file is left out, and named: test data is small."""
LOG_BYTES = 20_000
"""Of each log of a run: its end."""
EVENT_TABLES = (
    "CUPTI_ACTIVITY_KIND_",
    "NVTX_EVENTS",
    "ENUM_CUDA_MEM",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA",
)
STRING_COLUMNS = ("textId", "jsonTextId", "nameId", "demangledName", "shortName", "mangledName")
_SECRET = re.compile(
    r"(?i)token|secret|passw|credential|api_?key|access_?key|private_?key|jwt|cookie"
)
_SHORTEST = 4
"""Characters of the shortest name that is masked: replacing every "a" would leave nothing
to read."""
_UUID = re.compile(rb"(?i)\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Masks:
    """Replaces the machine's names, its folders, and the values of secret variables."""

    def __init__(self, folders: Mapping[str, Path], environment: Mapping[str, str]) -> None:
        """``folders``: what to write for a folder -> the folder."""
        host = socket.gethostname()
        found = {str(path): f"<{name}>" for name, path in folders.items()}
        found |= {str(path.resolve()): f"<{name}>" for name, path in folders.items()}
        found |= dict.fromkeys(
            (host, host.partition(".")[0], os.environ.get("HOSTNAME", "")), "<host>"
        )
        user = getpass.getuser()
        found |= {user: "<user>"} if user not in ("root", "user", "ubuntu", "nobody") else {}
        values = (value for name, value in environment.items() if _SECRET.search(name))
        found |= {value: "<removed>" for value in values if len(value) >= 8}
        names = (
            name
            for name in found
            if len(name) >= _SHORTEST and name not in ("localhost", "/tmp", "/root")  # noqa: S108
        )
        self.words = {
            name.encode("utf-8", "surrogateescape"): found[name].encode() for name in names
        }
        longest_first = sorted(self.words, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)) or rb"(?!)")

    def text(self, content: bytes) -> bytes:
        """With the names replaced by what they name, and without what looks like a secret."""
        from perfctl import redact

        content = self._pattern.sub(lambda found: self.words[found.group()], content)
        content = _UUID.sub(b"<GPU UUID>", content)
        return redact.mask_secrets(content.decode("latin-1")).encode(
            "latin-1"
        )  # every byte a character

    def binary(self, content: bytes) -> bytes:
        """With each name replaced by as many "x", so that every offset in the file still holds."""
        return _UUID.sub(_x, self._pattern.sub(_x, content))

    def left_in(self, content: bytes) -> bool:
        """Whether a name is still there."""
        return self._pattern.search(content) is not None


def _x(found: re.Match[bytes]) -> bytes:
    return b"x" * len(found.group())


def keep(runs: Path, out: Path, masks: Masks) -> tuple[int, list[str]]:
    """Copy what a replay needs of every run that has a report to ``out``, one folder a batch size:
    (number of runs, files that were left out, with the reason)."""
    count, left = 0, []
    for folder in sorted(runs.glob("*/b*")):
        record = folder / "run.json"
        if (
            not record.is_file()
            or json.loads(record.read_text(encoding="utf-8"))["status"] == "failed"
        ):
            continue
        target = out / folder.name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in KEPT:
            file = folder / name
            if file.is_file() and file.stat().st_size <= LARGEST_BYTES:
                shutil.copyfile(file, target / name)
            elif file.is_file():
                left.append(f"{out.name}/{folder.name}/{name} ({file.stat().st_size / 1e6:.1f} MB)")
        clean(target, masks)
        count += 1
    return count, left


def clean(folder: Path, masks: Masks) -> None:
    """Keep the commands; remove the folders of this machine and the environments of
    its processes."""
    database, trace = folder / "report.sqlite", folder / "report.pt.trace.json.gz"
    if database.is_file():
        scrub(database)
    if trace.is_file():
        text = gzip.decompress(trace.read_bytes()).decode()
        text = re.sub(
            r'"/[^"]*/([^"/]+)"',
            r'"\1"',
            re.sub(r'"host_name": "[^"]*"', '"host_name": "host"', text),
        )
        trace.write_bytes(gzip.compress(masks.text(text.encode()), mtime=0))
    for file in folder.iterdir():
        if file.suffix in (".sqlite", ".ncu-rep"):
            file.write_bytes(masks.binary(file.read_bytes()))
        elif file.suffix == ".csv":
            file.write_bytes(masks.text(file.read_bytes()))
    for name in ("run.json", "workload.json", "launches.json"):
        file = folder / name
        if not file.is_file():
            continue
        content = plain(json.loads(file.read_text(encoding="utf-8")))
        if name == "run.json" and (folder / str(content.get("artifact"))).is_file():
            content["artifact_bytes"] = (folder / content["artifact"]).stat().st_size
        file.write_bytes(masks.text(json.dumps(content, indent=1).encode() + b"\n"))


def plain(value: Any) -> Any:
    """Every absolute path in a JSON value, also behind "=", as its last part."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"(^|=)/\S*/([^/\s]+)$", r"\1\2", value)
    return value


def scrub(database: Path) -> None:
    """nsys stores the environment of every process: keep only the tables of events and the strings
    that they use."""
    connection = sqlite3.connect(database, isolation_level=None)
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    for name in tables:
        if name != "StringIds" and not name.startswith(EVENT_TABLES):
            connection.execute(f'DROP TABLE "{name}"')
    used = " UNION ".join(
        # with a NULL in the list, NOT IN would keep all rows
        f'SELECT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'
        for table in tables
        if table.startswith(EVENT_TABLES)
        for (_, column, *_) in connection.execute(f'PRAGMA table_info("{table}")')
        if column in STRING_COLUMNS
    )
    if used and "StringIds" in tables:
        connection.execute(f"DELETE FROM StringIds WHERE id NOT IN ({used})")
    for table in set(tables) & {"META_DATA_EXPORT", "EXPORT_META_DATA"}:
        connection.execute(f"DELETE FROM {table} WHERE name LIKE '%PATH%'")
    connection.execute("VACUUM")
    connection.close()


def logs(runs: Path) -> bytes:
    """The ends of the logs of all runs, each under the name of its file."""
    parts = []
    for file in sorted(runs.glob("*/b*/*.log")):
        content = file.read_bytes()
        if content.strip():
            parts.append(f"\n--- {file.relative_to(runs.parent)}\n".encode() + content[-LOG_BYTES:])
    return b"".join(parts)


def pack(folder: Path, out: Path, masks: Masks) -> list[str]:
    """``folder`` as out/NAME.tar.gz, without owners and times; files in which a name of this
    machine is left are left out, and returned."""
    left = []
    with (
        gzip.GzipFile(out / f"{folder.name}.tar.gz", "wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = file.read_bytes()
            if masks.left_in(_open(file.name)(content)):
                left.append(f"{file.relative_to(folder.parent)} (names this machine)")
                continue
            entry = tarfile.TarInfo(str(file.relative_to(folder.parent)))
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return left


def _open(name: str) -> Callable[[bytes], bytes]:
    return gzip.decompress if name.endswith(".gz") else bytes
