"""Builds the Report of launches and their metric values, which every format of ncu fills alike. The
decimal style of printed numbers is known only at the end of a file, so values are kept as printed
and become numbers when the counters are read; values of a report file are numbers already."""

from __future__ import annotations

import json
import tempfile
import weakref
from array import array
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from perfctl.parsers.ncu.advice import Rules
from perfctl.parsers.ncu.facts import (
    FACT_NAMES,
    KERNEL_FACTS,
    NO_FACT,
    Facts,
    Value,
    add_steps,
    counts_flops,
    device_of,
    explain_duration,
    explain_names,
    kernel_fields,
    place_of,
)
from perfctl.parsers.ncu.log import diagnostics as log_diagnostics
from perfctl.parsers.text.lines import Log, readable
from perfctl.parsers.text.numbers import (
    AmbiguousNumber,
    DecimalStyle,
    StyleEvidence,
    base_unit,
    read_value,
    scaled,
    to_base,
)
from perfctl.records.bulk import NumberedCounters
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Kernel, Report

PART_TEXTS = 400_000
"""Distinct values of a part, and one launch more: some 60 MB."""
PART_CELLS = 4_000_000
"""Cells of a part, and one launch more: 48 MB."""
MAX_LAUNCHES = 100_000
"""Launches of a file; their names and facts stay in memory, some 2.5 KB each."""
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

Reading = tuple[int | float | None, str | None]
"""A number, or None and the state of the gap where a number was expected."""


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


class _Numbers(dict[Value, int]):
    """Value -> its number in ``values``, to which a new one is added."""

    def __init__(self, values: list[Value]) -> None:
        super().__init__()
        self._values = values

    def __missing__(self, value: Value) -> int:
        number = self[value] = len(self._values)
        self._values.append(value)
        return number


class _QuotedNumbers(dict[str, int]):
    """End of a CSV line, after the quote that opens its last cell -> number of that cell's text.
    Raises KeyError when the end is not one complete cell without quotes inside."""

    def __init__(self, numbers: _Numbers) -> None:
        super().__init__()
        self._numbers = numbers

    def __missing__(self, ending: str) -> int:
        text = ending.rstrip("\r\n,")
        if text.find('"') != len(text) - 1:
            raise KeyError(ending)
        number = self[ending] = self._numbers[text[:-1]]
        return number


@dataclass(slots=True)
class _Part:
    """Some cells of a file, one array per item; ``value`` holds indexes of ``values``."""

    launch: array[int]
    metric: array[int]
    value: array[int]
    values: list[Value]
    numbers: list[Reading] | None = None
    """The number of each value, once the part has been read."""


class ReportBuilder:
    """Takes launches and metric values in the order of a file, and makes a Report of them."""

    def __init__(self, path: Path, *, is_printed: bool = True) -> None:
        """``is_printed``: values are texts that may be numbers; else they are what they are."""
        self.path = path
        self.launches: list[Launch] = []
        self.metrics: list[tuple[str, str, str | None]] = []
        """Name, unit as printed, and section."""
        self.rules = Rules()
        self._is_printed = is_printed
        self._metric_numbers: dict[tuple[str, str, str | None], int] = {}
        self._facts: dict[int, dict[int, Value]] = {}
        """Number of a metric that is a fact or counts FLOPs -> launch -> its first value."""
        self._previous_metrics: list[int] = []
        self._fact_positions: list[tuple[int, int]] = []
        """Positions in ``_previous_metrics`` of such metrics, and their numbers."""
        self._style = DecimalStyle.POINT
        self._evidence = StyleEvidence()
        self._file: IO[bytes] | None = None
        self._start_part()

    def _start_part(self) -> None:
        self._part = _Part(array("I"), array("I"), array("I"), [])
        self.value_numbers = _Numbers(self._part.values)
        """Value -> its number in this part, for ``add_values``."""
        self.quoted_numbers = _QuotedNumbers(self.value_numbers)
        """The same for readers of whole lines."""

    def add_launch(self, launch: Launch) -> int:
        """Return the number of a new launch. Raises ReportError where there are too many."""
        if len(self.launches) >= MAX_LAUNCHES:
            reason = f"it holds more than {MAX_LAUNCHES:,} launches, which do not fit into memory"
            remedy = "Split it between two launches and put the header above each part"
            raise ReportError(self.path, "ncu", reason, remedy)
        self.launches.append(launch)
        return len(self.launches) - 1

    def number_metric(self, name: str, unit: str, section: str | None) -> int:
        """Return the number of a metric in one unit and section; new ones get one."""
        metric = (name, unit, section)
        number = self._metric_numbers.setdefault(metric, len(self.metrics))
        if number == len(self.metrics):
            self.metrics.append(metric)
            if name in FACT_NAMES or counts_flops(name):
                self._facts[number] = {}
        return number

    def add_values(self, launch: int, metrics: list[int], values: list[int]) -> None:
        """Take in values of a launch: numbers of metrics and, for each, of its value. Raises
        ReportError when the temporary file has no room."""
        part = self._part
        part.launch.extend(array("I", [launch]) * len(metrics))
        part.metric.fromlist(metrics)
        part.value.fromlist(values)
        if metrics != self._previous_metrics:  # most launches have the same ones
            self._previous_metrics = metrics
            numbered = enumerate(metrics)
            self._fact_positions = [
                (at, metric) for at, metric in numbered if metric in self._facts
            ]
        for at, metric in self._fact_positions:
            self._facts[metric].setdefault(launch, part.values[values[at]])
        if len(part.values) > PART_TEXTS or len(part.launch) > PART_CELLS:
            self._put_away()

    def _put_away(self) -> None:
        """Write the part to a temporary file, which lives as long as the builder."""
        part = self._part
        self._add_evidence()
        reason = f"metrics that do not fit into memory cannot be written to {tempfile.gettempdir()}"
        remedy = "Set TMPDIR to a folder with at least as much free space as the report has bytes"
        with readable(self.path, "ncu", remedy, reason):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="perfctl-ncu-")  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._file.write(json.dumps([len(part.launch), part.values]).encode() + b"\n")
            for column in (part.launch, part.metric, part.value):
                self._file.write(column)
            self._file.flush()
        self._start_part()

    def _add_evidence(self) -> None:
        for value in self._part.values if self._is_printed else ():
            self._evidence.add(str(value))

    def _parts(self) -> Iterator[_Part]:
        """Yield the parts in order, with numbers for their values; one at a time is in memory."""
        position = 0
        while self._file is not None:
            self._file.seek(position)
            if not (line := self._file.readline()):
                break
            count, values = json.loads(line)
            launch, metric, value = (
                array("I", self._file.read(count * array("I").itemsize)) for _ in range(3)
            )
            position = self._file.tell()
            yield _Part(launch, metric, value, values, list(map(self._read_number, values)))
        if self._part.numbers is None:
            self._part.numbers = list(map(self._read_number, self._part.values))
        yield self._part

    def _read_number(self, value: Value) -> Reading:
        """Return the number of a value; where there is none for a reason, the state of the gap."""
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
        self._add_evidence()
        self._style = self._evidence.decide()
        units = [base_unit(unit) for _, unit, _ in self.metrics]
        facts = self._read_facts()
        by_id = sorted(range(len(facts)), key=lambda index: self.launches[index].order)
        ranks = {index: rank for rank, index in enumerate(by_id)}
        kernels = [self._kernel(index, rank, facts[index]) for index, rank in ranks.items()]
        devices: dict[int, Device] = {}
        for kernel, index in zip(kernels, by_id, strict=True):
            number, capability = kernel.device_index or 0, self.launches[index].capability or None
            if number not in devices:
                device = device_of(number, capability, facts[index], driver_version)
                if device.name or device.compute_capability:
                    devices[number] = device
        add_steps(kernels)
        names = [
            (name, unit.name, section)
            for (name, _, section), unit in zip(self.metrics, units, strict=True)
        ]
        scales = [unit.scale for unit in units]
        return Report(
            tool="ncu",
            path=self.path,
            form=form,
            devices=tuple(devices[number] for number in sorted(devices)),
            kernels=kernels,
            counters=NumberedCounters(names, lambda: self._columns(ranks, scales)),
            gaps=(
                *explain_names([launch.name for launch in self.launches]),
                *self._value_gaps(),
                *self._kernel_gaps(kernels, facts),
                *gaps,
                *self.rules.gaps(),
            ),
            diagnostics=(*log_diagnostics(log or Log()), *self._rounding(), *notes),
            advice=self.rules.ordered(ranks),
            **fields,
        )

    def _rounding(self) -> Iterator[Diagnostic]:
        rounded = [
            f"{name} in {unit}" for name, unit, _ in self.metrics if base_unit(unit).scale != 1
        ]
        if rounded and self._is_printed:
            text = (
                f"{len(rounded)} metrics are rounded because ncu printed them in scaled units (for "
                f"example {rounded[0]}); export with --print-units base for exact figures"
            )
            yield Diagnostic("info", "perfctl", text)

    def _read_facts(self) -> list[Facts]:
        """Return the facts of each launch."""
        facts: list[Facts] = [{} for _ in self.launches]
        for metric, values in self._facts.items():
            name, printed_unit, _ = self.metrics[metric]
            unit = base_unit(printed_unit)
            known: dict[Value, tuple[Value, str | None]] = {}
            for launch, value in values.items():
                if value not in known:
                    number, state = self._read_number(value)
                    fact = self._scale(value, number, unit.scale)
                    known[value] = value if fact is None and state is None else fact, unit.name
                facts[launch].setdefault(name, known[value])
        return facts

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
            isinstance(value, int | float) and counts_flops(name)
            for name, (value, _) in facts.items()
        )
        return Kernel(
            rank,
            launch.name,
            launch.short_name,
            *place,
            layer_source=None if place.layer is None else "range",
            source="counted" if is_counted else None,
        )._replace(**fields)  # type: ignore[arg-type]

    def _columns(
        self, ranks: dict[int, int], scales: list[int]
    ) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield the columns of NumberedCounters, in the order of the file."""
        is_scaled = any(scale != 1 for scale in scales)
        for part in self._parts():
            numbers = [number for number, _ in part.numbers or ()]
            for first in range(0, len(part.metric), CHUNK):
                cut = slice(first, first + CHUNK)
                metrics, values = part.metric[cut], part.value[cut]
                column = list(map(numbers.__getitem__, values))
                if is_scaled:
                    for at, metric in enumerate(metrics):
                        if scales[metric] != 1:
                            value = part.values[values[at]]
                            column[at] = self._scale(value, column[at], scales[metric])
                texts: list[Value] = [None] * len(column)
                if None in column:
                    texts = [
                        part.values[value] or None if number is None else None
                        for number, value in zip(column, values, strict=True)
                    ]
                yield list(map(ranks.__getitem__, part.launch[cut])), metrics, column, texts

    def _value_gaps(self) -> Iterator[Gap]:
        """Yield a gap for each metric and reason that has values without a number where one was
        expected, and for each metric that one launch lacks."""
        counts: Tally[tuple[str, str]] = Tally()
        examples: dict[tuple[str, str], Value] = {}
        cells: Tally[int] = Tally()
        holders: set[int] = set()
        for part in self._parts():
            cells.update(part.metric)
            holders.update(part.launch)
            states = {at: state for at, (_, state) in enumerate(part.numbers or ()) if state}
            for metric, value in zip(part.metric, part.value, strict=True) if states else ():
                if state := states.get(value):
                    key = (self.metrics[metric][0], state)
                    counts[key] += 1
                    examples.setdefault(key, part.values[value])
        for (name, state), count in counts.items():
            reason = _REASONS[state].format(text=examples[name, state], count=count)
            if not self._is_printed:
                reason = f"the report has no value for it in {count} launches"
            yield Gap(f"counter:{name}", state, reason)
        missing = sum(count for (_, state), count in counts.items() if state == "not_available")
        if missing and missing == cells.total():
            example = next(iter(examples.values()))
            reason = (
                f'ncu printed "{"no value" if example is None else example}" in place of all '
                f"{missing:,} metric values: check their names with 'ncu --query-metrics', and "
                "ncu's messages"
            )
            yield Gap("counter.value", "unreadable", reason)
        if holders and (without := len(self.launches) - len(holders)):
            reason = f"{without} of {len(self.launches)} launches have no metric values"
            yield Gap("counter", "not_collected", reason)
        by_section: Tally[tuple[str, str | None]] = Tally()
        for metric, count in cells.items():  # one metric may be in "Kbyte" here and "Mbyte" there
            name, _, section = self.metrics[metric]
            by_section[name, section] += count
        lacking = [name for (name, _), count in by_section.items() if count == len(holders) - 1]
        if lacking and len(holders) >= LAUNCHES_MIN:
            reason = (
                f"1 of {len(holders)} launches lacks {len(lacking)} metrics that all others have"
            )
            yield Gap("counter", "not_collected", f"{reason}, such as {lacking[0]}")

    def _kernel_gaps(self, kernels: list[Kernel], facts: list[Facts]) -> Iterator[Gap]:
        """Yield the fields of ``kernel`` that are empty, and which metric would fill them, or did
        not. ncu gives a launch that failed a grid of 0 blocks."""
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
        yield from explain_duration(kernels, (name for name, *_ in self.metrics))
        if all(kernel.registers is None for kernel in kernels):
            yield from self._field_gap("registers", kernels)

    def _field_gap(self, field: str, kernels: list[Kernel]) -> Iterator[Gap]:
        empty = sum(getattr(kernel, field) is None for kernel in kernels)
        names = KERNEL_FACTS[field]
        for metric, values in self._facts.items() if empty else ():
            name = self.metrics[metric][0]
            for value in values.values() if name in names else ():
                if self._read_number(value)[1] == "not_available":
                    reason = (
                        f'{name} is "{"no number" if value is None else value}" in {empty} of '
                        f"{len(kernels)} launches: ncu could not measure it there"
                    )
                    yield Gap(f"kernel.{field}", "not_available", reason)
                    return
        if empty == len(kernels):
            reason = f"{names[0]} is not among the metrics"
            yield Gap(f"kernel.{field}", "not_collected", reason)


def is_whole(text: str) -> bool:
    """Return whether a cell is a whole number of a size that fits the store."""
    return text.isascii() and text.isdigit() and len(text) <= ID_DIGITS


@lru_cache(maxsize=4096)
def _dimensions(text: str) -> tuple[int, ...] | None:
    """Return (16, 8, 1) for "(16, 8, 1)"; None for anything else."""
    parts = [part.strip() for part in text.strip().removeprefix("(").removesuffix(")").split(",")]
    return tuple(map(int, parts)) if len(parts) == 3 and all(map(is_whole, parts)) else None
