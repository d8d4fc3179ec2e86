"""Batch sizes in the names of reports, for reports that do not say theirs: report_b16.csv,
batch_size_128/trace.json."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class _Found:
    """The numbers in one name that may be its batch size."""

    sizes: tuple[int, ...]
    """In the order of the name."""
    rest: str
    """The name without them."""
    is_gpu: tuple[bool, ...]
    """Which of them are the names of GPUs ("b200") as well."""

    def candidates(self) -> list[int]:
        """The different numbers, without those that name a GPU."""
        return list(
            dict.fromkeys(
                size for size, gpu in zip(self.sizes, self.is_gpu, strict=True) if not gpu
            )
        )


def batch_in_name(path: Path) -> int | None:
    """The batch size in the name of a file or its folder (b64, batch_64, bs=64, resnet152_5_batch);
    None if none or several."""
    found = _find(path, None)
    return found.candidates()[0] if found and len(found.candidates()) == 1 else None


def batches_in_names(
    files: Sequence[Path], pattern: str | None = None, ask: Ask | None = None
) -> dict[Path, int]:
    """The batch size of each file whose name, or else whose folder's name, says one.

    ``pattern``: a regular expression whose first group, or the one called ``batch``, is the number;
    it takes the place of the forms that ``batch_in_name`` knows. Where a name has several numbers,
    ``ask`` decides.

    Raises UsageError for a pattern that is none, and for names with several numbers where there is
    no ``ask``.
    """
    compiled = _compiled(pattern)
    named = {path: found for path in files if (found := _find(path, compiled)) is not None}
    with_batch = {found.rest for found in named.values() if found.candidates()}
    chosen: dict[Path, int] = {}
    for path, found in named.items():
        candidates = found.candidates()
        if not candidates and found.rest in with_batch:  # b100.csv beside b50.csv is no GPU
            candidates = list(dict.fromkeys(found.sizes))
        if len(candidates) > 1 and ask is None:
            raise _ambiguous(path, candidates)
        if candidates:
            chosen[path] = ask(path, candidates) if ask and len(candidates) > 1 else candidates[0]
    return chosen


def listed(chosen: Mapping[Path, int]) -> list[str]:
    """What to say of the batch sizes before anything is read."""
    lines = [f"batch size {size}, from the name: {path.name}" for path, size in chosen.items()]
    if len(lines) <= _SHOWN:
        return lines
    tally = ", ".join(
        f"{size} ({count})"
        for size, count in sorted(Counter(list(chosen.values())[_SHOWN:]).items())
    )
    return [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more files, batch size (files): {tally}"]


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"`batch_pattern`: '{pattern}' is not a regular expression ({error})"
        ) from error
    if not compiled.groups:
        raise UsageError(
            f"`batch_pattern`: '{pattern}' has no group",
            r"Put the number into brackets: 'run(\d+)'",
        )
    return compiled


def _find(path: Path, pattern: re.Pattern[str] | None) -> _Found | None:
    """What the file's name says, else its folder's; None where neither says anything."""
    name, folder = (
        _in_text(path.name if pattern else path.stem, pattern),
        _in_text(path.parent.name, pattern),
    )
    chosen = next((found for found in (name, folder) if found.candidates()), name)
    return chosen if chosen.sizes else None


def _in_text(text: str, pattern: re.Pattern[str] | None) -> _Found:
    group: str | int = "batch" if pattern is not None and "batch" in pattern.groupindex else 1
    sizes, gpus, spans = [], [], []
    for match in (pattern or _IN_NAME).finditer(text):
        number: str | int = group if pattern is not None or match[1] else 2
        digits = match[number] or ""
        if digits.isascii() and digits.isdigit() and 0 < int(digits[:10]) <= 10**9:
            sizes.append(int(digits))
            gpus.append(pattern is None and _GPU_NAMES.fullmatch(match[0]) is not None)
            spans.append(match.span(number))
    rest = text
    for start, end in reversed(spans):
        rest = f"{rest[:start]}#{rest[end:]}"
    return _Found(tuple(sizes), rest, tuple(gpus))


def _ambiguous(path: Path, candidates: Sequence[int]) -> UsageError:
    sizes = f"{', '.join(map(str, candidates[:-1]))} or {candidates[-1]}"
    remedy = (
        "Say it with `batch_size`, or with `batch_pattern`, a regular expression whose group is "
        "the number"
    )
    return UsageError(f"{path}: the name may say batch size {sizes}", remedy)
