"""Builds the Report of launches and their metric values, which every format of ncu fills alike. The
decimal style of printed numbers is known only at the end of a file, so values are kept as printed
and become numbers when the counters are read; values of a report file are numbers already."""

from __future__ import annotations

from array import array
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.lines import Log
from perfctl.parsers.common.numbers import (
    AmbiguousNumber,
    DecimalStyle,
    StyleEvidence,
    base_unit,
    read_value,
    scaled,
    to_base,
)
from perfctl.parsers.ncu import summary
from perfctl.parsers.ncu.advice import Rules
from perfctl.parsers.ncu.facts import (
    CYCLES,
    FACT_NAMES,
    KERNEL_FACTS,
    NO_FACT,
    Facts,
    Value,
    add_steps,
    counts_flops,
    device_of,
    kernel_fields,
    place_in_name,
    place_of,
)
from perfctl.parsers.ncu.log import diagnostics as log_diagnostics
from perfctl.records.bulk import NumberedCounters
from perfctl.records.report import WORKED_OUT, Device, Diagnostic, Gap, Kernel, Report

CHUNK = 1024
LAUNCHES_MIN = 3
"""Launches of a file from which a metric that all but one have counts as missing in that one."""
ID_DIGITS = 18
"""Digits that a whole number in an identity cell may have."""

NO_VALUE = frozenset({"", "n/a", "N/A", "no data", "nan", "-nan", "inf", "-inf"})
"""Texts that ncu prints instead of a missing value."""
_REASONS = {
    "not_available": (
        'ncu printed "{text}" in place of {count} values: this GPU or ncu version has no such '
        "metric, or it could not be collected"
    ),
    "ambiguous": (
        '{count} values such as "{text}" may be whole numbers or fractions, and nothing in the '
        "file says which; export it again with LC_ALL=C"
    ),
    "unreadable": (
        '{count} values such as "{text}" do not fit the number format of the rest of the file; '
        "export it again with LC_ALL=C"
    ),
}


class Launch(NamedTuple):
    """Identity of one launch, as printed; "" where the format does not state it."""

    order: int
    """ID; in formats without IDs, the position in the file."""
    name: str
    stream: str = ""
    block: str = ""
    grid: str = ""
    device: str = ""
    capability: str = ""
    process: str = ""
    context: str = ""
    push_pop: tuple[str, ...] = ()
    """Names of the NVTX ranges around it, outermost first."""
    start_end: tuple[str, ...] = ()
    short_name: str | None = None


class ReportBuilder:
    """Takes launches and metric values in the order of a file, and makes a Report of them."""

    def __init__(self, path: Path, *, is_printed: bool = True) -> None:
        """``is_printed``: values are texts that may be numbers; else they are what they are."""
        self.path = path
        self.launches: list[Launch] = []
        self.metrics: list[tuple[str, str, str | None]] = []
        """Name, unit as printed, and section."""
        self.rules = Rules()
        self.summary_rows: list[dict[str, str]] = []
        """Rows of a summary, which has no launches, by the names of the CSV's columns."""
        self._is_printed = is_printed
        self._metric_numbers: dict[tuple[str, str, str | None], int] = {}
        self._facts: list[dict[str, tuple[Value, str]]] = []
        """Of each launch: metric that is a fact or counts FLOPs -> its first value, and unit."""
        self._fact_positions: dict[tuple[int, ...], list[tuple[int, str, str]]] = {}
        """Numbers of metrics -> positions of such metrics among them, their names and units."""
        self._cells = array("I"), array("I"), array("I")
        """Launch, metric, and index of the value in ``_values``."""
        self._values: list[Value] = []
        self._value_numbers: defaultdict[Value, int] = defaultdict(count().__next__)
        self._style = DecimalStyle.POINT

    def add_launch(self, launch: Launch) -> int:
        """Return the number of a new launch."""
        self.launches.append(launch)
        self._facts.append({})
        return len(self.launches) - 1

    def number_metric(self, name: str, unit: str, section: str | None) -> int:
        """Return the number of a metric in one unit and section; new ones get one."""
        metric = (name, unit, section)
        number = self._metric_numbers.setdefault(metric, len(self.metrics))
        if number == len(self.metrics):
            self.metrics.append(metric)
        return number

    def add_values(self, launch: int, metrics: list[int], values: Sequence[Value]) -> None:
        """Take in values of a launch, and the numbers of their metrics."""
        launches, numbers, cells = self._cells
        launches.extend(array("I", [launch]) * len(metrics))
        numbers.fromlist(metrics)
        cells.fromlist(list(map(self._value_numbers.__getitem__, values)))
        key = tuple(metrics)  # most launches have the same ones
        if key not in self._fact_positions:
            named = [(at, *self.metrics[metric][:2]) for at, metric in enumerate(metrics)]
            self._fact_positions[key] = [
                fact for fact in named if fact[1] in FACT_NAMES or counts_flops(fact[1])
            ]
        for at, name, unit in self._fact_positions[key]:
            self._facts[launch].setdefault(name, (values[at], unit))

    def _read_number(self, value: Value) -> tuple[int | float | None, str | None]:
        """Return the number of a value, or None and the state of the gap where one was expected."""
        if value is None:
            return None, "not_available"
        if not isinstance(value, str):  # beyond 64 bits a float
            return value if isinstance(value, float) else to_base(value), None
        if not self._is_printed:
            return None, None
        try:
            number = read_value(value, self._style)
        except AmbiguousNumber:
            return None, "ambiguous"
        if number is not None:
            return number, None
        if value.strip().lower() in NO_VALUE:
            return None, "not_available"
        return None, None if value.strip("0123456789.,+-") else "unreadable"

    def _scale(self, value: Value, number: int | float | None, scale: int) -> int | float | None:
        if isinstance(value, float):
            return value * scale
        return scaled(str(value), number, self._style, scale)

    def _read_fact(self, value: Value, printed_unit: str) -> tuple[Value, str | None]:
        unit = base_unit(printed_unit)
        number, state = self._read_number(value)
        fact = self._scale(value, number, unit.scale)
        return value if fact is None and state is None else fact, unit.name

    def report(
        self,
        form: str,
        gaps: Iterable[Gap],
        notes: Iterable[Diagnostic],
        log: Log | None = None,
        driver_version: str | None = None,
        **fields: Any,
    ) -> Report:
        """Return the whole report. ``log``: of the lines around the values; ``fields``: of Report,
        which the launches do not decide."""
        if self.summary_rows:
            notes = (*log_diagnostics(log or Log()), *notes)
            return summary.report(self.path, form, self.summary_rows, gaps, notes)
        self._values = list(self._value_numbers)
        self._value_numbers.clear()
        evidence = StyleEvidence()
        for value in self._values if self._is_printed else ():
            evidence.add(str(value))
        self._style = evidence.decide()
        numbers: list[int | float | None] = []
        states: dict[int, str] = {}
        for at, (number, state) in enumerate(map(self._read_number, self._values)):
            numbers.append(number)
            if state:
                states[at] = state
        read_fact = cache(self._read_fact)
        facts: list[Facts] = [
            {name: read_fact(*fact) for name, fact in printed.items()} for printed in self._facts
        ]
        by_id = sorted(range(len(facts)), key=lambda index: self.launches[index].order)
        ranks = {index: rank for rank, index in enumerate(by_id)}
        kernels = [self._kernel(index, rank, facts[index]) for index, rank in ranks.items()]
        devices: dict[int, Device] = {}
        for kernel, index in zip(kernels, by_id, strict=True):
            at, capability = kernel.device_index or 0, self.launches[index].capability or None
            if at not in devices:
                device = device_of(at, capability, facts[index], driver_version)
                if device.name or device.compute_capability:
                    devices[at] = device
        add_steps(kernels)
        units = [base_unit(unit) for _, unit, _ in self.metrics]
        names = [
            (name, unit.name, section)
            for (name, _, section), unit in zip(self.metrics, units, strict=True)
        ]
        scales = [unit.scale for unit in units]
        diagnostics = log_diagnostics(log or Log())
        rounded = [metric for metric, scale in zip(self.metrics, scales, strict=True) if scale != 1]
        if rounded and self._is_printed:
            text = (
                f"{len(rounded)} metrics are rounded because ncu printed them in scaled units (for "
                f"example {rounded[0][0]} in {rounded[0][1]}); export with --print-units base for "
                "exact figures"
            )
            diagnostics.append(Diagnostic("info", "perfctl", text))
        return Report(
            tool="ncu",
            path=self.path,
            form=form,
            devices=tuple(devices[at] for at in sorted(devices)),
            kernels=kernels,
            counters=NumberedCounters(names, lambda: self._columns(numbers, ranks, scales)),
            gaps=(
                *self._value_gaps(states),
                *self._kernel_gaps(kernels, facts),
                *gaps,
            ),
            diagnostics=(*diagnostics, *notes),
            advice=self.rules.ordered(ranks),
            **fields,
        )

    def _kernel(self, index: int, rank: int, facts: Facts) -> Kernel:
        launch, fields = self.launches[index], kernel_fields(facts)
        for axes, text in (("grid", launch.grid), ("block", launch.block)):
            sizes = _dimensions(text)
            if sizes is not None and 0 not in sizes:
                fields |= zip((f"{axes}_x", f"{axes}_y", f"{axes}_z"), sizes, strict=True)
        for name, text in (
            ("stream", launch.stream),
            ("device_index", launch.device),
            ("process", launch.process),
            ("context", launch.context),
        ):
            if is_whole(text):
                fields[name] = int(text)
        place = place_of(launch.push_pop, launch.start_end, launch.name)
        is_counted = any(
            counts_flops(name) and isinstance(value, int | float)
            for name, (value, _) in facts.items()
        )
        return Kernel(
            rank,
            launch.name,
            launch.short_name,
            *place,
            layer_source=None if place.layer is None else "range",
            source="counted" if is_counted else None,
            **fields,  # type: ignore[arg-type]
        )

    def _columns(
        self, numbers: list[int | float | None], ranks: dict[int, int], scales: list[int]
    ) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield the columns of NumberedCounters, in the order of the file."""
        is_scaled = any(scale != 1 for scale in scales)
        for first in range(0, len(self._cells[0]), CHUNK):
            launches, metrics, values = (cells[first : first + CHUNK] for cells in self._cells)
            column = list(map(numbers.__getitem__, values))
            for at, metric in enumerate(metrics) if is_scaled else ():
                if scales[metric] != 1:
                    column[at] = self._scale(self._values[values[at]], column[at], scales[metric])
            texts: list[Value] = [None] * len(column)
            if None in column:
                texts = [
                    self._values[value] or None if number is None else None
                    for number, value in zip(column, values, strict=True)
                ]
            yield list(map(ranks.__getitem__, launches)), metrics, column, texts

    def _value_gaps(self, states: dict[int, str]) -> Iterator[Gap]:
        """Yield a gap for each metric and reason that has values without a number where one was
        expected, and for each metric that one launch lacks. ``states``: index of a value -> why."""
        launches, metrics, values = self._cells
        values_without: Tally[tuple[str, str]] = Tally()
        examples: dict[tuple[str, str], Value] = {}
        for metric, value in zip(metrics, values, strict=True) if states else ():
            if state := states.get(value):
                key = (self.metrics[metric][0], state)
                values_without[key] += 1
                examples.setdefault(key, self._values[value])
        cells, holders = Tally(metrics), set(launches)
        missing = 0
        for (name, state), number in values_without.items():
            reason = f"the report has no value for it in {number} launches"
            if self._is_printed:
                reason = _REASONS[state].format(text=examples[name, state], count=number)
            yield Gap(f"counter:{name}", state, reason)
            missing += number if state == "not_available" else 0
        if missing and missing == cells.total():
            reason = (
                f"none of the {missing:,} metric values is a number: check the metrics' names with "
                "'ncu --query-metrics', and ncu's messages"
            )
            yield Gap("counter.value", "unreadable", reason)
        if holders and (without := len(self.launches) - len(holders)):
            reason = f"{without} of {len(self.launches)} launches have no metric values"
            yield Gap("counter", "not_collected", reason)
        by_section: Tally[tuple[str, str | None]] = Tally()
        for metric, number in cells.items():  # one may be in "Kbyte" here and "Mbyte" there
            name, _, section = self.metrics[metric]
            by_section[name, section] += number
        lacking = [name for (name, _), n in by_section.items() if n == len(holders) - 1]
        if lacking and len(holders) >= LAUNCHES_MIN:
            reason = (
                f"1 of {len(holders)} launches lacks {len(lacking)} metrics that all others have"
            )
            yield Gap("counter", "not_collected", f"{reason}, such as {lacking[0]}")

    def _kernel_gaps(self, kernels: list[Kernel], facts: list[Facts]) -> Iterator[Gap]:
        """Yield the fields of ``kernel`` that are empty, and which metric would fill them, or did
        not. ncu gives a launch that failed a grid of 0 blocks."""
        renamed = [kernel.name for kernel in kernels if place_in_name(kernel.name) is not None]
        if renamed:
            reason = (
                f'ncu printed the NVTX range (such as "{renamed[0][:100]}") instead of the '
                f"kernel's name for {len(renamed)} of {len(kernels)} launches; export the report "
                "again without --print-nvtx-rename"
            )
            yield Gap("kernel.name", "not_available", reason)
        yield from self._field_gap("duration_ns", kernels)
        failed = dict.fromkeys(
            launch.name
            for launch, known in zip(self.launches, facts, strict=True)
            if 0 in (_dimensions(launch.grid) or known.get("launch__grid_dim_x", NO_FACT)[:1])
        )
        for name in failed:
            reason = "ncu gives the grid (0, 0, 0): this launch failed"
            yield Gap("kernel.grid_x", "not_available", reason, scope=name)
        if not failed and all(kernel.grid_x is None for kernel in kernels):
            reason = "no launch has a Grid Size (older versions of ncu give none)"
            yield Gap("kernel.grid_x", "not_available", reason)
        names = {name for name, *_ in self.metrics}
        pair = next((pair for pair in CYCLES if names.issuperset(pair)), None)
        is_timed = any(kernel.duration_ns is not None for kernel in kernels)
        if pair and is_timed and names.isdisjoint(KERNEL_FACTS["duration_ns"]):
            reason = (
                f"gpu__time_duration.sum is not among the metrics; times are {WORKED_OUT}: "
                f"{pair[0]} / {pair[1]}"
            )
            yield Gap("kernel.duration_ns", "not_collected", reason)
        if all(kernel.registers is None for kernel in kernels):
            yield from self._field_gap("registers", kernels)

    def _field_gap(self, field: str, kernels: list[Kernel]) -> Iterator[Gap]:
        empty = sum(getattr(kernel, field) is None for kernel in kernels)
        for name in KERNEL_FACTS[field] if empty else ():
            values = {facts[name][0] for facts in self._facts if name in facts}
            if any(self._read_number(value)[1] == "not_available" for value in values):
                reason = f"ncu could not measure {name} in {empty} of {len(kernels)} launches"
                yield Gap(f"kernel.{field}", "not_available", reason)
                return
        if empty == len(kernels):
            reason = f"{KERNEL_FACTS[field][0]} is not among the metrics"
            yield Gap(f"kernel.{field}", "not_collected", reason)


def is_whole(text: str) -> bool:
    """Return whether a cell is a whole number of a size that fits the store."""
    return text.isascii() and text.isdigit() and len(text) <= ID_DIGITS


@lru_cache(maxsize=4096)
def _dimensions(text: str) -> tuple[int, ...] | None:
    """Return (16, 8, 1) for "(16, 8, 1)"; None for anything else."""
    parts = [part.strip() for part in text.strip().removeprefix("(").removesuffix(")").split(",")]
    return tuple(map(int, parts)) if len(parts) == 3 and all(map(is_whole, parts)) else None
