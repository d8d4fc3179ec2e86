"""Reports of the ranks of one job: which rank each is, and what of its communication nothing hides."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from perfctl.orchestrator.analyse.usage.ranks import with_exposed
from perfctl.records.report import Report

_IN_NAME = re.compile(r"(?<![a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
"""torchrun's own names ("rank3.pt.trace.json", "report.rank3.nsys-rep", "rank-34.Jul_15..."); hosts and workers are none."""


def ranks_in_names(paths: Iterable[Path]) -> dict[Path, tuple[int, int | None]]:
    """(rank, world size) of each file whose name gives a rank, where several files of one folder differ by it.

    The world size is known where the ranks from 0 on are all there; else None.
    """
    groups: dict[tuple[Path, str], list[tuple[Path, int]]] = defaultdict(list)
    for path in paths:
        if (match := _IN_NAME.search(path.name)) is not None:
            # what follows the rank is mostly a time, which differs between ranks
            groups[path.parent, path.name[: match.start()]].append((path, int(match[1])))
    found: dict[Path, tuple[int, int | None]] = {}
    for files in groups.values():
        numbers = [number for _, number in files]
        if len(files) < 2 or len(set(numbers)) < len(files):
            continue
        world = len(files) if sorted(numbers) == list(range(len(files))) else None
        found |= {path: (number, world) for path, number in files}
    return found


def numbered(report: Report, rank: int | None = None, world: int | None = None) -> Report:
    """The report with its rank: its own, else ``rank`` of ``world`` processes, as its name says. Its
    variant keeps it apart from the other ranks."""
    if report.rank is None and rank is not None:
        report = replace(report, rank=rank, world_size=report.world_size or world)
    if report.rank is None:
        return report
    mark = rank_mark(report.rank, report.world_size)
    return replace(report, variant=f"{report.variant}, {mark}" if report.variant else mark)


def rank_mark(rank: int, world: int | None) -> str:
    """ "rank 0 of 8"."""
    return f"rank {rank}" if world is None else f"rank {rank} of {world}"


def of_job(report: Report) -> Report:
    """The report with what of each collective's time no other kernel covers, where its kernels can be read again."""
    collectives = list(report.collectives)
    if not collectives or not isinstance(report.kernels, Sequence):
        return replace(report, collectives=collectives)
    return replace(report, collectives=with_exposed(collectives, report.kernels))
