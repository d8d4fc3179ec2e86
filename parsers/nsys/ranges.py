"""Reads NVTX_EVENTS of an nsys export: names, domains, nesting, and perfctl's range names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfctl.parsers.attribution import NEVER, NOBODY, Attribution, Spans
from perfctl.parsers.nsys import operators as nsys_operators
from perfctl.parsers.nsys.operators import OperatorRanges
from perfctl.parsers.nsys.tables import NVTX, STRINGS
from perfctl.parsers.text.sqlite import Database
from perfctl.records.bulk import Columns
from perfctl.records.ranges import RangeName, read_range_name
from perfctl.records.report import Range

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from perfctl.parsers.attribution import Flags, Integers

    Objects = npt.NDArray[np.object_]

MARK, PUSH_POP, START_END, DOMAIN_CREATE = 34, 59, 60, 75
KINDS = {MARK: "mark", PUSH_POP: "push_pop", START_END: "start_end"}
PROCESS_BITS = ~0xFFFFFF
"""globalTid is (host, process, thread): without the low 24 bits it is the globalPid of kernels."""
CHUNK = 1024


@dataclass(frozen=True, slots=True)
class RangeTable:
    """All ranges and marks in order of start, outer before inner; arrays of one element a range."""

    spans: Spans
    kind: Integers
    domain: Integers
    name: Integers
    names: list[str]
    labels: list[RangeName]
    domains: dict[tuple[int, int], str]
    """(process, domain id) -> name."""
    attribution: Attribution
    operators: OperatorRanges | None = None
    """Where the ranges are PyTorch's operators, with their shapes."""

    def label_of(self, field: str) -> Objects:
        """One field of RangeName for every range, and None at the end, where index NOBODY finds it."""
        import numpy as np

        values = objects([*(getattr(label, field) for label in self.labels), None])
        return np.asarray(values[np.append(self.name, -1)], object)

    def unended(self) -> int:
        """Count the ranges that never ended."""
        return int((self.spans.end == NEVER).sum())

    def records(self) -> Columns[Range]:
        """One Range a range, numbered from 0 in this order; a parent comes before its children."""
        return Columns(Range, self._columns)

    def _columns(self) -> Iterator[Sequence[Sequence[Any]]]:
        parent, depth = self.attribution.tree()
        step_range, phase_range = self.attribution.of_ranges()
        steps, phases = self.label_of("step"), self.label_of("phase")
        layers, directions = ([getattr(label, field) for label in self.labels] for field in ("layer", "direction"))
        spans = self.spans
        never = (spans.end == NEVER) | (self.kind == MARK)
        for first in range(0, len(self.kind), CHUNK):
            part = slice(first, first + CHUNK)
            names = self.name[part].tolist()
            yield (
                range(first, first + len(names)),
                list(map(self.names.__getitem__, names)),
                self._domains(spans.process[part], self.domain[part]),
                spans.start[part].tolist(),
                _blanked(spans.end[part] - spans.start[part], never[part]),
                _blanked(spans.thread[part] & ~PROCESS_BITS, spans.thread[part] == NOBODY),
                _blanked(depth[part], depth[part] == NOBODY),
                _blanked(parent[part], parent[part] == NOBODY),
                list(map(KINDS.__getitem__, self.kind[part].tolist())),
                list(map(layers.__getitem__, names)),
                list(map(directions.__getitem__, names)),
                steps[step_range[part]].tolist(),
                phases[phase_range[part]].tolist(),
            )

    def _domains(self, process: Integers, domain: Integers) -> list[str | None]:
        if not domain.any():
            return [None] * len(domain)
        pairs = zip(process.tolist(), domain.tolist(), strict=True)
        return [self.domains.get(pair, f"domain {pair[1]}") if pair[1] else None for pair in pairs]


def load(database: Database) -> RangeTable:
    """Read NVTX_EVENTS; an empty table where there is none. Raises sqlite3.Error."""
    import numpy as np

    wanted = f"eventType IN ({MARK}, {PUSH_POP}, {START_END})"
    columns = database.integers(
        NVTX,
        "start",
        f"CASE eventType WHEN {MARK} THEN start ELSE coalesce(end, {NEVER}) END",
        "eventType",
        f"coalesce({database.column(NVTX, 'globalTid')}, {NOBODY})",
        f"coalesce({database.column(NVTX, 'domainId')}, 0)",
        where=wanted,
    )
    codes: defaultdict[str, int] = defaultdict()
    codes.default_factory = codes.__len__
    texts = database.texts(NVTX, _text(database), where=wanted)
    name = np.fromiter(map(codes.__getitem__, texts), np.int64, len(columns[0]))
    order = np.lexsort((np.negative(columns[1]), columns[0]))
    start, end, kind, thread, domain, name = (column[order] for column in (*columns, name))
    process = np.where(thread == NOBODY, NOBODY, thread & PROCESS_BITS)
    spans = Spans(process, thread, start, np.maximum(start, end))
    names, labels = list(codes), [read_range_name(text) for text in codes]
    on_stack = (kind == PUSH_POP) & (thread != NOBODY)

    def attribution() -> Attribution:
        said = [
            np.fromiter((getattr(label, field) is not None for label in labels), bool, len(labels))[name]
            for field in ("layer", "step", "phase")
        ]
        return Attribution(spans, on_stack, *said)

    found, operators = attribution(), None
    if not any(label.layer for label in labels) and any(map(nsys_operators.has_shapes, names)):
        parents, _ = found.tree()
        operators = nsys_operators.read(names, name.tolist(), process.tolist(), parents.tolist())
        name = _relabelled(name, names, labels, operators.labels)
        found = attribution()
    return RangeTable(spans, kind, domain, name, names, labels, _domains(database), found, operators)


def _relabelled(name: Integers, names: list[str], labels: list[RangeName], rows: Mapping[int, RangeName]) -> Integers:
    """The ranges' names, after one more for each text and row was added to ``names`` and ``labels``."""
    changed, numbers = name.copy(), {}
    for index, label in rows.items():
        key = (int(name[index]), label)
        if key not in numbers:
            numbers[key] = len(names)
            names.append(names[key[0]])
            labels.append(label)
        changed[index] = numbers[key]
    return changed


def _text(database: Database) -> str:
    registered = "NULL"
    if database.has(NVTX, "textId") and database.has(STRINGS, "id", "value"):
        registered = f"(SELECT value FROM {STRINGS} WHERE id = textId)"
    return f"CAST(coalesce({database.column(NVTX, 'text')}, {registered}, '') AS TEXT)"


def _domains(database: Database) -> dict[tuple[int, int], str]:
    if not database.has(NVTX, "domainId", "globalTid"):
        return {}
    rows = database.connection.execute(
        f"SELECT globalTid & {PROCESS_BITS}, domainId, {_text(database)} FROM {NVTX} WHERE eventType = {DOMAIN_CREATE}"
    )
    return {(process, domain): name for process, domain, name in rows if name}


def objects(values: Sequence[object]) -> Objects:
    """An object array, for fast selection by index."""
    import numpy as np

    array = np.empty(len(values), object)
    array[:] = values
    return array


def _blanked(values: Integers, blank: Flags) -> list[int | None]:
    """The values as Python integers, None where ``blank``."""
    import numpy as np

    out: list[int | None] = values.tolist()
    for index in np.flatnonzero(blank).tolist():
        out[index] = None
    return out
