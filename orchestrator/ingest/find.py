"""Find what there is to read: report files and run folders, in folders and in archives; and what
names say of reports that do not say it themselves: batch sizes (report_b16.csv,
batch_size_128/trace.json) and ranks (rank3.pt.trace.json)."""

from __future__ import annotations

import glob
import gzip
import hashlib
import os
import re
import shutil
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator import pool
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.faults import isolate_unexpected_exception
from perfctl.orchestrator.ingest.archives import (
    UnpackingBudget,
    has_archive_name,
    is_archive,
    unpack_archive_and_count_skipped,
)
from perfctl.orchestrator.launch.sweep.folders import read_run_record
from perfctl.parsers import ReportError
from perfctl.parsers.common.json import GZIP_MAGIC
from perfctl.records.served_names import DETAILS

_PROFILERS = (
    ".nsys-rep",
    ".qdrep",
    ".qdstrm",
    ".nsys-analysis",
    ".ncu-rep",
    ".nsight-cuprof-report",
    ".pftrace",
)
"""Ends of names that nothing but a profiler gives."""
_REPORTS = (".sqlite", ".pt.trace.json", ".pt.trace.json.gz", ".csv")
"""Ends of names that reports have among others."""
_DEEPEST = 3
"""Archives inside archives that are unpacked."""
_SHOWN = 5
"""Names that a note lists."""
Ask = Callable[[Path, Sequence[int]], int | None]
"""Asks which of several numbers is the batch size of a file; None: nobody answers."""

_IN_NAME = re.compile(
    "(?<![a-z0-9])(?:batch(?:[-_ ]?size)?|bs|b)[-_= "
    r"]?(\d{1,9})(?![a-z0-9])|(?<![a-z0-9])(\d{1,9})_batch(?![a-z0-9])",
    re.IGNORECASE,
)
_GPU_NAMES = re.compile(r"b(?:40|100|200|300)", re.IGNORECASE)
"""Blackwell GPUs stand in file names just as batch sizes do."""
_LISTED = 12
"""Files that are listed one by one."""
_RANK = re.compile(r"(?<![a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""torchrun's own names ("rank3.pt.trace.json", "report.rank3.nsys-rep", "rank-34.Jul_15..."); hosts
and workers are none."""


@dataclass(frozen=True, slots=True)
class ReportSource:
    """One report file, DLProf folder or run folder."""

    path: Path
    shown: Path
    """What it is called: its path as given; of an archive's member, that of the archive and the
    member's inside it."""

    def replace_path_with_user_path(self, message: str) -> str:
        """Return a message about ``path`` that names what the user knows."""
        return (
            message if self.path == self.shown else message.replace(str(self.path), str(self.shown))
        )


@dataclass(slots=True)
class FoundSources:
    """What the paths that were given hold."""

    entries: list[ReportSource | str] = field(default_factory=list)
    """In order; a text says what is wrong with a path that holds nothing, or whose name says that
    it is a report."""
    notes: list[str] = field(default_factory=list)
    temporary: Path = Path()
    """Where archives are unpacked."""
    limit: int = 0
    """Bytes of memory that a worker may take; 0 for no limit."""

    def list_report_sources(self) -> list[ReportSource]:
        """Return what there is to read."""
        return [entry for entry in self.entries if isinstance(entry, ReportSource)]

    def add_reports_in_folder(
        self, folder: ReportSource, archive_depth: int, budget: UnpackingBudget | None
    ) -> None:
        """Add the reports and archives in a folder, and what is wrong with other files there.

        ``archive_depth``: archives around it; ``budget``: of the outermost.
        """
        reports = list_report_and_run_paths(folder.path)
        if reports == [folder.path]:
            self.entries.append(folder)
            return
        reports_set = set(reports)
        other_files = [
            file
            for file in sorted(folder.path.rglob("*"))
            if file.is_file()
            and not file.name.startswith(".")
            and file not in reports_set
            and reports_set.isdisjoint(file.parents)
        ]
        archives = {
            file for file in other_files if archive_depth < _DEEPEST and has_archive_name(file)
        }
        places = {path.parent for path in reports}
        captures = {
            path for parent in places for path in parsers.find_graph_capture_traces(parent)
        } & reports_set
        if captures:
            files = "1 trace holds" if len(captures) == 1 else f"{len(captures)} traces hold"
            self.notes.append(
                f"{folder.shown}: {files} the capture of graphs in the other traces; perfctl "
                f"stores no run of it: {_format_file_names(captures)}. Name such a file itself to "
                "store it"
            )
        for path in sorted((reports_set - captures) | archives):
            source = ReportSource(path, folder.shown / path.relative_to(folder.path))
            if path not in archives:
                self.entries.append(source)
            elif not self.unpack_and_add_if_archive(source, archive_depth + 1, budget):
                archives.remove(path)
        archives |= {path.with_name(DETAILS) for path in captures}
        unread = [file for file in other_files if file not in archives]
        faults = {
            file: _explain_unreadable_report_file(file)
            for file in unread
            if parsers.find_leading_file(file) not in reports_set
        }
        broken = [
            folder.replace_path_with_user_path(fault)
            for fault in faults.values()
            if fault is not None
        ]
        self.entries += broken
        if not reports and not archives and not broken:
            kind = "archive" if archive_depth else "folder"
            reason = f"no report was found in this {kind}. Name the report file itself"
            self.entries.append(f"{folder.shown}: {reason}")
        if skipped := [file for file, fault in faults.items() if fault is None]:
            files = f"{len(skipped)} files that are not reports"
            files = "1 file that is not a report" if len(skipped) == 1 else files
            self.notes.append(f"{folder.shown}: skipped {files}: {_format_file_names(skipped)}")

    def unpack_and_add_if_archive(
        self, archive: ReportSource, archive_depth: int, budget: UnpackingBudget | None
    ) -> bool:
        """Unpack an archive in a worker, and add what it holds. Return False for another file."""
        with isolate_unexpected_exception(archive.shown, self.entries.append):
            folder = Path(tempfile.mkdtemp(dir=self.temporary))
            budget = budget or UnpackingBudget(archive.path.stat().st_size)
            try:
                answer = pool.call_in_worker(
                    archive.path,
                    partial(_unpack_if_archive, archive.path, folder, budget),
                    self.limit,
                    max(0, budget.until - time.monotonic()),
                )
            except PerfctlError as error:
                shutil.rmtree(folder)
                self.entries.append(archive.replace_path_with_user_path(str(error)))
                return True
            if answer is None:
                return False
            left_out, (budget.bytes, budget.files) = answer
            if left_out:
                files = "1 file has a name" if left_out == 1 else f"{left_out} files have names"
                self.notes.append(
                    f"{archive.shown}: {files} that no file can have. perfctl skipped them"
                )
            if run_folders := [
                path for path in list_report_and_run_paths(folder) if is_perfctl_run_folder(path)
            ]:
                self.entries.append(
                    f"{archive.shown}: holds {len(run_folders)} run folders of perfctl. Unpack it "
                    "and pass the folder, so that the database can refer to the files"
                )
                return True
            self.add_reports_in_folder(
                ReportSource(folder, archive.shown), archive_depth + 1, budget
            )
        return True

    def drop_archived_copies(self) -> None:
        """Take a report once that lies in an archive and beside it, perhaps gzipped there: the file
        stays, the archive's copy goes."""
        of_size: dict[int, list[Path]] = defaultdict(list)
        archives: Counter[Path] = Counter()
        digest_of = cache(hash_unpacked_content)
        for source in sorted(
            self.list_report_sources(), key=lambda source: source.path != source.shown
        ):
            if not source.path.is_file():
                continue
            alike = of_size[read_unpacked_size(source.path)]
            is_member = source.path != source.shown
            if is_member and digest_of(source.path) in map(digest_of, alike):
                parser = parsers.sniff(source.path)
                if parser is not None and not parser.joins_files:
                    self.entries.remove(source)
                    archives[next(path for path in source.shown.parents if path.is_file())] += 1
                    continue
            alike.append(source.path)
        for archive, number in archives.items():
            reports = "1 report is" if number == 1 else f"{number} reports are"
            self.notes.append(
                f"{archive}: {reports} also in other files with the same content; perfctl ingests "
                "the content once"
            )


def is_perfctl_run_folder(path: Path) -> bool:
    """Return whether it is the folder of one of perfctl's own runs."""
    return path.is_dir() and read_run_record(path) is not None


def list_report_and_run_paths(path: Path) -> list[Path]:
    """Return run folders, DLProf folders and report files at ``path``, sorted."""
    return parsers.find_report_paths(path, is_single_report=is_perfctl_run_folder)


@contextmanager
def find_report_sources(
    requested: Sequence[Path], memory_limit_bytes: int
) -> Iterator[FoundSources]:
    """Find everything to read at these paths and patterns (``runs/*_b*.csv``); archives are
    unpacked for as long as the block lasts.

    Folders and archives are looked through by a worker with ``memory_limit_bytes`` of memory.
    Raises PerfctlError where it fails.
    """
    paths = [path for pattern in requested for path in _expand_glob_pattern(pattern)]
    with tempfile.TemporaryDirectory(prefix="perfctl-archive-") as folder:
        find = partial(_find_all_sources, paths, Path(folder), memory_limit_bytes)
        if any(path.is_dir() or has_archive_name(path) for path in paths):
            name = f"{', '.join(map(str, paths))}: the search for reports failed"
            yield pool.call_in_worker(name, find, memory_limit_bytes)
        else:
            yield find()


def _expand_glob_pattern(path: Path) -> list[Path]:
    """Return the paths that a pattern stands for; anything else as it is."""
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    return sorted(match for match in matches if not match.name.startswith(".")) or [path]


def _unpack_if_archive(
    path: Path, folder: Path, budget: UnpackingBudget
) -> tuple[int, tuple[int, int]] | None:
    """Return how many files of an archive were left out, and the room that is left; None for a file
    that is no archive."""
    if not is_archive(path):
        return None
    return unpack_archive_and_count_skipped(path, folder, budget), (budget.bytes, budget.files)


def _find_all_sources(
    requested: Sequence[Path], temporary: Path, memory_limit_bytes: int = 0
) -> FoundSources:
    findings = FoundSources(temporary=temporary, limit=memory_limit_bytes)
    for path in requested:
        source = ReportSource(path, path)
        if path.is_dir():
            findings.add_reports_in_folder(source, 0, None)
        elif not has_archive_name(path) or not findings.unpack_and_add_if_archive(source, 0, None):
            findings.entries.append(source)
    if len(requested) > 1:  # files that are one report together
        first = set(
            parsers.select_leading_report_files(
                source.path for source in findings.list_report_sources()
            )
        )
        findings.entries = [
            entry for entry in findings.entries if isinstance(entry, str) or entry.path in first
        ]
    findings.drop_archived_copies()
    return findings


def _format_file_names(paths: Sequence[Path] | set[Path]) -> str:
    names = [" ".join(path.name.splitlines()) for path in sorted(paths)]
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _explain_unreadable_report_file(path: Path) -> str | None:
    """Return what is wrong with a file that no parser knows although its name says that it is, or
    was, a report."""
    faults: list[str] = []
    is_gzipped = path.name.endswith((".csv.gz", ".txt.gz"))
    try:
        with isolate_unexpected_exception(path, faults.append, exceptions_to_reraise=(OSError,)):
            if (
                path.name.endswith(_PROFILERS)
                or is_gzipped
                or (path.name.endswith(_REPORTS) and parsers.is_empty_truncated_or_lfs_file(path))
            ):
                parsers.parse(path)
    except (ReportError, OSError) as error:
        is_of_others = is_gzipped and "gzip" not in str(getattr(error, "reason", ""))
        return None if is_of_others else str(error)
    return faults[0] if faults else None


def read_unpacked_size(path: Path) -> int:
    """Return the size of a file's content, of a gzipped one as it says (modulo 4 GiB); -1 where it
    cannot be read."""
    try:
        with path.open("rb") as file:
            if file.read(2) != GZIP_MAGIC:
                return path.stat().st_size
            file.seek(-4, os.SEEK_END)
            return int.from_bytes(file.read(4), "little")
    except OSError:
        return -1


def hash_unpacked_content(path: Path) -> str:
    """Return the SHA-256 of a file's content; a gzipped one's is unpacked as far as its
    ``read_unpacked_size``. A damaged one's is its own."""
    digest = hashlib.sha256()
    remaining = read_unpacked_size(path)
    with path.open("rb") as file:
        is_zipped = file.read(2) == GZIP_MAGIC
    try:
        with gzip.open(path) if is_zipped else path.open("rb") as content:
            while remaining > 0 and (data := content.read(min(remaining, 1 << 20))):
                digest.update(data)
                remaining -= len(data)
    except (OSError, EOFError, zlib.error):
        digest.update(str(path).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _BatchCandidates:
    """The numbers in one name that may be its batch size."""

    sizes: list[int]
    """In the order of the name."""
    candidates: list[int]
    """Without the names of GPUs ("b200"), each once."""
    rest: str
    """The name without them."""


def find_single_batch_in_name(path: Path) -> int | None:
    """Return the batch size in the name of a file or its folder (b64, batch_64, bs=64,
    resnet152_5_batch); None if none or several."""
    candidates = _find_batch_candidates_in_path(path, None).candidates
    return candidates[0] if len(candidates) == 1 else None


def find_batches_in_names(
    files: Sequence[Path], pattern: str | None = None, ask: Ask | None = None
) -> dict[Path, int]:
    """Return the batch size of each file whose name, or else whose folder's name, says one.

    ``pattern``: a regular expression whose first group, or the one called ``batch``, is the number;
    it takes the place of the forms that ``find_single_batch_in_name`` knows. Where a name has
    several numbers, ``ask`` decides.

    Raises UsageError for a pattern that is none, and for names with several numbers if nobody
    answers.
    """
    compiled = None
    if pattern is not None:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            reason = f"`batch_pattern`: invalid regular expression '{pattern}' ({error})"
            raise UsageError(reason) from error
        if not compiled.groups:
            remedy = r"Put the number into parentheses: 'run(\d+)'"
            raise UsageError(f"`batch_pattern`: '{pattern}' has no group", remedy)
    numbers_by_path = {
        path: numbers
        for path in files
        if (numbers := _find_batch_candidates_in_path(path, compiled)).sizes
    }
    with_batch = {numbers.rest for numbers in numbers_by_path.values() if numbers.candidates}
    chosen: dict[Path, int] = {}
    for path, numbers in numbers_by_path.items():
        candidates = numbers.candidates
        if not candidates and numbers.rest in with_batch:  # b100.csv beside b50.csv is no GPU
            candidates = list(dict.fromkeys(numbers.sizes))
        if len(candidates) == 1:
            chosen[path] = candidates[0]
        elif candidates and ask is not None and (size := ask(path, candidates)) is not None:
            chosen[path] = size
        elif candidates:
            sizes = f"{', '.join(map(str, candidates[:-1]))} or {candidates[-1]}"
            remedy = (
                "Set `batch`, or `batch_pattern`, a regular expression whose group is the number"
            )
            raise UsageError(f"{path}: the name may contain the batch size {sizes}", remedy)
    return chosen


def describe_batches_from_names(batch_by_file: Mapping[Path, int]) -> list[str]:
    """Return what to say of the batch sizes before anything is read."""
    lines = [
        f"batch size {size}, from the name: {path.name}" for path, size in batch_by_file.items()
    ]
    if len(lines) <= _LISTED:
        return lines
    sizes = sorted(Counter(list(batch_by_file.values())[_LISTED:]).items())
    tally = ", ".join(f"{size} ({number})" for size, number in sizes)
    return [*lines[:_LISTED], f"and {len(lines) - _LISTED} more files, batch size (files): {tally}"]


def find_ranks_in_names(paths: Iterable[Path]) -> dict[Path, tuple[int, int | None]]:
    """Return (rank, world size) of each file whose name gives a rank, where several files of one
    folder differ by it.

    The world size is known where the ranks from 0 on are all there; else None.
    """
    groups: dict[tuple[Path, str], dict[Path, int]] = defaultdict(dict)
    for path in paths:
        if (match := _RANK.search(path.name)) is not None:
            # what follows the rank is mostly a time, which differs between ranks
            groups[path.parent, path.name[: match.start()]][path] = int(match[1])
    ranks: dict[Path, tuple[int, int | None]] = {}
    for files in groups.values():
        numbers = sorted(files.values())
        if len(files) >= 2 and len(set(numbers)) == len(files):
            world_size = len(files) if numbers == list(range(len(files))) else None
            ranks |= {path: (number, world_size) for path, number in files.items()}
    return ranks


def _find_batch_candidates_in_path(path: Path, pattern: re.Pattern[str] | None) -> _BatchCandidates:
    """Return what the file's name says, else its folder's."""
    name = _find_batch_candidates_in_text(path.name if pattern else path.stem, pattern)
    folder = _find_batch_candidates_in_text(path.parent.name, pattern)
    return folder if folder.candidates and not name.candidates else name


def _find_batch_candidates_in_text(text: str, pattern: re.Pattern[str] | None) -> _BatchCandidates:
    sizes: list[int] = []
    candidates: list[int] = []
    remaining = text
    group: int | str = "batch" if pattern and "batch" in pattern.groupindex else 1
    for match in reversed(list((pattern or _IN_NAME).finditer(text))):
        if pattern is None:
            group = match.lastindex or 1
        digits = match[group] or ""
        if not (digits.isascii() and digits.isdigit() and 0 < int(digits[:10]) <= 10**9):
            continue
        sizes.insert(0, int(digits))
        if pattern is not None or not _GPU_NAMES.fullmatch(match[0]):
            candidates.insert(0, int(digits))
        remaining = f"{remaining[: match.start(group)]}#{remaining[match.end(group) :]}"
    return _BatchCandidates(sizes, list(dict.fromkeys(candidates)), remaining)


def hash_file_or_folder(path: Path) -> str:
    """Return it in hexadecimal; of a folder, over its files' names and contents in order. Raises
    OSError."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for child in sorted(path.rglob("*")):
        if child.is_file():
            digest.update(str(child.relative_to(path)).encode() + b"\0" + child.read_bytes())
    return digest.hexdigest()
