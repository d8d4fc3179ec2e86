"""Compares two recordings, but for the values that were renamed or changed on purpose."""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ABSENT = "(absent)"
ENDING = ".json.gz"


@dataclass(frozen=True)
class Change:
    """A line of changes.tsv. In each of the first three columns ``*`` stands for any text."""

    key: str
    """Area / key."""
    before: str
    after: str
    reason: str

    def fits(self, key: str, before: object, after: object) -> bool:
        """Return whether the line allows this difference."""
        pairs = ((self.key, key), (self.before, str(before)), (self.after, str(after)))
        return all(
            re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL)
            for pattern, text in pairs
        )


@dataclass
class Tally:
    """What a comparison found."""

    values: int = 0
    different: int = 0


def read_table(path: Path | None, columns: int) -> list[list[str]]:
    """Return the rows of a table with tabs. Lines that begin with # are comments."""
    text = path.read_text(encoding="utf-8") if path else ""
    rows = [
        line.split("\t") for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    for row in rows:
        if len(row) != columns:
            sys.exit(f"{path}: {columns} columns expected, {len(row)} found: {row[0][:80]}")
    return rows


def load(path: Path) -> dict[str, object]:
    """Return the values of an area."""
    with gzip.open(path) as file:
        return dict(json.loads(file.read()))


def save(path: Path, values: dict[str, object]) -> None:
    """Write the values of an area; the same values give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed:
        packed.write(json.dumps(values, indent=0, sort_keys=True, default=str).encode())


def same(before: object, after: object) -> bool:
    """Return whether two values are equal, numbers to nine digits."""
    if isinstance(before, int | float) and isinstance(after, int | float):
        return math.isclose(before, after, rel_tol=1e-9)
    return before == after


def renamed(
    values: dict[str, object], renames: list[list[str]]
) -> tuple[dict[str, object], list[str]]:
    """Return the values under their new keys, and the keys that two values would get."""
    found: dict[str, object] = {}
    twice = []
    for key, value in values.items():
        for old, new in renames:
            key = re.sub(old, new, key)
        if key in found:
            twice.append(key)
        found[key] = value
    return found, twice


def areas_of(folders: list[Path]) -> dict[str, Path]:
    """Return area -> recording."""
    return {
        path.name.removesuffix(ENDING): path
        for folder in folders
        for path in sorted(folder.glob(f"*{ENDING}"))
    }


def differences(
    before: dict[str, Path],
    after: dict[str, Path],
    renames: list[list[str]],
    changes: dict[Change, bool],
    quick: bool,
    tally: Tally,
) -> Iterator[str]:
    """Yield a line for each difference that no line of changes.tsv allows, and mark the lines that
    are needed."""
    for area in sorted({*before, *after}):
        if area not in before or area not in after:
            yield f"{area}: not recorded {'before' if area not in before else 'now'}"
            continue
        old, twice = renamed(load(before[area]), renames)
        new = load(after[area])
        yield from (f"{area} / {key}: two values are renamed to this key" for key in twice)
        for key in sorted({*old, *new}):
            if quick and key not in new:
                continue
            tally.values += 1
            pair = old.get(key, ABSENT), new.get(key, ABSENT)
            if same(*pair):
                continue
            allowing = [change for change in changes if change.fits(f"{area} / {key}", *pair)]
            changes.update(dict.fromkeys(allowing, True))
            if not allowing:
                yield f"{area} / {key}: {pair[0]} -> {pair[1]}"


def compare(
    before: dict[str, Path],
    after: dict[str, Path],
    renames: Path | None,
    changes: Path | None,
    quick: bool,
    most: int,
) -> int:
    """Print what differs. Exit code 1 if a value differs, or if an area is missing."""
    needed = dict.fromkeys((Change(*row) for row in read_table(changes, 4)), False)
    tally = Tally()
    for line in differences(before, after, read_table(renames, 2), needed, quick, tally):
        tally.different += 1
        if tally.different <= most:
            print(line)
    compared = {*before, *after}
    for change, found in needed.items():
        if not found and not quick and change.key.partition(" / ")[0] in compared:
            print(f"not needed: {change.key}")
    print(
        f"{tally.values:,} values compared, {tally.different:,} different, "
        f"{sum(needed.values())} of {len(needed)} expected changes found"
    )
    return int(tally.different > 0)
