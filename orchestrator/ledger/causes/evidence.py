"""The evidence of one ledger row for the verdict rules: its kernels, their raw counts, and the
layer's shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd, log
from statistics import median
from types import MappingProxyType
from weakref import WeakKeyDictionary

from perfctl.orchestrator.counts.counters.sums import (
    PATHS,
    PIPE_TENSOR,
    add_counts_from_rates,
    choose_half_instruction_flop_weights,
    sum_tensor_operations,
)
from perfctl.orchestrator.counts.counters.work import find_sm_count
from perfctl.orchestrator.counts.derived.records import LaunchWork
from perfctl.orchestrator.counts.figure import Figure, sum_figures
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape, Grid
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise_kernel
from perfctl.orchestrator.counts.kernels.pairing import is_layer_selected, list_ncu_layer_filter
from perfctl.orchestrator.estimate.flops.engine import BACKWARD, is_fused_kernel_recomputation
from perfctl.orchestrator.ledger.causes.layer_shapes import (
    LayerShapes,
    Shape,
    read_single_product_layer_shapes,
)
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.ledger.prepared import DerivedRun, PreparedRun, Study
from perfctl.orchestrator.ledger.timing import Key
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Kernel
from perfctl.records.run import Run

Place = tuple[int | str, str, str]
"""(batch size, or values of other parameters; layer; direction) of a ledger row."""
FP = tuple(instruction for path in PATHS.values() for instruction in path)
SHARED_ROWS_MIN = 3
"""Rows of two layers, at least, that show another batch by their counts."""
STEPS_RATIO_MAX = 1.02
"""Steps whose executed FLOPs are no further apart are the same."""
PRODUCTS = ("conv", "winograd", "fft", "depthwise", "gemm", "attention", "rnn", None)
"""Families whose main kernels do the estimated multiply-adds; so may a kernel that no
pattern fits."""


@dataclass(frozen=True)
class KernelGroup:
    """All launches of one kernel name with one grid, for one step."""

    name: str
    algorithm: Algorithm
    grid: tuple[int, int, int] | None
    launches: float
    """Per step."""
    counts: Mapping[str, float]
    """Threads (fadd, ffma, ...), instructions (pipe) or operations (ops_path) per step,
    if collected."""
    flops: Figure
    tensor: Figure
    half_weight: int = 2
    """FLOPs of one HFMA2 in ``flops``: 2 or 4, by the version of ncu."""
    derivations: tuple[str, ...] = ()
    """Rules that derive the counts of its launches; () for counters."""
    cluster: tuple[int, int] | None = None
    """Thread blocks of a cluster in x and y; None where it was launched without, or not known."""

    @property
    def name_and_grid(self) -> tuple[str, Grid | None]:
        """Name and grid, which no other group of the row has."""
        return self.name, self.grid

    def scale_to_launches(self, launches: float) -> KernelGroup:
        """Return the group with some of its launches, which all count alike."""
        share = launches / self.launches
        if share == 1:
            return self
        counts = {name: value * share for name, value in self.counts.items()}
        flops, tensor = (
            figure if figure.value is None else replace(figure, value=figure.value * share)
            for figure in (self.flops, self.tensor)
        )
        return replace(self, launches=launches, counts=counts, flops=flops, tensor=tensor)

    @cached_property
    def is_main_product_kernel(self) -> bool:
        """True when it computes multiply-adds of the paper count."""
        return self.algorithm.role == "main" and self.algorithm.family in PRODUCTS

    @cached_property
    def multiply_add_flops(self) -> float:
        """FLOPs in multiply-adds, CUDA and tensor cores together; 0 where nothing was counted."""
        halves = 0 if self.flops.moves_constants else self.counts.get("hfma", 0)
        fused = (
            self.counts.get("ffma", 0)
            + self.counts.get("dfma", 0)
            + 2 * self.counts.get("ffma2", 0)
        )
        return 2 * fused + self.half_weight * halves + (self.tensor.value or 0)

    @cached_property
    def multiply_adds_per_launch(self) -> float:
        """Multiply-adds of one launch; 0 where nothing was counted."""
        return self.multiply_add_flops / (2 * self.launches) if self.launches else 0.0

    @property
    def executed_flops(self) -> float:
        """All FLOPs; 0 where nothing was counted."""
        return self.flops.value or 0


Kernels = tuple[KernelGroup, ...]


@dataclass(frozen=True, slots=True)
class LaunchPlaces:
    """Where and when a row's kernels ran."""

    devices: int = 1
    processes: int = 1
    steps: tuple[float, ...] = ()
    """Executed FLOPs of each recorded step; () if launches state none."""

    @property
    def worker_count(self) -> int:
        """Processes or devices that ran kernels."""
        return max(self.devices, self.processes)

    @property
    def has_unequal_steps(self) -> bool:
        """Return whether steps executed different numbers of FLOPs."""
        return bool(self.steps) and max(self.steps) > STEPS_RATIO_MAX * min(self.steps)


@dataclass(frozen=True)
class RowEvidence(LayerShapes):
    """One ledger row and the kernels that ncu recorded for it."""

    row: LedgerRow
    kernels: Kernels
    environment: Mapping[str, str]
    precision: str | None
    profiled: bool
    """True if ncu recorded kernels of some layer at this batch size, and counted in this one."""
    left_out: str | None = None
    """Why kernels that ran may be missing: the run is partial, or ncu skipped launches.
    None: neither."""
    seen_batch: int | None = None
    """Batch size that the window's causes say really ran; None if it is the row's."""
    ncu: str | None = None
    """Version of ncu, where it is known."""
    ours: bool = False
    """True when 'perfctl ncu' made the run, so that it is no advice to use it."""
    mode: str | None = None
    """"train" or "infer", as the run was recorded; None if that is not known."""
    derived: bool = False
    """True where no counter was read: the counts of kernels follow from their rules."""
    launched: LaunchPlaces = LaunchPlaces()

    @property
    def row_key(self) -> Place:
        return self.row.key

    @cached_property
    def estimated_flops(self) -> float:
        """Estimated FLOPs of the batch that was profiled; 0 when there are none, or a formula
        is missing."""
        value = self.row.complete_estimated_flops or 0
        return value * self.seen_batch / self.row.batch_size_or_one if self.seen_batch else value

    @cached_property
    def estimated_product_count(self) -> int:
        """Products of one call that the estimate has: both gradients of a layer are two. The scores
        that a fused attention computes again are no product of their own."""
        return sum(
            1 for call in self.row.calls if call.flops and not is_fused_kernel_recomputation(call)
        )

    def sum_raw_counter_over_kernels(self, count: str) -> float | None:
        """Return the sum of one raw count over the row's kernels; None when no kernel has it."""
        counts = [kernel.counts[count] for kernel in self.kernels if count in kernel.counts]
        return sum(counts) if counts else None

    @cached_property
    def product_kernels(self) -> Kernels:
        return tuple(kernel for kernel in self.kernels if kernel.is_main_product_kernel)

    def replace_profiled_batch(self, batch: int) -> RowEvidence:
        """The same evidence, read as a profile of batch size ``batch``."""
        forward: Shape | None = self.forward
        if isinstance(forward, ConvShape):
            forward = replace(forward, batch=batch)
        elif forward is not None:
            forward = replace(forward, m=forward.m * batch // self.row.batch_size_or_one)
        return replace(self, seen_batch=batch, forward=forward)

    @cached_property
    def verified_product_shapes(self) -> tuple[Shape, ...]:
        """Shapes that its products may have; a convolution's gradients have no verified grid."""
        forward = self.forward
        if forward is not None and self.row.direction == "forward":
            return (forward,)
        if not isinstance(forward, GemmShape):
            return ()
        both = {
            "grad_input": GemmShape(forward.m, forward.k, forward.n),
            "grad_weight": GemmShape(forward.n, forward.k, forward.m),
        }
        calls = {call.direction for call in self.row.calls}
        return tuple(shape for direction, shape in both.items() if direction in calls)

    @cached_property
    def unverified_input_gradient_shapes(self) -> tuple[Shape, ...]:
        """A convolution's gradient of its input is one with the channels exchanged; no measurement
        verified its grid."""
        if self.transposed is not None:
            return self._select_convolution_with_gradient("grad_input", self.transposed)
        forwards = self._select_convolution_with_gradient("grad_input", self.forward)
        return tuple(
            forward.input_gradient_for_equal_sizes for forward in forwards if forward.same_size
        )

    @cached_property
    def unverified_weight_gradient_shapes(self) -> tuple[GemmShape, ...]:
        """A convolution's gradient of its filter sums over all outputs; no measurement verified its
        grid either."""
        return tuple(
            forward.weight_gradient_gemm
            for forward in self._select_convolution_with_gradient("grad_weight", self.forward)
        )

    @cached_property
    def estimated_product_works(self) -> tuple[LaunchWork, ...]:
        """What each estimated product computes, for the rules of counts/."""
        works = [LaunchWork(shape) for shape in self.verified_product_shapes]
        for forward in (
            self._select_convolution_with_gradient("grad_input", self.forward) if self.image else ()
        ):
            height, width = self.image or (0, 0)
            shape = replace(forward.input_gradient_for_equal_sizes, out_h=height, out_w=width)
            works.append(LaunchWork(shape, direction="grad_input", forward=forward))
        works += [
            LaunchWork(forward.weight_gradient_gemm, direction="grad_weight", forward=forward)
            for forward in self._select_convolution_with_gradient("grad_weight", self.forward)
        ]
        return tuple(works)

    def _select_convolution_with_gradient(
        self, gradient: str, shape: Shape | None
    ) -> tuple[ConvShape, ...]:
        """Return the convolution of a row whose estimate has this gradient; () for other rows."""
        is_estimated = any(call.direction == gradient and call.flops for call in self.row.calls)
        is_backward = self.row.direction != "forward" and is_estimated
        return (shape,) if isinstance(shape, ConvShape) and is_backward else ()


class EvidenceTable(dict[Place, RowEvidence]):
    """Every row's evidence by its place. Nothing is added once it is made: what is derived from it
    is kept."""

    @cached_property
    def rows_in_network_order(self) -> Mapping[tuple[int | str, str], Sequence[RowEvidence]]:
        """(batch size, direction) -> rows in the network's order."""
        rows = sorted(self.values(), key=lambda evidence: evidence.row.position)
        return group_by(rows, lambda evidence: (evidence.row.key[0], evidence.row.direction))

    @cached_property
    def rows_with_kernels_by_batch(self) -> Mapping[tuple[str, str], Sequence[RowEvidence]]:
        """(layer, direction) -> its rows with kernels, by batch size."""
        rows = sorted(self.values(), key=lambda evidence: evidence.row.batch_size_or_one)
        with_kernels = (evidence for evidence in rows if evidence.kernels)
        return group_by(with_kernels, lambda evidence: evidence.row_key[1:])

    @cached_property
    def _launch_gcd_by_batch_layer(self) -> Mapping[int | str, Mapping[str, int]]:
        """Batch size -> layer -> how often it launched each of its products at least."""
        launches: dict[int | str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (batch, layer, _), evidence in self.items():
            for kernel in evidence.product_kernels:
                times = kernel.launches / evidence.calls
                number = int(times) if times == int(times) else 1
                launches[batch][layer] = gcd(launches[batch][layer], number)
        return launches

    def compute_launch_gcd_excluding_layer(self, batch: int | str, layer: str) -> int:
        """Return how often each product of the layers other than ``layer`` was launched at least;
        1 without any."""
        launches = self._launch_gcd_by_batch_layer.get(batch, {})
        return gcd(*(times for other, times in launches.items() if other != layer)) or 1

    def infer_batch_from_other_layers(self, row_key: Place) -> int | None:
        """Return the batch of which most rows of other layers have the FLOPs, of the same direction
        or of all, if it is another than theirs."""
        batch, layer, direction = row_key
        if isinstance(batch, str):
            return None
        every = ("forward", *BACKWARD)
        for directions in (("forward",) if direction == "forward" else BACKWARD, every):
            rows = [
                (row.row.layer, row.row.ratio)
                for key in directions
                for row in self.rows_in_network_order.get((batch, key), ())
                if row.row.layer != layer and row.row.ratio and not row.row.executed.lower_bound
            ]
            middle = median(ratio for _, ratio in rows) if rows else 1.0
            alike = [
                layer for layer, ratio in rows if is_same_count_within_tolerance(ratio, middle)
            ]
            samples = round(batch * middle)
            if (
                len(alike) >= max(SHARED_ROWS_MIN, len(rows) / 2)
                and len(set(alike)) > 1
                and samples not in (0, batch)
                and is_same_count_within_tolerance(batch * middle, samples)
            ):
                return samples
        return None

    @cached_property
    def row_indexes(self) -> Mapping[Place, int]:
        """Index of each row in its list of ``rows_in_network_order``."""
        return {
            evidence.row_key: index
            for rows in self.rows_in_network_order.values()
            for index, evidence in enumerate(rows)
        }


_GROUPS: WeakKeyDictionary[PreparedRun, dict[Key | None, list[KernelGroup]]] = WeakKeyDictionary()
"""As ``group_kernels_by_row`` returned them: causes and trails ask for the same."""


Loose = Mapping[int, Kernels]
"""batch -> kernels that no layer's range enclosed, per step (of the whole report where it does not
say steps)."""


def is_same_count_within_tolerance(first: float, second: float) -> bool:
    """Return whether two counts differ by no more than steps of one run do."""
    return abs(log(first / second)) < log(STEPS_RATIO_MAX)


def count_launches(kernels: Iterable[KernelGroup]) -> float:
    """Return the launches of all these kernels per step."""
    return sum(kernel.launches for kernel in kernels)


def sum_multiply_add_flops(kernels: Iterable[KernelGroup]) -> float:
    """Return the FLOPs in multiply-adds of all these kernels."""
    return sum(kernel.multiply_add_flops for kernel in kernels)


def sum_executed_flops(kernels: Iterable[KernelGroup]) -> float:
    """Return the FLOPs of all these kernels."""
    return sum(kernel.executed_flops for kernel in kernels)


def collect_row_evidence_and_unattributed(
    study: Study, ledger: Ledger
) -> tuple[EvidenceTable, Mapping[int | str, Kernels]]:
    """Return the evidence of each ledger row with estimated products or recomputation, and the
    kernels of no layer by batch size, or by values of other parameters."""
    table = EvidenceTable()
    loose = {}
    batches = {}
    for batch in study.prepared_batches:
        counting, size = batch.counted_or_derived_run, batch.batch or 1
        kernels = group_kernels_by_row(counting) if counting else {}
        launched = find_devices_processes_step_flops(counting) if counting else {}
        loose[size] = tuple(kernels.get(None, ()))
        narrowed = list_ncu_layer_filter(counting.run) if counting and any(kernels) else None
        batches[size] = (
            counting,
            kernels,
            read_single_product_layer_shapes(batch.recorded_ops),
            narrowed,
            launched,
        )
    for row in ledger.rows:
        if not row.layer or not (row.complete_estimated_flops or row.direction == "recompute"):
            continue
        counting, kernels, facts, narrowed, launched = batches[row.key[0]]
        run = counting.run if counting else None
        evidence = RowEvidence(
            row,
            tuple(kernels.get((row.layer, row.direction), ())),
            run.report.environment if run else {},
            run.precision if run else None,
            profiled=narrowed is not None and is_layer_selected(row.layer, narrowed),
            left_out=_explain_left_out_kernels(run) if run else None,
            ncu=(run.profiler_version or run.report.tool_version) if run else None,
            ours=run is not None and run.origin == "measured",
            mode=run.mode if run else None,
            derived=isinstance(counting, DerivedRun),
            launched=launched.get((row.layer, row.direction), LaunchPlaces()),
            **vars(facts.get(row.layer, LayerShapes())),
        )
        table[evidence.row_key] = evidence
    return table, loose


def _explain_left_out_kernels(run: Run) -> str | None:
    """Return why kernels that ran may be missing; None if none are known to be."""
    if run.status != "ok":
        reason = f": {run.reason.rstrip('.')}" if run.reason else ""
        return f"the {run.profiler} run is {run.status}{reason}"
    filters = run.report.environment.get("ncu:left_out")
    return f"ncu excluded launches ({filters})" if filters else None


def find_devices_processes_step_flops(run: PreparedRun) -> dict[Key | None, LaunchPlaces]:
    """Return where and when the kernels of each (layer, direction) ran."""
    steps = sorted({kernel.step for kernel, _ in run.measured_launches if kernel.step is not None})
    flops: dict[Key | None, dict[int | None, float]] = defaultdict(lambda: dict.fromkeys(steps, 0))
    places: dict[Key | None, set[tuple[int | None, int | None]]] = defaultdict(set)
    for kernel, key in run.measured_launches:
        places[key].add((kernel.device_index, kernel.process))
        if kernel.step is not None and kernel.launch in run.flops_by_launch:
            flops[key][kernel.step] += run.flops_by_launch[kernel.launch].total.value or 0
    return {
        key: LaunchPlaces(
            len({device for device, _ in pairs}),
            len({process for _, process in pairs}),
            tuple(flops[key].values()) if run.has_numbered_steps and key in flops else (),
        )
        for key, pairs in places.items()
    }


def group_kernels_by_row(run: PreparedRun) -> dict[Key | None, list[KernelGroup]]:
    """Return the kernels of each (layer, direction), launches of one name and grid together; None:
    of no layer, by the processes that ran layers if any did."""
    if run not in _GROUPS:
        _GROUPS[run] = _build_kernel_groups(run)
    return _GROUPS[run]


def _build_kernel_groups(run: PreparedRun) -> dict[Key | None, list[KernelGroup]]:
    sms = find_sm_count(run.run)
    owners = {kernel.process for kernel, key in run.measured_launches if key}
    # derived counts are one object for all launches that have them in common
    short_counts: dict[int, dict[str, float]] = {}
    for values in run.values.values():
        if id(values) not in short_counts:
            has_sums_only = all(name.endswith(".sum") for name in values)
            sums = values if has_sums_only else add_counts_from_rates(values, sms)[0]
            short_counts[id(values)] = _select_and_shorten_counters(sums)
    counts = {launch: short_counts[id(values)] for launch, values in run.values.items()}
    groups: dict[Key | None, dict[tuple[str, Grid | None], list[Kernel]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for kernel, key in run.measured_launches:
        if key is None and owners and kernel.process not in owners:
            continue
        grid = (
            None
            if kernel.grid_x is None
            else (kernel.grid_x, kernel.grid_y or 1, kernel.grid_z or 1)
        )
        groups[key][kernel.name, grid].append(kernel)
    return {
        key: [
            _build_kernel_group(name, grid, kernels, run, counts)
            for (name, grid), kernels in by_name.items()
        ]
        for key, by_name in groups.items()
    }


def _build_kernel_group(
    name: str,
    grid: Grid | None,
    kernels: Sequence[Kernel],
    run: PreparedRun,
    counts_by_launch: Mapping[int, Mapping[str, float]],
) -> KernelGroup:
    steps, launches = run.step_count or 1, [kernel.launch for kernel in kernels]
    clusters = ((item.cluster_x, item.cluster_y or 1) for item in kernels if item.cluster_x)
    cluster = next(clusters, None)
    counted = [launch for launch in launches if launch in run.values]
    flops = [run.flops_by_launch[launch] for launch in launches if launch in run.flops_by_launch]
    if not counted and not flops:
        return _build_uncounted_group(name, grid, cluster, len(launches) / steps)
    counts: dict[str, float] = {}
    for launch in counted:
        for count, value in counts_by_launch[launch].items():
            counts[count] = counts.get(count, 0.0) + value / steps
    derived = run.instructions_by_launch if isinstance(run, DerivedRun) else {}
    version = run.run.profiler_version or run.run.report.tool_version
    return KernelGroup(
        name,
        recognise_kernel(name),
        grid,
        len(launches) / steps,
        counts,
        sum_figures([item.total for item in flops], divide_by=steps),
        sum_figures([item.tensor for item in flops], divide_by=steps),
        choose_half_instruction_flop_weights(run.values[counted[0]], version)["hfma"]
        if counted
        else 2,
        tuple(dict.fromkeys(derived[launch].rule for launch in launches if launch in derived)),
        cluster,
    )


@lru_cache(maxsize=8192)
def _build_uncounted_group(
    name: str, grid: Grid | None, cluster: tuple[int, int] | None, launches: float
) -> KernelGroup:
    """Return a group without counts; batch sizes of a sweep have most of these in common."""
    return KernelGroup(
        name,
        recognise_kernel(name),
        grid,
        launches,
        MappingProxyType({}),
        sum_figures(()),
        sum_figures(()),
        cluster=cluster,
    )


def _select_and_shorten_counters(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return short names of counters -> their values, of those that have one."""
    counts: dict[str, float] = {}
    for name, value in values.items():
        if value is None:
            continue
        head, _, tail = name.partition("_op_")
        if head.endswith("__sass_thread_inst_executed") and tail.endswith("_pred_on.sum"):
            counts[tail.removesuffix("_pred_on.sum")] = value
        elif name.endswith("__" + PIPE_TENSOR):
            counts["pipe"] = value
    if (operations := sum_tensor_operations(values)) is not None:
        counts["ops_path"] = operations
    return counts
