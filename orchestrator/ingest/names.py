"""What the names of reports say that do not say it themselves: batch sizes (report_b16.csv,
batch_size_128/trace.json) and ranks (rank3.pt.trace.json)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.errors import UsageError

Ask = Callable[[Path, Sequence[int]], int]
"""Asks which of several numbers is the batch size of a file."""

_IN_NAME = re.compile(
    "(?<![a-z0-9])(?:batch(?:[-_ ]?size)?|bs|b)[-_= "
    r"]?(\d{1,9})(?![a-z0-9])|(?<![a-z0-9])(\d{1,9})_batch(?![a-z0-9])",
    re.IGNORECASE,
)
_GPU_NAMES = re.compile(r"b(?:40|100|200|300)", re.IGNORECASE)
"""Blackwell GPUs stand in file names just as batch sizes do."""
_SHOWN = 12
"""Files that are listed one by one."""


_RANK = re.compile(r"(?<![a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""torchrun's own names ("rank3.pt.trace.json", "report.rank3.nsys-rep", "rank-34.Jul_15..."); hosts
and workers are none."""


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The numbers in one name that may be its batch size."""

    sizes: list[int]
    """In the order of the name."""
    candidates: list[int]
    """Without the names of GPUs ("b200"), each once."""
    rest: str
    """The name without them."""


def batch_in_name(path: Path) -> int | None:
    """Return the batch size in the name of a file or its folder (b64, batch_64, bs=64,
    resnet152_5_batch); None if none or several."""
    candidates = _read_path(path, None).candidates
    return candidates[0] if len(candidates) == 1 else None


def batches_in_names(
    files: Sequence[Path], pattern: str | None = None, ask: Ask | None = None
) -> dict[Path, int]:
    """Return the batch size of each file whose name, or else whose folder's name, says one.

    ``pattern``: a regular expression whose first group, or the one called ``batch``, is the number;
    it takes the place of the forms that ``batch_in_name`` knows. Where a name has several numbers,
    ``ask`` decides.

    Raises UsageError for a pattern that is none, and for names with several numbers where there is
    no ``ask``.
    """
    compiled = None if pattern is None else _compile(pattern)
    named = {path: numbers for path in files if (numbers := _read_path(path, compiled)).sizes}
    with_batch = {numbers.rest for numbers in named.values() if numbers.candidates}
    chosen: dict[Path, int] = {}
    for path, numbers in named.items():
        candidates = numbers.candidates
        if not candidates and numbers.rest in with_batch:  # b100.csv beside b50.csv is no GPU
            candidates = list(dict.fromkeys(numbers.sizes))
        if len(candidates) == 1:
            chosen[path] = candidates[0]
        elif candidates and ask is not None:
            chosen[path] = ask(path, candidates)
        elif candidates:
            sizes = f"{', '.join(map(str, candidates[:-1]))} or {candidates[-1]}"
            remedy = (
                "Say it with `batch_size`, or with `batch_pattern`, a regular expression whose "
                "group is the number"
            )
            raise UsageError(f"{path}: the name may say batch size {sizes}", remedy)
    return chosen


def list_batches(chosen: Mapping[Path, int]) -> list[str]:
    """Return what to say of the batch sizes before anything is read."""
    lines = [f"batch size {size}, from the name: {path.name}" for path, size in chosen.items()]
    if len(lines) <= _SHOWN:
        return lines
    sizes = sorted(Counter(list(chosen.values())[_SHOWN:]).items())
    tally = ", ".join(f"{size} ({number})" for size, number in sizes)
    return [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more files, batch size (files): {tally}"]


def ranks_in_names(paths: Iterable[Path]) -> dict[Path, tuple[int, int | None]]:
    """Return (rank, world size) of each file whose name gives a rank, where several files of one
    folder differ by it.

    The world size is known where the ranks from 0 on are all there; else None.
    """
    groups: dict[tuple[Path, str], list[tuple[Path, int]]] = defaultdict(list)
    for path in paths:
        if (match := _RANK.search(path.name)) is not None:
            # what follows the rank is mostly a time, which differs between ranks
            groups[path.parent, path.name[: match.start()]].append((path, int(match[1])))
    ranks: dict[Path, tuple[int, int | None]] = {}
    for files in groups.values():
        numbers = [number for _, number in files]
        if len(files) < 2 or len(set(numbers)) < len(files):
            continue
        world_size = len(files) if sorted(numbers) == list(range(len(files))) else None
        ranks |= {path: (number, world_size) for path, number in files}
    return ranks


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        reason = f"`batch_pattern`: '{pattern}' is not a regular expression ({error})"
        raise UsageError(reason) from error
    if not compiled.groups:
        remedy = r"Put the number into brackets: 'run(\d+)'"
        raise UsageError(f"`batch_pattern`: '{pattern}' has no group", remedy)
    return compiled


def _read_path(path: Path, pattern: re.Pattern[str] | None) -> _Numbers:
    """Return what the file's name says, else its folder's."""
    name = _read_text(path.name if pattern else path.stem, pattern)
    folder = _read_text(path.parent.name, pattern)
    return folder if folder.candidates and not name.candidates else name


def _read_text(text: str, pattern: re.Pattern[str] | None) -> _Numbers:
    sizes: list[int] = []
    candidates: list[int] = []
    rest = text
    for match in reversed(list((pattern or _IN_NAME).finditer(text))):
        if pattern is None:
            group: str | int = 1 if match[1] else 2
        else:
            group = "batch" if "batch" in pattern.groupindex else 1
        digits = match[group] or ""
        if not (digits.isascii() and digits.isdigit() and 0 < int(digits[:10]) <= 10**9):
            continue
        sizes.insert(0, int(digits))
        if pattern is not None or not _GPU_NAMES.fullmatch(match[0]):
            candidates.insert(0, int(digits))
        rest = f"{rest[: match.start(group)]}#{rest[match.end(group) :]}"
    return _Numbers(sizes, list(dict.fromkeys(candidates)), rest)
