"""Finds what there is to read: report files and run folders, in folders and in tar and
zip archives."""

from __future__ import annotations

import errno
import glob
import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast

from perfctl import parsers
from perfctl.orchestrator.actions.wall import child
from perfctl.orchestrator.actions.wall.child import Ended
from perfctl.orchestrator.actions.wall.items import Tell, each
from perfctl.orchestrator.actions.wall.unexpected import alone
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.launch.sweep.folders import read_run_record
from perfctl.parsers import ReportError
from perfctl.parsers.text.json import GZIP_MAGIC
from perfctl.records.served_names import DETAILS

_NAME = re.compile(r"\.(?:tar|tgz|tbz2?|txz|tar\.(?:gz|bz2|xz))\Z|\.zip\Z", re.IGNORECASE)
_EXPANSION = 200
"""Profilers' texts shrink 15 to 40 times; an archive that grows more than this, past _SMALL,
is refused."""
_SMALL = 256 << 20
_MOST_FILES = 100_000
"""Members of an archive, and of those inside it; a study has some thousand reports."""
_DEEPEST_NAME = 64
"""Folders in a member's name, and below _LONGEST_NAME the bytes of each: Linux takes no
longer ones."""
_LONGEST_NAME = 255
_LONGEST_HEADER = 1 << 20
"""Bytes of a member's header, which tarfile takes into memory whole; a long name has
some hundred."""
_CUT = (EOFError, zlib.error, lzma.LZMAError)
"""What they raise where the compression begins well and is cut or damaged."""
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    LookupError,
    struct.error,
    *_CUT,
)
"""What the libraries raise for a damaged archive, and for one with a password or an
unknown method."""
_NO_FILE = (errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""What the system says of names and places that no archive of reports has."""
_PROFILERS = (".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep", ".nsight-cuprof-report")
"""Ends of names that nothing but a profiler gives."""
_REPORTS = (".sqlite", ".pt.trace.json", ".pt.trace.json.gz", ".csv")
"""Ends of names that reports have among others."""
_DEEPEST = 3
"""Archives inside archives that are unpacked."""

_Opened = Callable[[], AbstractContextManager[IO[bytes] | None]]
"""Opens a member; None for one that is not wanted."""


def is_archive(path: Path) -> bool:
    """Return whether the file is a tar or zip archive, by its name and its content."""
    if _NAME.search(path.name) is None or not path.is_file():
        return False
    try:
        if path.suffix.lower() == ".zip":
            return zipfile.is_zipfile(path)
        with tarfile.open(path, tarinfo=_Member):
            return True
    except _CUT:
        return True
    except (OSError, *_BROKEN):
        return False


def may_be_archive(path: Path) -> bool:
    """Return whether the file's name is that of an archive."""
    return _NAME.search(path.name) is not None


def unpacked_bytes(path: Path) -> int:
    """Size of a file's content, of a gzipped one as it says (modulo 4 GiB); -1 where it cannot
    be read."""
    try:
        with path.open("rb") as file:
            if file.read(2) != GZIP_MAGIC:
                return path.stat().st_size
            file.seek(-4, os.SEEK_END)
            return int.from_bytes(file.read(4), "little")
    except OSError:
        return -1


def sha256_unpacked(path: Path) -> str:
    """Of a file's content; a gzipped one's is unpacked as far as its ``unpacked_bytes``. A damaged
    one's is its own."""
    digest = hashlib.sha256()
    left = unpacked_bytes(path)
    with path.open("rb") as file:
        is_zipped = file.read(2) == GZIP_MAGIC
    try:
        with gzip.open(path) if is_zipped else path.open("rb") as content:
            while left > 0 and (data := content.read(min(left, 1 << 20))):
                digest.update(data)
                left -= len(data)
    except (OSError, EOFError, zlib.error):
        digest.update(str(path).encode())
    return digest.hexdigest()


@dataclass(slots=True)
class Room:
    """How much may still be unpacked from an archive and those inside it."""

    size: int
    """Bytes of the archive."""
    bytes: int = field(init=False)
    files: int = _MOST_FILES

    def __post_init__(self) -> None:
        self.bytes = max(_SMALL, _EXPANSION * self.size)

    def take(self, path: Path, size: int) -> None:
        """Room for a member of ``path``. Raises ReportError where there is none."""
        self.bytes -= size
        self.files -= 1
        remedy = "If that is right, unpack it and pass the folder"
        if self.files < 0:
            raise ReportError(path, "archive", f"it holds more than {_MOST_FILES:,} files", remedy)
        if self.bytes < 0:
            raise ReportError(
                path, "archive", f"it unpacks to more than {_EXPANSION} times its size", remedy
            )


def unpack(path: Path, folder: Path, room: Room) -> int:
    """Write the archive's files below ``folder``: no links, no hidden ones, none that would lie
    elsewhere. How many were left out because no file can have their name.

    Raises ReportError for a damaged archive, one without room for it, and one that only pretends to
    be small.
    """
    free, strange = shutil.disk_usage(folder).free, 0
    try:
        with _members(path) as members:
            for name, size, opened in members:
                room.take(path, size)
                with opened() as content:
                    if content is None:
                        continue
                    if not _is_possible(name):
                        strange += 1
                        continue
                    free -= size
                    if free < 0:
                        reason = f"its files do not fit into {folder.parent}"
                        raise ReportError(
                            path, "archive", reason, "Set TMPDIR to a folder with more room"
                        )
                    target = folder.joinpath(*name.parts)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as out:
                        shutil.copyfileobj(content, out, 1 << 20)
    except (*_BROKEN, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.errno not in _NO_FILE:
            raise
        reason = f"the archive cannot be unpacked ({str(error) or type(error).__name__})"
        raise ReportError(
            path, "archive", reason, "Copy it again, or unpack it and pass the folder"
        ) from error
    return strange


@contextmanager
def _members(path: Path) -> Iterator[Iterator[tuple[PurePosixPath, int, _Opened]]]:
    with ExitStack() as stack:
        if path.suffix.lower() == ".zip":
            yield _of_zip(stack.enter_context(zipfile.ZipFile(path)))
        else:
            yield _of_tar(stack.enter_context(tarfile.open(path, tarinfo=_Member)))


class _Member(tarfile.TarInfo):
    """Of a tar archive; one whose header would fill the memory is damage."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        names = (
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            b"X",
        )
        if self.type in names and self.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"the header of a member has {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


def _of_tar(archive: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, int, _Opened]]:
    for member in archive:
        name = PurePosixPath(member.name)
        wanted = member.isfile() and _is_wanted(name)
        opened = partial(archive.extractfile, member) if wanted else nullcontext
        yield name, member.size, cast("_Opened", opened)


def _of_zip(archive: zipfile.ZipFile) -> Iterator[tuple[PurePosixPath, int, _Opened]]:
    for member in archive.infolist():
        name = PurePosixPath(member.filename)
        wanted = not member.is_dir() and _is_wanted(name)
        opened = partial(archive.open, member) if wanted else nullcontext
        yield name, member.file_size if wanted else 0, cast("_Opened", opened)


def _is_possible(name: PurePosixPath) -> bool:
    """Whether a file can have this name, and lies no deeper than anybody puts reports."""
    parts = name.parts
    longest = (
        max(len(os.fsencode(part)) for part in parts)
        if "\0" not in str(name)
        else _LONGEST_NAME + 1
    )
    return len(parts) <= _DEEPEST_NAME and longest <= _LONGEST_NAME


def _is_wanted(name: PurePosixPath) -> bool:
    """No hidden file (macOS puts ._NAME beside each), and none outside of the archive's
    own folder."""
    parts = [part for part in name.parts if part != "."]
    return (
        bool(parts) and not name.is_absolute() and not any(part.startswith(".") for part in parts)
    )


class Named(NamedTuple):
    """What the name of a report says of its run."""

    batch: int | None = None
    rank: int | None = None
    world: int | None = None
    """Processes that worked together."""


@dataclass(frozen=True, slots=True)
class Source:
    """One report file, DLProf folder or run folder."""

    path: Path
    shown: Path
    """What it is called: its path as given; of an archive's member, that of the archive and the
    member's inside it."""

    def said(self, text: str) -> str:
        """A message about ``path`` that names what the user knows."""
        return text if self.path == self.shown else text.replace(str(self.path), str(self.shown))


@dataclass(slots=True)
class Found:
    """What the paths that were given hold."""

    entries: list[Source | str] = field(default_factory=list)
    """In order; a text says what is wrong with a path that holds nothing, or whose name says that
    it is a report."""
    notes: list[str] = field(default_factory=list)

    def sources(self) -> list[Source]:
        """What there is to read."""
        return [entry for entry in self.entries if isinstance(entry, Source)]


def sources(path: Path) -> list[Path]:
    """Run folders, DLProf folders and report files at ``path``, sorted."""
    return parsers.find(path, is_one=lambda folder: read_run_record(folder) is not None)


def expanded(path: Path) -> list[Path]:
    """The paths that a pattern such as ``runs/*_b*.csv`` stands for; anything else as it is."""
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    root = Path(path.anchor)
    found = root.glob(str(path.relative_to(root)))
    return sorted(one for one in found if not one.name.startswith(".")) or [path]


def collect(given: list[Path], stack: ExitStack, limit: int = 0) -> Found:
    """Everything to read at these paths. Archives are unpacked into folders that go with ``stack``.

    Folders and archives are looked through in a child with ``limit`` bytes of memory, where one
    is possible.
    """
    if not any(path.is_dir() or may_be_archive(path) for path in given):
        return _collected(given, Path())
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfctl-archive-")))
    if not (limit and child.is_possible()):
        return _collected(given, folder)
    found = Found()

    @contextmanager
    def opened(tell: Tell) -> Iterator[Callable[[list[Path]], None]]:
        def work(given: list[Path]) -> None:
            for entry in (inside := _collected(given, folder)).entries:
                if isinstance(entry, str):
                    tell("bad", entry)
                else:
                    tell(
                        "source", str(entry.path), str(entry.shown), parsers.known_kind(entry.path)
                    )
            for note in inside.notes:
                tell("note", note)

        yield work

    def hear(what: str, *said: Any) -> None:
        if what == "source":
            path, shown, kind = said
            found.entries.append(Source(Path(path), Path(shown)))
            if kind is not None:
                parsers.remember(Path(path), tuple(kind[0]), kind[1])
        else:
            (found.entries if what == "bad" else found.notes).append(*said)

    def ended(given: list[Path], end: Ended) -> None:
        remedy = "Name the report files themselves"
        raise PerfctlError(
            f"{', '.join(map(str, given))}: looking for reports failed: {end}", remedy
        )

    each([given], opened, hear, ended, limit)
    return found


def _collected(given: list[Path], folder: Path) -> Found:
    found = Found()
    for path in given:
        if path.is_dir():
            _folder(Source(path, path), found, folder, 0, None)
        elif is_archive(path):
            _archive(Source(path, path), found, folder, 0, None)
        else:
            found.entries.append(Source(path, path))
    if len(given) > 1:  # files that are one report together
        first = set(parsers.leaders(source.path for source in found.sources()))
        found.entries = [
            entry for entry in found.entries if isinstance(entry, str) or entry.path in first
        ]
    _leave_out_copies(found)
    return found


def _leave_out_copies(found: Found) -> None:
    """Take a report once that lies in an archive and beside it, perhaps gzipped there: the file
    stays, the archive's copy goes."""
    members = [
        source
        for source in found.sources()
        if source.path != source.shown and source.path.is_file()
    ]
    if not members:
        return
    inside = {id(source) for source in members}
    others = [
        source for source in found.sources() if id(source) not in inside and source.path.is_file()
    ]
    of_size: dict[int, list[Source]] = defaultdict(list)
    for source in others:
        of_size[unpacked_bytes(source.path)].append(source)
    gone: set[int] = set()
    archives: Counter[Path] = Counter()
    digests: dict[Path, str] = {}
    """Worked out only for files of the same size."""
    for source in members:
        alike = of_size[unpacked_bytes(source.path)]
        parser = parsers.sniff(source.path) if alike else None
        if parser is not None and not parser.joins_files:
            for one in (*alike, source):
                digests[one.path] = digests.get(one.path) or sha256_unpacked(one.path)
            if any(digests[one.path] == digests[source.path] for one in alike):
                gone.add(id(source))
                archives[next(above for above in source.shown.parents if above.is_file())] += 1
                continue
        alike.append(source)
    found.entries = [entry for entry in found.entries if id(entry) not in gone]
    for archive, number in archives.items():
        said = "1 report is" if number == 1 else f"{number} reports are"
        found.notes.append(
            f"{archive}: {said} in other files too, with the same content, and taken once"
        )


def _folder(folder: Source, found: Found, temporary: Path, depth: int, room: Room | None) -> None:
    inside = sources(folder.path)
    if inside == [folder.path]:
        found.entries.append(folder)
        return
    taken = set(inside)
    others = [
        file
        for file in sorted(folder.path.rglob("*"))
        if file.is_file()
        and not file.name.startswith(".")
        and file not in taken
        and taken.isdisjoint(file.parents)
    ]
    archives = {file for file in others if depth < _DEEPEST and is_archive(file)}
    captures = {
        path for place in {path.parent for path in inside} for path in parsers.captures(place)
    } & taken
    if captures:
        found.notes.append(_of_captures(folder, captures))
    for path in sorted((*(taken - captures), *archives)):
        source = Source(path, folder.shown / path.relative_to(folder.path))
        if path in archives:
            _archive(source, found, temporary, depth + 1, room)
        else:
            found.entries.append(source)
    lists = {path.with_name(DETAILS) for path in captures}
    left = (file for file in others if file not in archives | lists)
    why = {file: _why_broken(file) for file in left if parsers.leader(file) not in taken}
    broken = [folder.said(said) for said in why.values() if said is not None]
    found.entries += broken
    if not inside and not archives and not broken:
        what = "archive" if depth else "folder"
        found.entries.append(
            f"{folder.shown}: no report was found in this {what}. Name the report file itself"
        )
    if names := [" ".join(file.name.splitlines()) for file, said in why.items() if said is None]:
        files = (
            "1 file that is not a report"
            if len(names) == 1
            else f"{len(names)} files that are not reports"
        )
        more = ", ..." if len(names) > 5 else ""
        found.notes.append(f"{folder.shown}: skipped {files}: {', '.join(names[:5])}{more}")


def _of_captures(folder: Source, captures: set[Path]) -> str:
    """That traces of captures are no runs: their steps ran once, without the graphs, and were never
    meant to be timed."""
    names = sorted(" ".join(path.name.splitlines()) for path in captures)
    more = ", ..." if len(names) > 5 else ""
    files = "1 trace says" if len(names) == 1 else f"{len(names)} traces say"
    return (
        f"{folder.shown}: {files} what the graphs of the others were captured from, and no run of "
        f"that is stored: {', '.join(names[:5])}{more}. Name such a file itself to store it"
    )


def _archive(archive: Source, found: Found, temporary: Path, depth: int, room: Room | None) -> None:
    """``room``: of the archive around this one."""
    with alone(archive.shown, found.entries.append):
        folder = Path(tempfile.mkdtemp(dir=temporary))
        room = room or Room(archive.path.stat().st_size)
        try:
            strange = unpack(archive.path, folder, room)
        except (ReportError, OSError) as error:
            found.entries.append(archive.said(str(error)))
            return
        if strange:
            files = "1 file has a name" if strange == 1 else f"{strange} files have names"
            found.notes.append(f"{archive.shown}: {files} that no file can have: left out")
        if own := [
            path for path in sources(folder) if path.is_dir() and read_run_record(path) is not None
        ]:
            remedy = "Unpack it and pass the folder, so that the store can refer to them"
            found.entries.append(
                f"{archive.shown}: holds {len(own)} run folders of perfctl. {remedy}"
            )
            return
        _folder(Source(folder, archive.shown), found, temporary, depth + 1, room)


def _why_broken(path: Path) -> str | None:
    """What is wrong with a file that no parser knows although its name says that it is, or was,
    a report."""
    said: list[str] = []
    try:
        with alone(path, said.append, passing=(OSError,)):
            if path.name.endswith(_PROFILERS) or (
                path.name.endswith(_REPORTS) and parsers.is_stump(path)
            ):
                parsers.parse(path)
    except (ReportError, OSError) as error:
        return str(error)
    return said[0] if said else None
