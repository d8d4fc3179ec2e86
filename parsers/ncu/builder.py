"""Builds the Report of launches and their metric values, which every format of ncu fills alike. The
decimal style of printed numbers is known only at the end of a file, so values are kept as printed
and become numbers when the counters are read; values of a report file are numbers already."""

from __future__ import annotations

from array import array
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.lines import SurroundingLines
from perfctl.parsers.common.numbers import (
    AmbiguousNumberError,
    DecimalStyle,
    DecimalStyleEvidence,
    Number,
    parse_number_fast,
    parse_unit,
    scale_printed_number,
    to_int_or_float,
)
from perfctl.parsers.ncu.advice import format_rule_text
from perfctl.parsers.ncu.facts import (
    CYCLES,
    KERNEL_FACTS,
    Facts,
    Value,
    find_launch_layer_and_step,
    infer_missing_kernel_steps,
    is_flop_counter,
    is_launch_fact_or_flops,
    make_device,
    make_kernel_fields,
)
from perfctl.parsers.ncu.log import collect_ncu_errors_and_warnings as log_diagnostics
from perfctl.parsers.ncu.log import find_failed_kernels_and_rows as log_gaps
from perfctl.records.bulk import ColumnChunks, Metric, NumberedCounters
from perfctl.records.report import (
    WORKED_OUT,
    Advice,
    Device,
    Diagnostic,
    Gap,
    Kernel,
    Report,
    Summary,
)

CHUNK = 1024
LAUNCHES_MIN = 3
"""Launches of a file from which a metric that all but one have counts as missing in that one."""
FIGURES = ("Minimum", "Maximum", "Average")
"""Columns of a per-kernel summary with the figures of a metric."""
NO_VALUE = frozenset({"", "n/a", "no data", "nan", "-nan", "inf", "-inf"})
"""Texts, in lower case, that ncu prints instead of a missing value."""
_REASONS = {
    "not_available": (
        'ncu printed "{text}" instead of {count} values: this GPU or ncu version has no such '
        "metric, or it could not be collected"
    ),
    "ambiguous": (
        '{count} values such as "{text}" may be whole numbers or fractions, and the file does '
        "not state which. Export it again with LC_ALL=C"
    ),
    "unreadable": (
        '{count} values such as "{text}" do not fit the number format of the rest of the file. '
        "Export it again with LC_ALL=C"
    ),
}
"""State of a gap -> its reason."""


class LaunchIdentity(NamedTuple):
    """Identity of one launch."""

    name: str
    identity: Facts
    push_pop: tuple[str, ...] = ()
    """Names of the NVTX ranges around it, outermost first."""
    start_end: tuple[str, ...] = ()
    short_name: str | None = None


class ReportBuilder:
    """Takes launches and metric values in the order of a file, and makes a Report of them."""

    def __init__(self, path: Path, *, is_printed: bool = True) -> None:
        """``is_printed``: values are texts that may be numbers; else they are what they are."""
        self.path, self.log = path, SurroundingLines()
        """The lines around the values."""
        self.launches: list[LaunchIdentity] = []
        self.advice: list[Advice] = []
        self.is_summary = False
        """Whether the values are those of a per-kernel summary, which has no launches."""
        self._is_printed = is_printed
        self._metrics: defaultdict[tuple[str, str, str | None], int]
        self._metrics = defaultdict(count().__next__)
        """Name, unit as printed, and section -> number."""
        self._cells = array("I"), array("I"), array("I")
        """Launch, metric, and value, by their numbers."""
        self._distinct: defaultdict[Value, int] = defaultdict(count().__next__)
        self._values: list[Value] = []
        self._numbers: list[Number | None] = []
        self._states: dict[int, str] = {}
        """Value without a number where one was expected -> state of the gap."""
        self._style = DecimalStyle.POINT
        self._scales: list[int] = []
        """Base units in the unit of each metric."""

    def add_launch(self, launch: LaunchIdentity) -> int:
        """Return the number of a new launch."""
        self.launches.append(launch)
        return len(self.launches) - 1

    def assign_metric_index(self, name: str, unit: str, section: str | None) -> int:
        """Return the number of a metric in one unit, as printed, and section."""
        return self._metrics[name, unit, section]

    def add_metric_values(
        self, launch_index: int, metric_indices: list[int], values: Sequence[Value]
    ) -> None:
        """Take in values of a launch, and the numbers of their metrics."""
        launches, numbers, cells = self._cells
        launches.extend(array("I", [launch_index]) * len(metric_indices))
        numbers.fromlist(metric_indices)
        cells.fromlist(list(map(self._distinct.__getitem__, values)))

    def add_summary_row(self, row: dict[str, str]) -> None:
        """Take in a row of a per-kernel summary, which names its cells as the CSV does."""
        self.is_summary = True
        kernel = row["Kernel Name"]
        if "Grid Size" in row and "Block Size" in row:
            kernel += f" grid {row['Grid Size']} block {row['Block Size']}"
        for figure in FIGURES:
            of_launches = f"{figure.lower()} of {row['Invocations']} launches of {kernel}"
            name = f"{row['Metric Name']}, {of_launches}"
            self.add_metric_values(
                0, [self.assign_metric_index(name, row["Metric Unit"], None)], [row[figure]]
            )

    def add_rule_result(self, result: Advice) -> None:
        """Take in the result of a rule, its speedup in percent. One that says nothing is left
        out."""
        text, speedup = format_rule_text(result.text or ""), result.estimated_speedup
        if text or speedup is not None:
            share = None
            if speedup is not None and 0 <= speedup <= 100:
                share = round(speedup / 100, 12)
            self.advice.append(result._replace(text=text or None, estimated_speedup=share))

    def make_report(
        self,
        form: str,
        extra_gaps: Iterable[Gap] = (),
        extra_diagnostics: Iterable[Diagnostic] = (),
        driver_version: str | None = None,
        **fields: Any,
    ) -> Report:
        """Return the whole report. ``fields``: of Report, which the launches do not decide."""
        self._parse_distinct_values()
        units = {metric: parse_unit(metric[1]) for metric in self._metrics}
        names = [(name, unit.name, section) for (name, _, section), unit in units.items()]
        self._scales = [unit.scale for unit in units.values()]
        counters = NumberedCounters(names, self._iterate_counter_columns)
        facts = self._select_fact_metrics_by_launch(names)
        kernels = list(map(self._make_kernel, count(), facts))
        devices: dict[int, Device] = {}
        for kernel, launch_facts in zip(kernels, facts, strict=True):
            index = kernel.device_index or 0
            if index not in devices:
                device = make_device(index, launch_facts, driver_version)
                if device.name or device.compute_capability:
                    devices[index] = device
        infer_missing_kernel_steps(kernels)
        diagnostics = log_diagnostics(self.log)
        (name, version), *other_gpus = sorted(self.log.gpus, key=str) or [("", None)]
        if name and not other_gpus and len({kernel.device_index for kernel in kernels}) == 1:
            index = kernels[0].device_index or 0
            device = devices.get(index, Device(None, "gpu", index))
            stated = device.compute_capability
            if device.name is None and (None in (version, stated) or version == stated):
                devices[index] = replace(device, name=name)
                text = f"the name of the GPU is from the program's own output: {name}"
                diagnostics.append(Diagnostic("info", "perfctl", text))
        rounded = [metric for metric, unit in units.items() if unit.scale != 1]
        if rounded and self._is_printed and not self.is_summary:
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
            devices=tuple(devices[index] for index in sorted(devices)),
            kernels=kernels,
            counters=() if self.is_summary else counters,
            summaries=tuple(
                Summary(c.name, c.value, c.unit, c.text)
                for c in (counters if self.is_summary else ())
            ),
            gaps=(*self._describe_missing_data(kernels, facts), *log_gaps(self.log), *extra_gaps),
            diagnostics=(*diagnostics, *extra_diagnostics),
            advice=tuple(self.advice),
            **fields,
        )

    def _parse_distinct_values(self) -> None:
        """Read the distinct values, in the decimal style that all of them show."""
        self._values = list(self._distinct)
        self._distinct.clear()
        evidence = DecimalStyleEvidence()
        for value in self._values if self._is_printed else ():
            evidence.add_cell(str(value))
        self._style = evidence.decide_decimal_style()
        for index, value in enumerate(self._values):
            number, state = self._parse_value_and_gap_state(value)
            self._numbers.append(number)
            if state:
                self._states[index] = state

    def _parse_value_and_gap_state(self, value: Value) -> tuple[Number | None, str | None]:
        """Return the number of a value, or None and the state of the gap where one was expected."""
        if value is None:
            return None, "not_available"
        if not isinstance(value, str):  # beyond 64 bits a float
            return value if isinstance(value, float) else to_int_or_float(value), None
        if not self._is_printed:
            return None, None
        try:
            number = parse_number_fast(value, self._style)
        except AmbiguousNumberError:
            return None, "ambiguous"
        if number is not None:
            return number, None
        if value.strip().lower() in NO_VALUE:
            return None, "not_available"
        return None, None if value.strip("0123456789.,+-") else "unreadable"

    def _scale_to_base_units(self, metric_index: int, value_index: int) -> Number | None:
        """Return the number of a metric's value in base units."""
        scale, value, number = (
            self._scales[metric_index],
            self._values[value_index],
            self._numbers[value_index],
        )
        if scale == 1 or number is None:
            return number
        if isinstance(value, float):
            return value * scale
        return scale_printed_number(str(value), number, self._style, scale)

    def _iterate_counter_columns(self) -> ColumnChunks:
        """Yield the columns of NumberedCounters, in the order of the file."""
        is_scaled = set(self._scales) != {1}
        for first in range(0, len(self._cells[0]), CHUNK):
            launches, metrics, values = (cells[first : first + CHUNK] for cells in self._cells)
            if is_scaled:
                numbers = list(map(self._scale_to_base_units, metrics, values))
            else:
                numbers = list(map(self._numbers.__getitem__, values))
            texts: list[Value] = [None] * len(numbers)
            if None in numbers:
                texts = [
                    self._values[value] or None if number is None else None
                    for number, value in zip(numbers, values, strict=True)
                ]
            yield launches, metrics, numbers, texts

    def _select_fact_metrics_by_launch(self, metrics: Sequence[Metric]) -> list[Facts]:
        """Return for each launch its metrics that are facts or count FLOPs; of one that is in
        several sections the first value."""
        names_of_facts = {
            index: name
            for index, (name, unit, _) in enumerate(metrics)
            if is_launch_fact_or_flops(name, unit)
        }
        facts = [launch.identity.copy() for launch in self.launches]
        for launch, metric, value in zip(*self._cells, strict=True):
            if metric in names_of_facts and names_of_facts[metric] not in facts[launch]:
                number: Value = self._scale_to_base_units(metric, value)
                if number is None and value not in self._states:
                    number = self._values[value]
                facts[launch][names_of_facts[metric]] = number
        return facts

    def _make_kernel(self, launch_index: int, facts: Facts) -> Kernel:
        launch = self.launches[launch_index]
        label = find_launch_layer_and_step(launch.push_pop, launch.start_end)
        is_counted = any(
            is_flop_counter(name) and isinstance(value, int | float)
            for name, value in facts.items()
        )
        return Kernel(
            launch_index,
            launch.name,
            launch.short_name,
            *label[:3],
            layer_source=None if label.layer is None else "range",
            source="counted" if is_counted else None,
            **make_kernel_fields(facts),  # type: ignore[arg-type]
        )

    def _describe_missing_data(self, kernels: list[Kernel], facts: list[Facts]) -> Iterator[Gap]:
        """Yield values without a number where one was expected, and what the launches lack."""
        _, metrics, values = self._cells
        names = [name for name, *_ in self._metrics]
        missing: defaultdict[tuple[str, str], list[Value]] = defaultdict(list)
        for metric, value in zip(metrics, values, strict=True) if self._states else ():
            if state := self._states.get(value):
                missing[names[metric], state].append(self._values[value])
        if self.is_summary:
            reason = "a per-kernel summary has {}; export without --print-summary"
            yield Gap("kernel", "not_available", reason.format("no launches"))
            yield Gap("counter", "not_available", reason.format("averages instead"))
        for (name, state), texts in missing.items():
            reason = f"the report has no value for it in {len(texts)} launches"
            if self._is_printed:
                reason = _REASONS[state].format(text=texts[0], count=len(texts))
            yield Gap(f"{'summary' if self.is_summary else 'counter'}:{name}", state, reason)
        lost = sum(len(texts) for (_, state), texts in missing.items() if state == "not_available")
        if lost and lost == len(values):
            reason = (
                f"none of the {lost:,} metric values is a number: check the metrics' names with "
                "'ncu --query-metrics', and ncu's messages"
            )
            yield Gap("counter.value", "unreadable", reason)
        if not self.is_summary:
            yield from self._describe_missing_metrics()
            yield from self._describe_missing_kernel_fields(kernels, facts, missing)

    def _describe_missing_metrics(self) -> Iterator[Gap]:
        """Yield a gap for launches without metrics, and one for metrics that one launch lacks."""
        launches, metrics, _ = self._cells
        holders = len(set(launches))
        if holders and (without := len(self.launches) - holders):
            reason = f"{without} of {len(self.launches)} launches have no metric values"
            yield Gap("counter", "not_collected", reason)
        cells = Tally(metrics)
        by_section: Tally[tuple[str, str | None]] = Tally()
        for index, (name, _, section) in enumerate(self._metrics):
            by_section[name, section] += cells[index]  # "Kbyte" in one launch, "Mbyte" in another
        lacking = [name for (name, _), number in by_section.items() if number == holders - 1]
        if lacking and holders >= LAUNCHES_MIN:
            reason = (
                f"1 of {holders} launches lacks {len(lacking)} metrics that all other launches have"
            )
            yield Gap("counter", "not_collected", f"{reason}, such as {lacking[0]}")

    def _describe_missing_kernel_fields(
        self,
        kernels: list[Kernel],
        facts: list[Facts],
        missing_metrics_and_states: Collection[tuple[str, str]],
    ) -> Iterator[Gap]:
        """Yield the fields of ``kernel`` that are empty, and which metric would fill them, or did
        not. ncu gives a launch that failed a grid of 0 blocks. ``missing_metrics_and_states``:
        metrics with values that are no numbers, and states of their gaps."""

        for field in ("duration_ns", "registers"):
            empty = sum(getattr(kernel, field) is None for kernel in kernels)
            failed = [
                name
                for name in KERNEL_FACTS[field]
                if (name, "not_available") in missing_metrics_and_states
            ]
            if empty and failed:
                reason = f"ncu could not measure {failed[0]} in {empty} of {len(kernels)} launches"
                yield Gap(f"kernel.{field}", "not_available", reason)
            elif empty == len(kernels):
                reason = f"{KERNEL_FACTS[field][0]} is not among the metrics"
                yield Gap(f"kernel.{field}", "not_collected", reason)
        names = {name for name, *_ in self._metrics}
        gridless = dict.fromkeys(
            launch.name
            for launch, launch_facts in zip(self.launches, facts, strict=True)
            if 0 in map(launch_facts.get, ("grid_x", "launch__grid_dim_x"))
        )
        for name in gridless:
            reason = "ncu gives the grid (0, 0, 0): this launch failed"
            yield Gap("kernel.grid_x", "not_available", reason, scope=name)
        if not gridless and all(kernel.grid_x is None for kernel in kernels):
            reason = "no launch has a Grid Size (older versions of ncu give none)"
            if "Grid Size" in names:
                reason = "ncu gives the number of blocks (Grid Size), not their x, y and z"
            yield Gap("kernel.grid_x", "not_available", reason)
        is_timed = any(kernel.duration_ns is not None for kernel in kernels)
        if is_timed and names.isdisjoint(KERNEL_FACTS["duration_ns"]):
            pair = next(pair for pair in CYCLES if names.issuperset(pair))
            reason = (
                f"gpu__time_duration.sum is not among the metrics; times are {WORKED_OUT}: "
                f"{pair[0]} / {pair[1]}"
            )
            yield Gap("kernel.duration_ns", "not_collected", reason)
