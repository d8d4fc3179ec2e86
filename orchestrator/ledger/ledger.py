"""The ledger: estimated FLOPs, executed FLOPs and time of every layer, direction and batch size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import starmap

from perfctl.orchestrator.counts.counters.sums import read_thread_counts_by_instruction
from perfctl.orchestrator.counts.counters.work import (
    NO_COUNTERS,
    THIS_BATCH,
    describe_missing_ncu_run,
)
from perfctl.orchestrator.counts.derived.run import NO_RULE
from perfctl.orchestrator.counts.figure import Figure, make_missing_figure, sum_figures
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.counts.kernels.replays import (
    LEFT_OUT_PART,
    LaunchSite,
    collect_exclusion_reasons,
    find_extrapolated_launches,
)
from perfctl.orchestrator.estimate.flops.engine import is_fused_kernel_recomputation
from perfctl.orchestrator.ledger.expected import FORMULA
from perfctl.orchestrator.ledger.prepared import (
    DerivedRun,
    PreparedBatch,
    PreparedRun,
    RowLaunches,
    Study,
    mark_as_estimate,
)
from perfctl.orchestrator.ledger.timing import (
    GRADIENTS,
    OPTIMIZER,
    Key,
    TimeSpread,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import LayerCall
from perfctl.records.ranges import DIRECTIONS
from perfctl.records.run import Point, format_sweep_point

OUTSIDE = "outside of layers"
NEITHER = "the report has no counters, and perfctl has no rule for its kernels"
NO_KERNEL = "the report recorded no kernel"

NO_SHAPES = "no formula, because its shapes are unknown"
NO_OPERATION = "no formula, because the recorded shapes contain no operation of it"

GUESSED = "perfctl guessed the layer of some launches"
NOT_TAKEN_OVER = "ncu excluded launches that repeat another, and its counts do not match them"
OF_ANOTHER = "measured in a layer with the same kernels, grids and shapes"
"""Why the count of a launch that ncu did not replay is that of one which it repeats."""
NO_STEPS = "the report does not state its number of steps"


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel name of a ledger row."""

    name: str
    family: str | None
    algorithm: str | None
    """Method and tile that the name states, in words: "implicit gemm, 128x64 tile"."""
    per_step: float


@lru_cache(maxsize=8192)
def _build_kernel_use(kernel_name: str, launches_per_step: float) -> KernelUse:
    """Return the use of a kernel; runs of a sweep mostly use the same kernels."""
    return KernelUse(
        kernel_name,
        recognise_kernel(kernel_name).family,
        describe_kernel_method_and_tile(kernel_name),
        launches_per_step,
    )


@lru_cache(maxsize=8192)
def describe_kernel_method_and_tile(name: str) -> str | None:
    """Return method and tile of a kernel in words; None when its name states neither."""
    kernel = recognise_kernel(name)
    sides = [str(side) for side in kernel.tile or () if side is not None]
    tile = f"{'x'.join(sides)} tile" if kernel.tile else None
    cores = f"{kernel.math or ''} tensor cores".strip() if kernel.tensor_core else None
    return ", ".join(filter(None, (kernel.method, tile, cores))) or None


def format_at_batch(batch: Point) -> str:
    """ " at batch 16" or " at N=256", as a sentence goes on; "" for a report that says neither."""
    return "" if batch is None else f" at {format_sweep_point(batch)}"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One layer in one direction at one batch size, for one step. FLOPs: 1 multiply-add = 2."""

    batch: Point
    """None for a report that does not say."""
    layer: str
    """Dotted module path, or an operator and its sizes where a trace has no modules; "" for the
    optimizer as a whole and for operations outside of layers."""
    kind: str | None
    direction: str
    position: int
    estimated: Figure
    calls: tuple[LayerCall, ...]
    """One, or the gradients that make up "backward"."""
    executed: Figure
    """From counters; where no run has any, from the kernels' rules: its state is then "derived"."""
    ratio: float | None
    """Executed / estimated; a lower bound when ``executed`` is one. None when either is missing or
    the estimate is 0 or a lower bound."""
    time: TimeSpread | None
    time_reason: str | None
    basis: str | None
    trusted: bool
    share: float | None
    """Of all measured steps, or of their kernel time (see ``whole``); shares of a batch size add up
    to 1."""
    whole: str | None
    achieved: float | None
    """Estimated FLOPs / median time, per second; None when either is missing, estimated is 0 or a
    lower bound, or the clock is not to trust."""
    kernels: tuple[KernelUse, ...]
    guessed: float = 0.0
    """0..1: of its launches, those whose layer was guessed."""
    shared: float = 0.0
    """0..1: of its launches, those that are its part of a fused kernel, whose time and counts were
    shared out between layers."""
    derived: Figure | None = None
    """What the rules for the row's kernels say, beside counters or in their place; None where no
    kernel has a rule."""

    @property
    def complete_estimated_flops(self) -> float | None:
        """Estimated FLOPs if all of them are known; None if there are none, or for a lower bound,
        by which nothing is judged."""
        return None if self.estimated.lower_bound else self.estimated.value

    @property
    def ratio_at_most(self) -> float | None:
        """Executed / estimated FLOPs where the estimate is a lower bound; None elsewhere, and when
        ``executed`` is a lower bound too."""
        if (
            not (self.estimated.lower_bound and self.estimated.value)
            or self.executed.value is None
            or self.executed.lower_bound
        ):
            return None
        return self.executed.value / self.estimated.value

    @property
    def batch_size_or_one(self) -> int:
        """The batch size of the estimate; 1 if the report does not state it: its figures are for
        the complete report."""
        return self.batch if isinstance(self.batch, int) else 1

    @property
    def has_no_sweep_parameters(self) -> bool:
        """Whether it is not of a sweep over other parameters than the batch size."""
        return not isinstance(self.batch, str)

    @property
    def key(self) -> tuple[int | str, str, str]:
        """Where its causes are."""
        return self.batch or 1, self.layer, self.direction

    @property
    def batch_phrase(self) -> str:
        """ " at batch 16", as a sentence goes on; "" where the report does not say."""
        return format_at_batch(self.batch)

    @property
    def layer_label(self) -> str:
        return self.layer or ("optimizer" if self.direction == "optimizer" else OUTSIDE)

    @property
    def name(self) -> str:
        """ "conv2 forward"; the optimizer's own row is "optimizer", a formula's its pattern."""
        return f"{self.layer_label} {self.direction_label}".strip()

    @property
    def direction_label(self) -> str:
        """The direction; "" for the optimizer's own row and for a formula of the user's."""
        return "" if self.kind == FORMULA or self.layer_label == self.direction else self.direction


@dataclass(frozen=True, slots=True)
class UnattributedWork:
    """Time and FLOPs of no layer, at one batch size."""

    batch: Point
    time: TimeSpread
    share: float
    whole: str
    basis: str
    executed: Figure


@dataclass(frozen=True, slots=True)
class Ledger:
    """All rows of a study, in the network's order, and what is left over."""

    rows: tuple[LedgerRow, ...]
    unattributed: tuple[UnattributedWork, ...]

    @property
    def has_executed_flops(self) -> bool:
        return any(row.executed.value is not None for row in self.rows)


def build_ledger(study: Study) -> Ledger:
    """Return the rows for every batch size of a study."""
    points = study.points
    by_batch = [_build_batch_rows(batch) for batch in study.prepared_batches]
    rows = [row for of_batch, _ in by_batch for row in of_batch]
    # first position anywhere; layers without one come after the rest, the optimizer last
    by_place = group_by(rows, lambda row: row.layer_label)
    order = {
        row_key: min(row.position for row in of_place) for row_key, of_place in by_place.items()
    }
    directions = {direction: index for index, direction in enumerate(DIRECTIONS)}
    rows.sort(
        key=lambda row: (
            order[row.layer_label],
            row.layer,
            directions.get(row.direction, 99),
            points.index(row.batch) if row.batch is not None else 0,
        )
    )
    return Ledger(
        tuple(rows), tuple(unattributed for _, unattributed in by_batch if unattributed is not None)
    )


def _build_batch_rows(batch: PreparedBatch) -> tuple[list[LedgerRow], UnattributedWork | None]:
    """Return the rows of one batch size, and what is left over."""
    times = batch.layer_times
    # pen and paper; a layer may hold several operations
    recorded = next((item.run.layer_calls for item in batch.runs if item.run.layer_calls), ())
    all_calls = (*recorded, *batch.user_formula_work.calls)
    by_row = group_by(all_calls, lambda call: (call.layer, call.direction))
    calls = {key: tuple(of_row) for key, of_row in by_row.items()}
    _move_fused_attention_recompute_calls(calls, batch)
    counted, uncounted = _sum_executed_flops_with_fallback(batch)
    derived: Mapping[Key | None, Figure] = {}
    if batch.derived_run and batch.derived_run.step_count:
        derived = (
            counted
            if batch.counted_or_derived_run is batch.derived_run
            else _sum_executed_flops_per_step_by_row(batch.derived_run)
        )
    measured = set(times.rows if times else ()) | {key for key in counted if key is not None}
    rows = [
        _build_ledger_row(
            batch,
            key,
            _collect_estimated_row_calls(calls, *key, joins_gradients=key in measured),
            counted.get(key, uncounted),
            derived.get(key),
            NO_OPERATION if recorded else NO_SHAPES,
        )
        for key in sorted(_merge_measured_and_estimated_keys(calls, measured))
    ]
    if times is None or not times.total.mean:
        return rows, None
    return rows, UnattributedWork(
        batch=batch.batch,
        time=times.unattributed,
        share=times.unattributed.mean / times.total.mean,
        whole=times.whole,
        basis=times.basis,
        executed=counted.get(None, uncounted),
    )


def _move_fused_attention_recompute_calls(
    calls: dict[Key, tuple[LayerCall, ...]], batch: PreparedBatch
) -> None:
    """Move the scores that a fused attention computes again to the gradient in which its kernel
    ran: that kernel's count has them. What runs again by itself keeps its row.

    If forward's kernel is a fused attention, the gradients' is one too, whatever its name.
    """
    runs = [run for run in (batch.counted_or_derived_run, batch.timing_run) if run is not None]
    for layer, direction in [key for key in calls if key[1] == "recompute"]:
        fused = tuple(
            call for call in calls[layer, direction] if is_fused_kernel_recomputation(call)
        )
        kernels = {
            part: [
                run.launches_by_layer_direction[layer, part]
                for run in runs
                if (layer, part) in run.launches_by_layer_direction
            ]
            for part in ("forward", "backward", *GRADIENTS)
        }
        attending = {
            part for part, rows in kernels.items() if any(map(_has_fused_attention_kernel, rows))
        }
        gradients = [part for part in kernels if part != "forward" and kernels[part]]
        owners = [part for part in gradients if part in attending]
        if "forward" in attending:
            owners += gradients
        if not fused or not owners:
            continue
        owner = layer, owners[0]
        calls[owner] = (*calls.get(owner, ()), *fused)
        other_calls = tuple(
            call
            for call in calls.pop((layer, direction))
            if not is_fused_kernel_recomputation(call)
        )
        if other_calls:
            calls[layer, direction] = other_calls


def _has_fused_attention_kernel(row: RowLaunches) -> bool:
    """Return whether a fused attention kernel is among these launches."""
    kernels = map(recognise_kernel, row.names)
    return any(kernel.family == "attention" and kernel.role == "main" for kernel in kernels)


def _build_ledger_row(
    batch: PreparedBatch,
    key: Key,
    calls: tuple[LayerCall, ...],
    counted: Figure,
    derived: Figure | None,
    no_estimate: str,
) -> LedgerRow:
    """``no_estimate``: why a row without calls has no estimate."""
    times, timing = batch.layer_times, batch.timing_run
    source = timing if timing and timing.run.report.kernels else batch.counted_or_derived_run
    kernels = source.launches_by_layer_direction.get(key) if source else None
    paper = (
        _sum_estimated_flops(calls) if calls else make_missing_figure("not_available", no_estimate)
    )
    time = times.rows.get(key) if times else None
    not_timed = f"no run at {_format_parameters_or_batch_phrase(batch.batch)} timed its layers"
    if times is not None:
        not_timed = "the report has no range or kernel of it"
    if time is not None and (mismatch := _explain_formula_launch_mismatch(batch, key, calls)):
        time, not_timed = None, mismatch
    flops = None if paper.lower_bound else paper.value
    trusted = bool(times and times.trusted)
    positions = [call.position for call in calls if call.position is not None]
    return LedgerRow(
        batch=batch.batch,
        layer=key[0],
        # of the operator with the most FLOPs
        kind=max(calls, key=lambda call: call.flops or 0).kind
        if calls and key != OPTIMIZER
        else None,
        direction=key[1],
        position=2 * 10**9 if key == OPTIMIZER else min(positions, default=10**9),
        estimated=paper,
        calls=calls,
        executed=counted,
        derived=derived if derived is not None and derived.value is not None else None,
        ratio=counted.value / flops if counted.value is not None and flops else None,
        time=time,
        time_reason=not_timed if time is None else None,
        basis=times.basis if times and time else None,
        trusted=trusted,
        share=time.mean / times.total.mean if time and times and times.total.mean else None,
        whole=times.whole if times and time else None,
        achieved=flops / time.median * 1e9 if time and trusted and time.median and flops else None,
        kernels=tuple(starmap(_build_kernel_use, kernels.names.items())) if kernels else (),
        guessed=kernels.guessed if kernels else 0.0,
        shared=kernels.shared if kernels else 0.0,
    )


def _explain_formula_launch_mismatch(
    batch: PreparedBatch, key: Key, calls: Sequence[LayerCall]
) -> str:
    """Return why the time of a formula of the user's is not that of its launches, for which it is
    worked out; "" if it is."""
    counting, timing = batch.counted_or_derived_run, batch.timing_run
    is_formula = bool(calls) and calls[0].kind == FORMULA
    if not is_formula or counting is None or timing is None or counting.run is timing.run:
        return ""
    runs = [counting, timing]
    counted, timed = (
        sum(run.launches_by_layer_direction[key].names.values())
        if key in run.launches_by_layer_direction
        else 0
        for run in runs
    )
    if abs(counted - timed) <= 0.01 * counted:
        return ""
    return (
        f"{timing.run.profiler} timed {timed:g} launches, and {counting.run.profiler} measured "
        f"{counted:g}"
    )


def _merge_measured_and_estimated_keys(
    estimated_keys: Iterable[Key], measured_keys: set[Key]
) -> set[Key]:
    """Rows to show: what was measured, and what is estimated unless it is inside a
    measured "backward"."""
    keys = set(measured_keys)
    for layer, direction in estimated_keys:
        inside = direction in GRADIENTS and (layer, "backward") in measured_keys
        if inside or (direction == "grad_bias" and (layer, "grad_weight") in measured_keys):
            continue
        is_whole_optimizer = direction == "optimizer" and (layer, direction) not in measured_keys
        keys.add(OPTIMIZER if is_whole_optimizer else (layer, direction))
    return keys


def _collect_estimated_row_calls(
    calls: Mapping[Key, Sequence[LayerCall]], layer: str, direction: str, *, joins_gradients: bool
) -> tuple[LayerCall, ...]:
    """Return the estimated calls of one row: if ``joins_gradients``, those of "backward" are the
    gradients and all else; those of the optimizer's row are of all layers."""
    if (layer, direction) == OPTIMIZER:
        return tuple(
            call for (_, part), several in calls.items() if part == direction for call in several
        )
    gradients = GRADIENTS if direction == "backward" and joins_gradients else ()
    return tuple(call for part in (*gradients, direction) for call in calls.get((layer, part), ()))


def _sum_estimated_flops(layer_calls: Sequence[LayerCall]) -> Figure:
    known_flops = sum(call.flops or 0 for call in layer_calls)
    lacking = [call for call in layer_calls if call.flops is None]
    if not lacking:
        bounds = dict.fromkeys(
            call.upper_bound_reason for call in layer_calls if call.upper_bound_reason
        )
        reason = f"upper bound: {'; '.join(bounds)}" if bounds else None
        return Figure(known_flops, "counted", reason, upper_bound=bool(bounds))
    names = [f"{call.kind or 'this operation'} ({call.direction})" for call in lacking]
    each = (
        call.formula or f"no formula for {name}" for call, name in zip(lacking, names, strict=True)
    )
    reasons = "; ".join(dict.fromkeys(each))
    if not known_flops:  # "at least 0" says nothing
        return make_missing_figure("not_available", reasons)
    return Figure(known_flops, "counted", reasons, missing=tuple(dict.fromkeys(names)))


def _format_parameters_or_batch_phrase(batch: Point) -> str:
    return batch if isinstance(batch, str) else THIS_BATCH


def _sum_executed_flops_with_fallback(
    batch: PreparedBatch,
) -> tuple[dict[Key | None, Figure], Figure]:
    """FLOPs per step by (layer, direction), None for what is not attributed; and the figure for
    all others."""
    counting, figures = batch.counted_or_derived_run, dict[Key | None, Figure]()
    failed = next((item.run for item in batch.runs if item.run.profiler == "ncu"), None)
    if counting is not None and counting.step_count is not None:
        figures = _sum_executed_flops_per_step_by_row(counting)
        layers = counting.run.report.environment.get("ncu:layers")
        unseen = f"{counting.run.profiler} recorded no kernel of it"
        reason = f"ncu measured {layers} only (--layer)" if layers else unseen
    elif counting is not None:
        reason = _explain_missing_per_step_flops(counting)
    elif failed is not None:
        reason = f"the ncu run has no counters: {(failed.reason or failed.status).rstrip('.')}"
    elif batch.on_cpu:
        return figures, make_missing_figure("not_available", NO_COUNTERS)
    elif batch.batch is None:
        reason = NEITHER if any(item.run.report.kernels for item in batch.runs) else NO_KERNEL
    else:
        reason = describe_missing_ncu_run(_format_parameters_or_batch_phrase(batch.batch))
    return figures, make_missing_figure("not_collected", reason)


def _explain_missing_per_step_flops(run: PreparedRun) -> str:
    """ "ncu counted FADD only, and the report does not say how many steps it covers"."""
    if isinstance(run, DerivedRun):
        return f"the report has no counters, and {NO_STEPS}, so perfctl derives nothing per step"
    if any(figure.total.value is not None for figure in run.flops_by_launch.values()):
        return f"{run.run.profiler} measured its kernels, but {NO_STEPS}"
    names = (
        name for values in run.values.values() for name in read_thread_counts_by_instruction(values)
    )
    kinds = " and ".join(dict.fromkeys(map(str.upper, names)))
    measured = f"{kinds} only" if kinds else "no FLOPs"
    return f"{run.run.profiler} measured {measured}, and {NO_STEPS}"


def _sum_executed_flops_per_step_by_row(run: PreparedRun) -> dict[Key | None, Figure]:
    """Return the FLOPs per step of each (layer, direction) whose kernels the run saw."""
    is_derived = isinstance(run, DerivedRun)
    lacking = (
        make_missing_figure("not_available", NO_RULE)
        if is_derived
        else make_missing_figure("not_collected", "no counters for this launch")
    )
    is_replayed = not is_derived and "ncu:extrapolated" in run.run.report.environment
    repeats = find_extrapolated_launches(run.run.report.counters) if is_replayed else frozenset()
    left_out = {} if is_derived else collect_exclusion_reasons(run.run.report.gaps)
    groups: dict[Key | None, list[Figure]] = defaultdict(list)
    with_unknown: set[Key | None] = set()
    for kernel, key in run.measured_launches:
        flops = run.flops_by_launch.get(kernel.launch)
        figure = flops.total if flops else lacking
        site = LaunchSite(kernel.layer or "", kernel.direction or "")
        if flops is None and site in left_out:
            with_unknown.add(key)
            figure = make_missing_figure("not_collected", left_out[site], lacking=(NOT_TAKEN_OVER,))
        if kernel.launch in repeats:
            figure = mark_as_estimate(figure, OF_ANOTHER)
        figure = run.scale_to_layer_share(kernel, figure)
        if key and kernel.layer_source == "guessed":
            figure = mark_as_estimate(figure, GUESSED)
        groups[key].append(figure)
    figures = {
        key: sum_figures(group, divide_by=run.step_count or 1) for key, group in groups.items()
    }
    for site, reason in left_out.items():
        key = (site.layer, site.direction)
        if (figure := figures.get(key, lacking)).value is not None:
            # a lower bound; not even the number of launches is known, unless they are listed
            unlisted = () if key in with_unknown else (LEFT_OUT_PART,)
            figures[key] = replace(
                figure,
                reason="; ".join(filter(None, (reason, figure.reason))),
                missing=(*figure.missing, *unlisted),
                lacking=tuple(dict.fromkeys((*figure.lacking, NOT_TAKEN_OVER))),
            )
    if is_derived:  # at least 0 says nothing
        for key, figure in figures.items():
            if figure.lower_bound and not figure.value:
                figures[key] = replace(lacking, of_launches=figure.of_launches)
    return figures
