"""Reads NVTX_EVENTS of an nsys export: names, domains, nesting, and perfctl's range names.

What belongs to a range: GPU time of ranges is what the calls inside a range launched took on the
GPU, as ``nsys stats`` projects ranges (nvtx_gpu_proj_sum). A range has an operation when its launch
call lies inside the range on the range's own thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perfctl.parsers.attribution import (
    NEVER,
    NOBODY,
    Flags,
    Integers,
    IntervalNest,
    RangeAttribution,
    SpanArrays,
)
from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.nsys import operators as nsys_operators
from perfctl.parsers.nsys.columns import NULL, raise_if_null_values, read_integer_columns
from perfctl.parsers.nsys.operators import OperatorRanges
from perfctl.parsers.nsys.tables import NVTX, STRINGS
from perfctl.records.bulk import ColumnChunks
from perfctl.records.ranges import RangeName, parse_range_name

Objects = npt.NDArray[np.object_]
Times = tuple[list[int | None], list[int | None]]

MARK, PUSH_POP, START_END, DOMAIN_CREATE = 34, 59, 60, 75
KINDS = {MARK: "mark", PUSH_POP: "push_pop", START_END: "start_end"}
_IS_RANGE = f"eventType IN ({', '.join(map(str, KINDS))})"
PROCESS_BITS = ~0xFFFFFF
"""globalTid is (host, process, thread): without the low 24 bits it is the globalPid of kernels."""
CHUNK = 8192


class RangeTable(NamedTuple):
    """All ranges and marks in order of start, outer before inner; arrays of one element a range."""

    spans: SpanArrays
    kind: Integers
    domain: Integers
    name: Integers
    names: list[str]
    labels: list[RangeName]
    domains: dict[tuple[int, int], str]
    """(process, domain id) -> name."""
    attribution: RangeAttribution
    on_one_thread: Flags
    """Start/end ranges that ended on the thread where they began."""
    operators: OperatorRanges | None = None
    """Where the ranges are PyTorch's operators, with their shapes."""

    def get_label_field_per_range(self, field: str) -> Objects:
        """One field of RangeName for every range, and None at the end, where index NOBODY
        finds it."""
        values = make_object_array([*(getattr(label, field) for label in self.labels), None])
        return np.asarray(values[np.append(self.name, -1)], object)

    def get_step_per_range(self) -> Integers:
        """Return the step of every range, NOBODY where its name is of no step; and NOBODY at
        the end."""
        steps = [NOBODY if label.step is None else label.step for label in self.labels]
        return np.append(np.array(steps, np.int64)[self.name], NOBODY)

    def iterate_range_columns(self, gpu_times_and_spans: Times) -> ColumnChunks:
        """Yield the columns of one Range per range, numbered from 0 in this order; a parent comes
        before its children. ``gpu_times_and_spans``: GPU time and span of each."""
        parent, depth = self.attribution.parents_and_depths
        step_range, phase_range = self.attribution.find_step_and_phase_ranges()
        layers, directions = (
            self.get_label_field_per_range("layer"),
            self.get_label_field_per_range("direction"),
        )
        steps, phases = (
            self.get_label_field_per_range("step")[step_range],
            self.get_label_field_per_range("phase")[phase_range],
        )
        spans, names = self.spans, make_object_array(self.names)
        length = spans.end - spans.start
        never = (spans.end == NEVER) | (self.kind == MARK)
        for first in range(0, len(self.kind), CHUNK):
            part = slice(first, min(first + CHUNK, len(self.kind)))
            thread = spans.thread[part]
            yield (
                range(part.start, part.stop),
                names[self.name[part]].tolist(),
                self._find_domain_names(spans.process[part], self.domain[part]),
                spans.start[part].tolist(),
                convert_to_list_with_none(length[part], never[part]),
                convert_to_list_with_none(thread & ~PROCESS_BITS, thread == NOBODY),
                convert_to_list_with_none(depth[part], depth[part] == NOBODY),
                convert_to_list_with_none(parent[part], parent[part] == NOBODY),
                list(map(KINDS.__getitem__, self.kind[part].tolist())),
                *(column[part].tolist() for column in (layers, directions, steps, phases)),
                *(column[part] for column in gpu_times_and_spans),
            )

    def _find_domain_names(self, process: Integers, domain: Integers) -> list[str | None]:
        if not domain.any():
            return [None] * len(domain)
        pairs = zip(process.tolist(), domain.tolist(), strict=True)
        return [self.domains.get(pair, f"domain {pair[1]}") if pair[1] else None for pair in pairs]


def load_range_table(database: Database) -> RangeTable:
    """Read NVTX_EVENTS; an empty table where there is none. Raises sqlite3.Error."""
    columns = ("start", "end", "eventType", "globalTid", "domainId", "endGlobalTid")
    start, end, kind, *other_columns = read_integer_columns(
        database, NVTX, *columns, sql_condition=_IS_RANGE
    )
    name, names = _read_distinct_range_texts(database)
    raise_if_null_values(NVTX, start)
    raise_if_null_values(NVTX, kind)
    end = np.where(kind == MARK, start, np.where(end == NULL, NEVER, end))
    order = np.lexsort((np.negative(end), start))
    start, end, kind, name = (column[order] for column in (start, end, kind, name))
    thread, domain, end_thread = (column[order] for column in other_columns)
    is_elsewhere = (end_thread != NULL) & (end_thread != thread)
    process = np.where(thread == NULL, NOBODY, thread & PROCESS_BITS)
    thread = np.where(thread == NULL, NOBODY, thread)
    spans = SpanArrays(process, thread, start, np.maximum(start, end))
    labels = list(map(parse_range_name, names))
    on_stack = (kind == PUSH_POP) & (thread != NOBODY)

    def attribute_ranges() -> RangeAttribution:
        marks = (
            np.array([getattr(label, field) is not None for label in labels], bool)[name]
            for field in ("layer", "step", "phase")
        )
        return RangeAttribution(spans, on_stack, *marks)

    attribution, operators = attribute_ranges(), None
    if not any(label.layer for label in labels) and any(
        map(nsys_operators.has_operator_shapes, names)
    ):
        parents, _ = attribution.parents_and_depths
        operators = nsys_operators.read_operator_ranges(
            names, name.tolist(), process.tolist(), parents.tolist()
        )
        name = _relabel_operator_ranges(name, names, labels, operators.labels)
        attribution = attribute_ranges()
    return RangeTable(
        spans,
        kind,
        np.where(domain == NULL, 0, domain),
        name,
        names,
        labels,
        _read_domain_names(database),
        attribution,
        (kind == START_END) & ~is_elsewhere,
        operators,
    )


def _read_distinct_range_texts(database: Database) -> tuple[Integers, list[str]]:
    """Return the number of each range's text, in the order of the table, and the texts."""
    if NVTX not in database.tables:
        return np.empty(0, np.int64), []
    codes: defaultdict[bytes, int] = defaultdict()
    codes.default_factory = codes.__len__
    # each text is decoded once, below
    texts = database.connection.execute(
        f"SELECT CAST({_build_range_text_sql(database)} AS BLOB) FROM {NVTX} NOT INDEXED "
        f"WHERE {_IS_RANGE} "
        "ORDER BY rowid"
    )
    name = np.fromiter(map(codes.__getitem__, chain.from_iterable(texts)), np.int64)
    return name, [text.decode("utf-8", "replace") for text in codes]


def _relabel_operator_ranges(
    name: Integers, names: list[str], labels: list[RangeName], rows: Mapping[int, RangeName]
) -> Integers:
    """Return the ranges' names, after one more for each text and row was added to ``names``
    and ``labels``."""
    changed, numbers = name.copy(), dict[object, int]()
    for index, label in rows.items():
        text = int(name[index])
        changed[index] = number = numbers.setdefault((text, label), len(names))
        if number == len(names):
            names.append(names[text])
            labels.append(label)
    return changed


def _build_range_text_sql(database: Database) -> str:
    registered = "NULL"
    if database.has_table_with_columns(NVTX, "textId") and database.has_table_with_columns(
        STRINGS, "id", "value"
    ):
        registered = f"(SELECT value FROM {STRINGS} WHERE id = textId)"
    return f"CAST(coalesce({database.column_or_null(NVTX, 'text')}, {registered}, '') AS TEXT)"


def _read_domain_names(database: Database) -> dict[tuple[int, int], str]:
    if not database.has_table_with_columns(NVTX, "domainId", "globalTid"):
        return {}
    rows = database.connection.execute(
        f"SELECT globalTid & {PROCESS_BITS}, domainId, {_build_range_text_sql(database)} FROM "
        f"{NVTX} WHERE "
        f"eventType = {DOMAIN_CREATE}"
    )
    return {(process, domain): name for process, domain, name in rows if name}


def make_object_array(values: Sequence[object]) -> Objects:
    """An object array, for fast selection by index."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def convert_to_list_with_none(values: npt.NDArray[Any], is_none: Flags) -> list[int | None]:
    """The values as Python integers, None where ``is_none``."""
    numbers: list[int | None] = values.tolist()
    for index in np.flatnonzero(is_none).tolist():
        numbers[index] = None
    return numbers


class GpuTimeByRange:
    """Sums and extremes of the GPU operations of every range; ``add_gpu_operations`` all of them,
    then ``compute_gpu_times_and_spans``."""

    def __init__(self, ranges: RangeTable) -> None:
        count, spans = len(ranges.kind), ranges.spans
        # the last of each is for operations outside of every range
        self._sum = np.zeros(count + 1, np.int64)
        self._first, self._last = np.full(count + 1, NEVER), np.full(count + 1, -NEVER)
        self._parent, self._depth = ranges.attribution.parents_and_depths
        self._is_timed = (ranges.kind == PUSH_POP) | ranges.on_one_thread
        self._is_timed &= spans.thread != NOBODY
        chosen = np.flatnonzero(self._is_timed)
        self._numbers = np.append(chosen, NOBODY)
        self._nest: IntervalNest | None = None
        if ranges.on_one_thread.any() or _have_crossing_ranges(
            spans.select_spans(chosen), self._parent[chosen]
        ):
            timed = spans.select_spans(chosen)
            self._nest = IntervalNest(timed.thread, timed.start, timed.end)

    @property
    def needs_call_spans(self) -> bool:
        """Whether ``add_gpu_operations`` needs the spans of the calls: some ranges cross, so no
        tree says which ones are around a call."""
        return self._nest is not None

    def add_gpu_operations(
        self,
        innermost_range: npt.NDArray[Any],
        call_index: Integers,
        call_spans: SpanArrays | None,
        start_ns: Integers,
        duration_ns: Integers,
    ) -> None:
        """Operations: the innermost range around each, the number of its launch call, when it began
        and how long it took; a length below 0 is not known."""
        levels: Iterable[Integers] = [innermost_range]
        if self._nest is not None and call_spans is not None:
            spans = call_spans.select_spans(call_index)
            places = self._nest.find_last_started_positions(spans.thread, spans.start)
            levels = (
                self._numbers[numbers] for numbers in self._nest.iterate_outwards(places, spans.end)
            )
        for level in levels:
            index = np.where(duration_ns < 0, NOBODY, level)
            self._accumulate_sum_and_bounds(index, duration_ns, start_ns, start_ns + duration_ns)

    def _accumulate_sum_and_bounds(
        self, index: Integers, total: Integers, first: Integers, last: Integers
    ) -> None:
        np.add.at(self._sum, index, total)
        np.minimum.at(self._first, index, first)
        np.maximum.at(self._last, index, last)

    def compute_gpu_times_and_spans(self, has_launch_calls: bool) -> Times:
        """(time of its operations added up, from the first start to the last end) of every range.
        Call it once, last."""
        if self._nest is None:  # give each range's operations to the ranges around it
            for level in range(int(self._depth.max(initial=0)), 0, -1):
                inner = np.flatnonzero(self._depth == level)
                columns = (self._sum[inner], self._first[inner], self._last[inner])
                self._accumulate_sum_and_bounds(self._parent[inner], *columns)
        unknown = ~self._is_timed | (not has_launch_calls)
        span, is_empty = (self._last - self._first)[:-1], self._last[:-1] == -NEVER
        return convert_to_list_with_none(self._sum[:-1], unknown), convert_to_list_with_none(
            span, unknown | is_empty
        )


def _have_crossing_ranges(spans: SpanArrays, parent: Integers) -> bool:
    """Return whether two of these ranges overlap on one thread, and neither is inside the other."""
    order = np.lexsort((spans.start, parent, spans.thread))
    before, after = order[:-1], order[1:]
    siblings = (parent[before] == parent[after]) & (spans.thread[before] == spans.thread[after])
    return bool((siblings & (spans.end[before] > spans.start[after])).any())
