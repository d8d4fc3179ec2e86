"""Studies: runs that belong together (the same workload, options, mode, precision and device, under
any profiler), with the steps, kernel keys, times and counted sums of each run, computed once, at
first use.

Ledger, causes, roofline, findings, tables and charts read these, not the raw run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple, TypeVar

from perfctl.orchestrator.counts.counters import work as counters
from perfctl.orchestrator.counts.counters.amd import is_amd_run
from perfctl.orchestrator.counts.counters.sums import read_thread_counts_by_instruction
from perfctl.orchestrator.counts.counters.work import (
    CountedWork,
    Parts,
    list_launch_flops_and_bytes,
    sum_step_work_by_key,
)
from perfctl.orchestrator.counts.derived.records import DerivedInstructions, Launch
from perfctl.orchestrator.counts.derived.run import (
    build_instructions_from_code_counts,
    collect_layer_work,
    convert_instructions_to_counter_values,
    convert_instructions_to_flops,
    derive_launch_instructions,
    infer_uncounted_instructions,
)
from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.layers import SHARED, SHARED_OUT, split_shared_kernels
from perfctl.orchestrator.counts.kernels.names import recognise_family
from perfctl.orchestrator.ledger import timing
from perfctl.orchestrator.ledger.expected import FormulaWork, match_kernels_to_user_formulas
from perfctl.orchestrator.ledger.timing import (
    GRADIENTS,
    Key,
    TimesByLayer,
    TimeSpread,
    rank_profiler_clock,
)
from perfctl.orchestrator.ledger.usage.intervals import sum_durations_ns
from perfctl.orchestrator.ledger.usage.run_usage import COLLECTIVE, RunUsage
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel, Range
from perfctl.records.run import Point, Run

MODES = {"train": "training", "infer": "inference"}
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_NO_VALUES: Mapping[str, float | None] = {}
WAVES = ("launch__waves_per_multiprocessor", "Waves Per SM")
"""Metrics of ncu with the blocks of a launch over those that the GPU holds at once."""
ALONE_SHARE_MIN = 0.95
"""Time with a kernel over the summed time of kernels: less is of kernels that run at once."""


def format_study_heading(study: Study) -> str:
    """ "mnist_cnn, training, fp32", or the name of the report's file."""
    if study.workload is None:
        run = study.runs[0]
        return PurePath(run.artifact).name if run.artifact else f"{run.profiler} run {run.id}"
    parts = (
        study.workload,
        study.variant,
        MODES.get(study.mode or "", study.mode),
        study.precision,
    )
    return ", ".join(part for part in parts if part)


def get_device_label(run: Run) -> str | None:
    """Name of the device, or its kind; None when no record says."""
    return next((device.name or device.kind for device in run.devices), None)


def group_into_studies(runs: Iterable[Run]) -> tuple[Study, ...]:
    """Group runs, in order of first appearance.

    A run that failed before it knew its device or precision joins the study of its workload
    and mode.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    unsure: list[Run] = []
    for run in runs:
        if run.workload is None or run.point is None:
            groups[("foreign", run.id, len(groups))] = [run]
        elif run.status == "failed" and (get_device_label(run) is None or run.precision is None):
            unsure.append(run)
        else:
            groups.setdefault(_get_study_key(run), []).append(run)
    for run in unsure:
        home = next(
            (key for key in groups if _can_incomplete_run_join_study(key, run)), _get_study_key(run)
        )
        groups.setdefault(home, []).append(run)
    return tuple(
        Study(
            first.workload,
            first.mode,
            first.precision,
            get_device_label(first),
            first.variant if len({run.variant for run in members}) == 1 else None,
            tuple(
                sorted(members, key=lambda run: (_build_run_sort_key(run), run.profiler, run.id))
            ),
        )
        for first, *members in ((group[0], *group) for group in groups.values())
    )


def group_studies_by_sweep(studies: Iterable[Study]) -> tuple[tuple[Study, ...], ...]:
    """Return studies of one sweep or ingest with the same workload and mode, which differ in
    device, precision or options.

    Each study is in one group, in order of first appearance; a report made elsewhere, and the ranks
    of one job, form groups of their own.
    """
    groups: list[list[Study]] = []
    for study in studies:
        for group in groups:
            if any(_are_of_one_sweep(member, study) for member in group):
                group.append(study)
                break
        else:
            groups.append([study])
    return tuple(map(tuple, groups))


def _are_of_one_sweep(first: Study, second: Study) -> bool:
    """Return whether two studies are of one sweep, and neither is foreign or of several ranks."""
    runs = (*first.runs, *second.runs)
    if (
        first.is_foreign
        or second.is_foreign
        or any((run.report.world_size or 1) > 1 for run in runs)
    ):
        return False
    is_same = (first.workload, first.mode) == (second.workload, second.mode)
    sweeps = {run.sweep_id for run in first.runs}
    return is_same and any(run.sweep_id in sweeps for run in second.runs)


def _get_study_key(run: Run) -> tuple[object, ...]:
    variant: object = run.variant
    if run.batch_size is None:  # its arguments are those of one point
        variant = run.sweep_id, *sorted(parameter.name for parameter in run.parameters)
    return (run.workload, run.mode, run.precision, get_device_label(run), variant)


def _build_run_sort_key(run: Run) -> tuple[object, ...]:
    """Return what runs of a study are sorted by: numbers by size, texts after them."""
    other_parameters = [
        (name, number is None, number or 0, v) for name, v, number in run.parameters
    ]
    return run.batch_size or 0, sorted(other_parameters)


def _can_incomplete_run_join_study(study_key: tuple[object, ...], run: Run) -> bool:
    """Return whether a run of which not everything is known may be of the study with that key."""
    if len(study_key) != 5 or study_key[0] != run.workload:
        return False
    pairs = zip(_get_study_key(run)[1:], study_key[1:], strict=True)
    return all(value is None or value == other for value, other in pairs)


@dataclass(frozen=True, slots=True)
class RowLaunches:
    """All launches of one layer in one direction."""

    names: Mapping[str, float]
    """Kernel name -> launches per step, most launched first."""
    guessed: float
    """0..1: of the launches, those whose layer was guessed."""
    shared: float
    """0..1: of the launches, those that are its part of a fused kernel."""


def mark_as_estimate(figure: Figure, reason: str) -> Figure:
    """Return the figure as an estimate, for ``reason`` and its own."""
    if figure.value is None:
        return figure
    reasons = "; ".join(filter(None, (reason, figure.reason)))
    return replace(figure, state="estimated", reason=reasons)


class SmallGrids(NamedTuple):
    """Launches with fewer blocks than the GPU has SMs; below one wave if that number is unknown."""

    sms: int | None
    kernels_ns: float
    """Of all kernels."""
    share: float
    """Of the kernel time."""
    idle_share: float
    """Mean share of the SMs without a block, or of a wave that is empty, over the kernel time."""


@dataclass(frozen=True, eq=False, repr=False)
class PreparedRun:
    """One run with the values that several readers need."""

    run: Run
    precision: str | None = None
    """The study's ("fp32"), for tensor work whose type neither a counter nor a kernel's name says.
    None: unknown."""
    recorded: PreparedRun | None = None
    """The run as it was recorded, where gradients of this one were joined to "backward" or its
    fused kernels parted between layers; None where neither."""

    @cached_property
    def layer_and_direction_by_kernel(self) -> Sequence[Key | None]:
        """(layer, direction) of each kernel, in the order of ``run.report.kernels``; None: of
        no layer."""
        return self.user_formula_work.keys

    @cached_property
    def user_formula_work(self) -> FormulaWork:
        """What formulas of the user's say of the run."""
        keys = timing.assign_kernels_to_layers(self.run)
        if not self.run.expectations:
            return FormulaWork(keys)
        return match_kernels_to_user_formulas(self.run, keys, self.step_count or 1)

    @cached_property
    def step_count(self) -> int | None:
        """Steps that the kernels are spread over; None when nothing says so."""
        return timing.count_kernel_steps(self.run)

    @cached_property
    def has_numbered_steps(self) -> bool:
        """True when kernels say which step they belong to; those without a number are then in no
        measured step."""
        return timing.has_kernel_step_numbers(self.run)

    @cached_property
    def small_grids(self) -> SmallGrids | None:
        """Launches that do not fill the GPU; None if kernels run at once, or none is too small.
        Collectives leave SMs to others on purpose."""
        window, sms = self.usage.window, counters.find_sm_count(self.run)
        kernels = list(chain.from_iterable(window.by_device.values()))
        alone_ns = sum(running.total_ns for running in window.kernel_intervals_by_device.values())
        if self.run.profiler == "ncu":
            kernels = list(self.run.report.kernels)
            alone_ns = round(sum_durations_ns(kernels))
        total = sum_durations_ns(kernels)
        small_ns = idle_ns = 0.0
        for kernel in kernels if total and alone_ns >= ALONE_SHARE_MIN * total else ():
            values = self.values.get(kernel.launch, _NO_VALUES)
            filled = next((values[name] for name in WAVES if values.get(name) is not None), None)
            if sms and kernel.grid_x is not None:
                filled = kernel.grid_x * (kernel.grid_y or 1) * (kernel.grid_z or 1) / sms
            if filled is not None and filled < 1 and recognise_family(kernel.name) != COLLECTIVE:
                small_ns += kernel.duration_ns or 0
                idle_ns += (1 - filled) * (kernel.duration_ns or 0)
        return SmallGrids(sms, total, small_ns / total, idle_ns / total) if small_ns else None

    @cached_property
    def measured_launches(self) -> Sequence[tuple[Kernel, Key | None]]:
        """(kernel, its key) of each launch in the measured steps; without warm-up and trials of
        candidates, which have no number of a step where others have one."""
        pairs = zip(self.run.report.kernels, self.layer_and_direction_by_kernel, strict=True)
        return [pair for pair in pairs if not self.has_numbered_steps or pair[0].step is not None]

    @cached_property
    def launches_by_layer_direction(self) -> Mapping[Key, RowLaunches]:
        """Kernels of each (layer, direction), of warm-up too."""
        groups: dict[Key, list[Kernel]] = defaultdict(list)
        for kernel, key in zip(
            self.run.report.kernels, self.layer_and_direction_by_kernel, strict=True
        ):
            if key is not None:
                groups[key].append(kernel)
        rows = {}
        for key, kernels in groups.items():
            launches = Counter([kernel.name for kernel in kernels])
            sources = Counter([kernel.layer_source for kernel in kernels])
            rows[key] = RowLaunches(
                names={
                    name: count / (self.step_count or 1) for name, count in launches.most_common()
                },
                guessed=sources["guessed"] / len(kernels),
                shared=sources[SHARED] / len(kernels),
            )
        return rows

    @cached_property
    def layer_times(self) -> TimesByLayer | None:
        """Time per step by layer and direction; None when the run has no such times.

        Ranges are times on a CPU only: on a GPU, they end before the kernels that they launch.
        """
        if timing.has_kernel_times(self.run):
            return timing.build_layer_times_from_kernels(
                self.run, self.layer_and_direction_by_kernel, self.step_count
            )
        return (
            None
            if self.run.device_kind == "gpu"
            else timing.build_layer_times_from_ranges(self.run)
        )

    @cached_property
    def step_time(self) -> tuple[TimeSpread, str] | None:
        """(time of a whole step in nanoseconds, which clock); None when steps were not timed."""
        return (
            timing.read_step_time_and_clock(self.run)
            if self.recorded is None
            else self.recorded.step_time
        )

    @cached_property
    def values(self) -> dict[int, dict[str, float | None]]:
        """Launch -> metric -> value."""
        return (
            counters.group_counters_by_launch(self.run.report.counters)
            if self.recorded is None
            else self.recorded.values
        )

    @cached_property
    def flops_by_launch(self) -> dict[int, counters.KernelFlops]:
        """Launch -> FLOPs by path, of every launch with counters."""
        return (
            counters.compute_flops_by_launch(self.run, self.values)
            if self.recorded is None
            else self.recorded.flops_by_launch
        )

    @cached_property
    def counted_work_by_layer_direction(self) -> dict[Key | None, CountedWork]:
        """Counted work of a step by (layer, direction); None: of no layer."""
        parts = (
            (key, [(name, self.scale_to_layer_share(kernel, figure)) for name, figure in parts])
            if kernel.layer_source == SHARED
            else (key, parts)
            for (kernel, key), parts in zip(
                self.measured_launches, self._launch_figures, strict=True
            )
        )
        return sum_step_work_by_key(parts, steps=self.step_count or 1)

    @cached_property
    def fused_kernel_shares(self) -> dict[tuple[int, str | None], float]:
        """(launch, layer) -> share of a fused kernel that belongs to several layers."""
        return {(part.launch, part.layer): part.share for part in self.run.report.kernel_parts}

    def scale_to_layer_share(self, kernel: Kernel, figure: Figure) -> Figure:
        """A launch's figure; of one for a layer of a fused kernel, the layer's share of it:
        an estimate."""
        if kernel.layer_source != SHARED or figure.value is None:
            return figure
        share = self.fused_kernel_shares.get((kernel.launch, kernel.layer), 1.0)
        return mark_as_estimate(replace(figure, value=share * figure.value), SHARED_OUT)

    @cached_property
    def counted_work_by_kernel_name(self) -> dict[str, CountedWork]:
        """Counted work of a step by kernel name."""
        return self._sum_step_work_by_group(lambda kernel: kernel.name)

    @cached_property
    def counted_step_work(self) -> CountedWork | None:
        """Counted work of a whole step; None without launches."""
        return self._sum_step_work_by_group(lambda _: 0).get(0)

    @cached_property
    def _launch_figures(self) -> list[Parts]:
        """Parts of each launch of ``measured_launches``; the same object for launches that have
        name, FLOPs and values in common."""
        capability = counters.find_compute_capability(self.run)
        cache: dict[tuple[str, int, int], Parts] = {}
        parts = []
        for kernel, _ in self.measured_launches:
            flops = self.flops_by_launch.get(kernel.launch)
            values = self.values.get(kernel.launch, _NO_VALUES)
            same = kernel.name if flops else "", id(flops), id(values)
            if same not in cache:
                cache[same] = list_launch_flops_and_bytes(
                    kernel, flops, values, capability=capability, precision=self.precision
                )
            parts.append(cache[same])
        return parts

    def _sum_step_work_by_group(self, get_group: Callable[[Kernel], K]) -> dict[K, CountedWork]:
        """Work by ``get_group`` of a launch, which counts once."""
        pairs = zip(self.measured_launches, self._launch_figures, strict=True)
        by_launch = {kernel.launch: (get_group(kernel), parts) for (kernel, _), parts in pairs}
        return sum_step_work_by_key(by_launch.values(), steps=self.step_count or 1)

    @cached_property
    def usage(self) -> RunUsage:
        return RunUsage(self.run) if self.recorded is None else self.recorded.usage


@dataclass(frozen=True, eq=False, repr=False)
class DerivedRun(PreparedRun):
    """A run without counters, its instructions derived from kernel names, grids and the shapes
    of ``recorded_ops``."""

    ops: tuple[OpShape, ...] = ()

    @cached_property
    def instructions_by_launch(self) -> dict[int, DerivedInstructions]:
        """Launch -> instructions, for launches that have a rule."""
        ruled = derive_launch_instructions(
            self.measured_launches, self.ops, counters.find_compute_capability(self.run)
        )
        return build_instructions_from_code_counts(self.run.code_counts) | ruled

    @cached_property
    def values(self) -> dict[int, dict[str, float | None]]:
        return _convert_derived_counts(
            self.instructions_by_launch, convert_instructions_to_counter_values
        )

    @cached_property
    def flops_by_launch(self) -> dict[int, counters.KernelFlops]:
        return _convert_derived_counts(self.instructions_by_launch, convert_instructions_to_flops)


def _convert_derived_counts(
    derived: Mapping[int, DerivedInstructions], convert: Callable[[DerivedInstructions], V]
) -> dict[int, V]:
    """Return launch -> its converted counts: one object for all launches that have the same
    counts."""
    distinct = {id(counts): counts for counts in derived.values()}
    converted = {identity: convert(counts) for identity, counts in distinct.items()}
    return {launch: converted[id(counts)] for launch, counts in derived.items()}


@dataclass(frozen=True, eq=False, repr=False)
class PreparedBatch:
    """The runs of a study at one batch size, made comparable by ``join_gradients_to_backward``."""

    batch: Point
    """None for a report that does not say."""
    runs: tuple[PreparedRun, ...]
    clock: str | None
    """Profiler that times the whole study; None where each batch size may take its own."""

    @cached_property
    def counted_run(self) -> PreparedRun | None:
        """The run with counters: whole ones before failed ones and those narrowed to some layers,
        then the newest."""
        return max(
            (item for item in self.runs if item.run.report.counters),
            key=lambda item: (
                item.run.status == "ok",
                "ncu:layers" not in item.run.report.environment,
                item.run.id,
            ),
            default=None,
        )

    @cached_property
    def derived_run(self) -> DerivedRun | None:
        """The counted run, else the timed one, with derived counts; None where none of its products
        has a rule."""
        source = self.counted_run or self.timing_run
        if (
            source is None
            or not source.run.report.kernels
            or not self.recorded_ops
            or is_amd_run(source.run)
        ):
            return None  # the rules are of NVIDIA's kernels
        run = DerivedRun(source.run, source.precision, source.recorded, self.recorded_ops)
        has_products = any(
            counts.ffma or counts.tensor for counts in run.instructions_by_launch.values()
        )
        return run if has_products else None

    @cached_property
    def recorded_ops(self) -> tuple[OpShape, ...]:
        """Operators with shapes, of the first run that recorded them, and products of formulas."""
        recorded = (tuple(item.run.report.ops) for item in self.runs if item.run.report.ops)
        return (*next(recorded, ()), *self.user_formula_work.ops)

    @cached_property
    def user_formula_work(self) -> FormulaWork:
        """What formulas of the user's say of the counted run, else of the timed one."""
        source = self.counted_run or self.timing_run
        return source.user_formula_work if source is not None else FormulaWork(())

    @cached_property
    def rule_completed_counts_by_launch(self) -> dict[int, DerivedInstructions]:
        """Launch -> all its instructions, for launches of the counted run that lack FFMA and whose
        rule gives the others."""
        if self.counted_run is None or not self.recorded_ops or is_amd_run(self.counted_run.run):
            return {}
        if not isinstance(self.batch, int):
            return {}
        works = collect_layer_work(
            op for op in self.recorded_ops if op.direction == "forward"
        ).products
        names = {kernel.launch: kernel.name for kernel in self.counted_run.run.report.kernels}
        completed = {
            launch: infer_uncounted_instructions(
                Launch(names[launch]), read_thread_counts_by_instruction(values), works, self.batch
            )
            for launch, values in self.counted_run.values.items()
            if launch in names
        }
        return {launch: counts for launch, counts in completed.items() if counts is not None}

    @property
    def counted_or_derived_run(self) -> PreparedRun | None:
        """What FLOPs are read from: the run with counters, and where there is none,
        derived counts."""
        return self.counted_run or self.derived_run

    @cached_property
    def timing_run(self) -> PreparedRun | None:
        """The run with the most trustworthy layer times, by ``rank_profiler_clock``; one that knows
        no layer after all others."""
        timed = [item for item in self.runs if item.layer_times is not None]
        candidates = [item for item in timed if item.layer_times and item.layer_times.rows]
        candidates = candidates or [item for item in timed if item.run.report.kernels]
        return min(
            candidates,
            key=lambda item: (
                rank_profiler_clock(item.run.profiler, self.clock),
                item.run.status != "ok",
                -item.run.id,
            ),
            default=None,
        )

    @property
    def layer_times(self) -> TimesByLayer | None:
        return self.timing_run.layer_times if self.timing_run else None

    @cached_property
    def on_cpu(self) -> bool:
        """True when every run that names its device ran on a CPU."""
        return {item.run.device_kind for item in self.runs} - {None} == {"cpu"}


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """Runs that may be read side by side, in order of batch size; a foreign report is a study of
    its own. What several readers need of them is computed once, at first use."""

    workload: str | None
    """None for a report that was made elsewhere and does not say."""
    mode: str | None
    precision: str | None
    device: str | None
    variant: str | None
    """The workload's own options that are not at their default; None when all are, and where each
    point has its own."""
    runs: tuple[Run, ...]
    prepared: tuple[PreparedRun, ...] = ()
    """The runs if a caller has prepared them; otherwise they are at their first use."""

    @cached_property
    def prepared_runs(self) -> tuple[PreparedRun, ...]:
        """The runs with their fused kernels parted between layers."""
        precision = None if self.is_foreign else self.precision
        return self.prepared or tuple(
            split_fused_kernels_between_layers(PreparedRun(run, precision)) for run in self.runs
        )

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes that were asked for, ascending; failed ones too."""
        return tuple(sorted({run.batch_size for run in self.runs if run.batch_size is not None}))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """What its runs are read side by side by, in order; failed ones too."""
        return tuple(dict.fromkeys(run.point for run in self.runs if run.point is not None))

    @property
    def axis_name(self) -> str:
        """What varies: "batch", or the names of the parameters."""
        if self.batches:
            return "batch"
        names = (parameter.name for run in self.runs for parameter in run.parameters)
        return ", ".join(dict.fromkeys(names)) or "batch"

    @property
    def is_foreign(self) -> bool:
        """True for a report without workload, or without batch size or other parameters: perfctl
        does not know what ran."""
        return self.workload is None or not self.points

    @property
    def has_ledger(self) -> bool:
        """True where there is a ledger: of a run of perfctl's, of a report that holds its
        operators' shapes, and of a trace of torch.profiler whose kernels have layers, which has
        times without estimated FLOPs. Also of a run with formulas of the user's."""
        return not self.is_foreign or any(
            run.report.ops
            or run.expectations
            or (
                run.report.tool == "torch"
                and isinstance(run.report.kernels, Sequence)  # read in full
                and any(kernel.layer is not None for kernel in run.report.kernels)
            )
            for run in self.runs
        )

    @cached_property
    def layer_clock_profiler(self) -> str | None:
        """Profiler whose layer times are read at all batch sizes; None for a single batch size."""
        if len(self.points) < 2:
            return None
        runs = [item for runs in self._joined_runs_by_point.values() for item in runs]
        return pick_profiler_timing_most_points(runs, lambda item: item.layer_times)

    @cached_property
    def step_clock_profiler(self) -> str | None:
        """Profiler whose steps are timed at most batch sizes."""
        return pick_profiler_timing_most_points(self.prepared_runs, lambda item: item.step_time)

    @cached_property
    def prepared_batches(self) -> tuple[PreparedBatch, ...]:
        """One a batch size, ascending; one without a size for a report that holds shapes; else
        empty where no run says it."""
        return tuple(
            PreparedBatch(batch, runs, self.layer_clock_profiler)
            for batch, runs in self._joined_runs_by_point.items()
        )

    @cached_property
    def _joined_runs_by_point(self) -> dict[Point, tuple[PreparedRun, ...]]:
        sizes = self.points or ((None,) if self.has_ledger else ())
        return {
            batch: tuple(join_gradients_to_backward(self.list_runs_at(batch))) for batch in sizes
        }

    def get_batch(self, batch: Point) -> PreparedBatch:
        """Return the batch size ``batch`` of the study. Raises KeyError where there is none."""
        return {item.batch: item for item in self.prepared_batches}[batch]

    def list_runs_at(self, batch: Point) -> list[PreparedRun]:
        """Return the runs at one batch size."""
        return [item for item in self.prepared_runs if item.run.point == batch]


def split_fused_kernels_between_layers(item: PreparedRun) -> PreparedRun:
    """The run with one launch for each layer of the kernels that belong to several, one after the
    other, each with its share of the time."""
    kernels = split_shared_kernels(item.run.report)
    if kernels is None:
        return item
    report = replace(item.run.report, kernels=kernels)
    return PreparedRun(replace(item.run, report=report), item.precision, item)


def join_gradients_to_backward(runs: Sequence[PreparedRun]) -> list[PreparedRun]:
    """Return runs of one batch size in which a layer's gradients count as "backward" where any run
    saw that layer's "backward".

    One run may separate the gradients of a layer and another not; only sums over the same work
    are compared.
    """
    layers = {
        item.layer
        for prepared in runs
        for items in (prepared.run.report.kernels, prepared.run.report.ranges)
        for item in items
        if item.direction == "backward" and item.layer
    }
    return [_join_gradients(item, layers) for item in runs] if layers else list(runs)


def _join_gradients(item: PreparedRun, layers: Set[str]) -> PreparedRun:
    def is_gradient_in_joined_layers(part: Kernel | Range) -> bool:
        return part.direction in GRADIENTS and part.layer in layers

    report = item.run.report
    if not any(map(is_gradient_in_joined_layers, report.kernels)) and not any(
        map(is_gradient_in_joined_layers, report.ranges)
    ):
        return item
    report = replace(
        report,
        kernels=[
            kernel._replace(direction="backward")
            if is_gradient_in_joined_layers(kernel)
            else kernel
            for kernel in report.kernels
        ],
        ranges=[
            part._replace(direction="backward") if is_gradient_in_joined_layers(part) else part
            for part in report.ranges
        ],
    )
    return PreparedRun(replace(item.run, report=report), item.precision, item.recorded or item)


def pick_profiler_timing_most_points(
    runs: Iterable[PreparedRun], get_time: Callable[[PreparedRun], object]
) -> str | None:
    """Return the profiler that has a time (``get_time``) at most batch sizes: one clock for a
    sweep; None when none has."""
    timed_points = {
        (item.run.profiler, item.run.point) for item in runs if get_time(item) is not None
    }
    sizes = Counter(profiler for profiler, _ in timed_points)
    return min(
        sizes, key=lambda profiler: (-sizes[profiler], rank_profiler_clock(profiler)), default=None
    )
