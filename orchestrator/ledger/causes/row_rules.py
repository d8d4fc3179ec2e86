"""Rules about one row: other algorithms, padding, and work beside the products or elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, takewhile
from math import gcd, log

from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.short_names import (
    shorten_kernel_name,
    shorten_kernel_names_uniquely,
)
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.breakdown import (
    SPARSE,
    break_down_executed_flops,
    has_grid_of_other_channels,
)
from perfctl.orchestrator.ledger.causes.call_rules import RECURRENT, count_estimated_products
from perfctl.orchestrator.ledger.causes.evidence import (
    KernelGroup,
    RowEvidence,
    count_launches,
    sum_executed_flops,
    sum_multiply_add_flops,
)
from perfctl.orchestrator.ledger.causes.matching import (
    CLOSE,
    EXACT,
    TRANSFORMED,
    has_grid_matching_row_shape,
    predict_product_flops_from_tiles,
)
from perfctl.orchestrator.ledger.causes.rule import (
    DEVIATION_MIN,
    UNSTATED,
    Cause,
    ExpectedNumber,
    Implications,
    RowCase,
    deviates_from_one,
)
from perfctl.orchestrator.ledger.causes.tensor_rules import THRICE

SAME_WORK_ERROR_MAX = 0.02
"""Counts no further apart are the same work."""
OTHER_LAYER_LOG_MIN = log(100)
"""A count this far from what a layer's shape needs of an algorithm is another layer's."""
OUTSIDE_SHARE_MAX = 0.1
"""Share of a layer's estimate that products outside of layers may have without being another
layer's."""
DERIVATIONS_LISTED_MAX = 4

_WORK_BY_NAME = (
    ("dropout", re.compile("dropout")),
    ("batch norm", re.compile("batch_?norm|bn_fw|bn_bw")),
    ("fake quantisation", re.compile("fake_?quant")),
    ("layer norm", re.compile("layer_?norm|rms_?norm")),
    ("softmax", re.compile("softmax")),
)
_ACTIVATION = re.compile("gelu|silu|swish|sigmoid|tanh")
"""Functions of a GEMM's epilogue that need FLOPs; "relu" is also in names of kernels without it."""
_WORK_BY_FAMILY = {
    "norm": "normalisation",
    "softmax": "softmax",
    "pool": "pooling",
    "reduction": "sums",
    "optimizer": "the optimizer",
    "copy": "copies",
    "rnn": "gates of its cells",
}
_WORK_BY_ROLE = {
    "layout": "layout transforms",
    "offsets": "offsets",
    "main": "bias, scaling or activation",
}
_STREAM_KERNEL = re.compile("stream_?k")
"""CUTLASS's kernels whose blocks share tiles, and add up their parts."""
_VECTOR_KERNEL = re.compile("gemv|gemmsn|dot_kernel")
"""Kernels of cuBLAS that sum each row's products over threads, without bias or activation."""


def detect_several_algorithms(case: RowCase) -> Cause | None:
    """More than one kernel did the complete layer: cuDNN was trying them out.

    Evidence  two or more kernels whose grids each do the complete layer, or whose algorithms do, if
              the run recorded that ``torch.backends.cudnn.benchmark`` was on; no other product ran.
    Factor    the sum of what each needs; none if not all were counted.
    Silent    if cudnn.benchmark was off and the layer is a convolution.
    Fix       warm up outside of the profiled steps, or turn it off.
    """
    evidence = case.evidence
    if not case.executed_flops:
        return None
    parts, several = case.breakdown, case.breakdown.several
    if not several or not parts.estimated:
        return None
    is_partial = evidence.row.executed.lower_bound
    other_flops = sum_executed_flops(kernel for kernel in evidence.kernels if kernel not in several)
    within = sum(max(kernel.executed_flops - kernel.multiply_add_flops, 0) for kernel in several)
    # a trial runs once: the number of launches that all layers have in common is another cause
    common = gcd(
        case.table.compute_launch_gcd_excluding_layer(*evidence.row_key[:2]),
        *(round(kernel.launches) for kernel in several),
    )
    names = ", ".join(shorten_kernel_names_uniquely(kernel.name for kernel in several).values())
    return case.make_cause_unless_contradicted(
        "several algorithms",
        None
        if is_partial
        else (parts.base + other_flops + within) / parts.estimated / (common or 1),
        several,
        Implications(is_counted=is_partial, trials=True),
        "partly counted" if is_partial else "",
        number=len(several),
        names=names,
        products=isinstance(evidence.forward, GemmShape),
    )


def detect_tile_padding(case: RowCase) -> Cause | None:
    """Kernels compute complete tiles, which cover more than the layer has.

    Evidence  the grid, the tile in the kernel's name, and the layer's shape, within 20% of the
              count (2% in gradients and without a grid), or a rule of derived counts that gives
              the count exactly. A Triton kernel has its tile in no name: one filling alone, with
              sides of 16 to 256, fits grid and count (plausible).
    Factor    multiply-adds of the tiles / estimate. The sum is rounded up to the kernel's step, in
              every part of a split sum; channels are filled up to loads of 16 bytes where a kernel
              needs that. A 9-deep filter padded to 16, 32 channels in a tile of 64 make 3.56.
    Silent    for Winograd and FFT, if more products ran than the tiles predict, and if a product
              that was launched more often than those of other layers fits parts of the batch as
              well.
    Fix       sizes that are multiples of the tile, or none.
    """
    if case.executed_flops is None:
        return None
    parts, evidence = case.breakdown, case.evidence
    if not parts.rules or not parts.estimated:
        return None
    factor = parts.base / parts.estimated
    if parts.family in ("winograd", "fft") or not case.is_factor_significant(factor):
        return None
    forward = evidence.row.direction == "forward"
    runs = 1.0
    if parts.called:
        runs = gcd(*(round(kernel.launches) for kernel in parts.products)) / evidence.calls
    counted = ExpectedNumber(parts.seen / max(runs, 1.0), parts.base, CLOSE if forward else EXACT)
    executed = (parts.seen - parts.called) / parts.base if parts.base else 1.0
    batches = _list_batch_sizes_fitting_blocks(case)
    is_chosen_by_count = any(
        kernel.algorithm.tile is None and kernel.algorithm.library == "triton"
        for kernel in parts.products
    )
    return case.make_cause_unless_contradicted(
        "tile padding",
        factor,
        parts.products,
        Implications(
            flops=counted if parts.seen else None,
            batches=batches,
            is_stated=not is_chosen_by_count,
        ),
        tiles=parts.rules,
        executed=executed if deviates_from_one(executed) else None,
        other_batch=batches[1] if len(batches) > 1 else None,
        in_all=not forward or len(parts.products) > 1,
    )


def detect_derived_tile_padding(case: RowCase) -> Cause | None:
    """A derived count is made of complete tiles, by the rules of its kernels.

    Evidence  the rules that derive the count, if no grid was matched.
    Factor    derived multiply-adds / estimate.
    Silent    for counters, and if more products ran than the step needs.
    Fix       sizes that are multiples of the tile.
    """
    evidence = case.evidence
    kernels = evidence.product_kernels
    if (
        not evidence.derived
        or not evidence.estimated_flops
        or detect_tile_padding(case) is not None
    ):
        return None
    calls = sum(call.calls for call in evidence.row.calls if call.flops)
    launched = count_launches(kernels)
    done = 2 * (evidence.sum_raw_counter_over_kernels("ffma") or 0) + (
        evidence.sum_raw_counter_over_kernels("ops_path") or 0
    )
    # three TF32 products for each of fp32 are another cause
    is_thrice = bool(kernels) and all(THRICE.search(kernel.name) for kernel in kernels)
    factor = done / evidence.estimated_flops / (3 if is_thrice else 1)
    rules = dict.fromkeys(rule for kernel in kernels for rule in kernel.derivations)
    if factor <= 1 or not rules or not case.is_factor_significant(factor):
        return None
    tiles = tuple(rules)[:DERIVATIONS_LISTED_MAX]
    implies = Implications(launches=ExpectedNumber(launched, calls))
    return case.make_cause_unless_contradicted(
        "tile padding", factor, kernels, implies, tiles=tiles
    )


def _does_count_equal_estimate(evidence: RowEvidence) -> bool:
    """Return whether the count is the estimate, by kernels that do all of its multiply-adds."""
    does_fewer = any(
        kernel.algorithm.family in ("winograd", "fft") or SPARSE.search(kernel.name)
        for kernel in evidence.kernels
    )
    launches = count_launches(evidence.product_kernels)
    return (
        not does_fewer
        and not evidence.left_out
        and launches >= count_estimated_products(evidence)
        and abs((evidence.row.ratio or 0) - 1) <= SAME_WORK_ERROR_MAX
        and not evidence.row.executed.lower_bound
    )


def _list_batch_sizes_fitting_blocks(case: RowCase) -> tuple[int, ...]:
    """Return the batch sizes that fit the row's blocks: its own, and another that runs the same
    ones, which other layers show, or twice the row's if none shows which batch ran."""
    evidence, forward = case.evidence, case.forward_row
    batch = evidence.row.batch_size_or_one
    rows = (
        row
        for direction in ("forward", *BACKWARD)
        for row in case.table.rows_in_network_order.get((batch, direction), ())
    )
    shared = case.table.infer_batch_from_other_layers(evidence.row_key)
    if evidence.seen_batch or not (
        shared or not any(row is not evidence and _does_count_equal_estimate(row) for row in rows)
    ):
        return (evidence.seen_batch or batch,)
    other = shared or 2 * batch
    halves = any(kernel.counts.get("hfma") for kernel in case.breakdown.products)
    if shared and halves:
        return batch, shared  # how many lanes of an HFMA2 were used is not known
    read = break_down_executed_flops(
        evidence.replace_profiled_batch(other),
        forward.replace_profiled_batch(other) if forward else None,
    )
    same = read.rules and abs(read.base / case.breakdown.base - 1) < DEVIATION_MIN
    return (batch, other) if same else (batch,)


def detect_persistent_rnn(case: RowCase) -> Cause | None:
    """A recurrent layer's steps run in one kernel, which keeps the weights on chip.

    Evidence  the kernel's name (``RNN_blockPersist_fp_LSTM``, ``RNN_persist_fp``), and a gap.
    Factor    none; how many samples it works on at once is in neither name nor grid.
    Silent    without a gap.
    Fix       none; larger batches fill its groups.
    """
    if not case.executed_flops or not deviates_from_one(case.ratio or 1):
        return None
    if not RECURRENT.search(case.evidence.row.kind or ""):
        return None
    forward = case.forward_row if case.evidence.row.direction != "forward" else None
    repeated = {kernel.name for kernel in forward.kernels} if forward is not None else set()
    kernels = tuple(
        kernel
        for kernel in case.breakdown.products
        if kernel.algorithm.family == "rnn"
        and kernel.name not in repeated
        and "persist" in kernel.name.lower()
    )
    if not kernels:
        return None
    return case.make_cause_unless_contradicted(
        "persistent RNN",
        None,
        kernels,
        UNSTATED,
        flops=sum_executed_flops(kernels),
        estimated=case.evidence.estimated_flops,
        executed=case.executed_flops,
        kernel=shorten_kernel_name(kernels[0].name),
    )


def detect_winograd(case: RowCase) -> Cause | None:
    """Winograd needs fewer multiplies for 3x3 and 5x5 filters, with additions in the transforms.

    Evidence  kernel names, the grid (whose side with the channels says how the tile lies) or the
              shape, and the counts of the transforms.
    Factor    multiplies of its tiles, those at the edge included, / estimate (F(2x2,3x3) at best
              16/36, F(4x4,3x3) 36/144), plus the transforms. Next to a gradient that is computed
              directly, that gradient's products are in both sums.
    Silent    if its products were not counted, or grid and count show other channels than the
              layer's.
    Fix       none; ``torch.backends.cudnn.deterministic = True`` leaves fewer algorithms to choose
              from.
    """
    return _propose_transformed_convolution(case, "Winograd", "winograd")


def detect_fourier(case: RowCase) -> Cause | None:
    """The convolution runs as a product of Fourier transforms.

    Evidence  kernel names, the grids or the shape, and the counts of the transforms. The gradient
              of the input is such a convolution with the channels exchanged; that of the filter
              sums over the tiles.
    Factor    tiles x t x (t/2 + 1) x 4 for each pair of channels / estimate, plus the transforms.
    Silent    if its products were not counted.
    Fix       as for Winograd.
    """
    return _propose_transformed_convolution(case, "FFT", "fft")


def _propose_transformed_convolution(case: RowCase, rule: str, family: str) -> Cause | None:
    if case.executed_flops is None:
        return None
    parts, evidence = case.breakdown, case.evidence
    if parts.family != family or not parts.estimated or not parts.rules or not parts.seen:
        return None  # its products were not counted, or did not run
    forward = evidence.row.direction == "forward"
    error = abs(log(parts.seen / parts.base))
    if not _can_use_winograd_or_fft(evidence):
        return None
    has_other_layers = any(
        has_grid_of_other_channels(kernel, evidence.forward) for kernel in parts.products
    )
    error_max = EXACT if forward and has_other_layers else OTHER_LAYER_LOG_MIN
    multiplies, transforms = parts.base / parts.estimated, parts.transforms / parts.estimated
    runs = min((kernel.launches for kernel in parts.transforming), default=0) / evidence.calls
    # more launches of both, or a larger batch, are another cause
    enough = count_launches(parts.products) >= count_estimated_products(evidence)
    if (len(parts.products) == 1 if forward else enough) and error > CLOSE:
        transforms = multiplies * parts.transforms / parts.seen
    elif forward and runs > 1:
        transforms /= runs
    batches = _list_batch_sizes_fitting_blocks(case)
    # one gradient by Winograd, the other by Fourier transforms: unless the count is exact, it is
    # open how much each needs
    families = {kernel.algorithm.family for kernel in evidence.kernels}
    is_mixed = families.issuperset(TRANSFORMED)
    return case.make_cause_unless_contradicted(
        rule,
        multiplies + transforms,
        (*parts.products, *parts.transforming),
        Implications(
            flops=ExpectedNumber(parts.seen, parts.base, error_max),
            batches=batches,
            is_stated=error <= (EXACT if is_mixed else CLOSE),
        ),
        tiles=parts.rules,
        executed=parts.seen / parts.estimated
        if deviates_from_one(parts.seen / parts.base)
        else None,
        other_batch=batches[1] if len(batches) > 1 else None,
        method=(parts.method or rule) if family == "winograd" else rule,
        multiplies=multiplies,
        transforms=transforms,
    )


def _can_use_winograd_or_fft(evidence: RowEvidence) -> bool:
    """Return whether the row is a convolution whose filter the algorithm can have, as far as both
    are known."""
    shape = evidence.forward
    if not isinstance(shape, ConvShape):
        return shape is None and "Conv" in (evidence.row.kind or "Conv")
    sides = {
        kernel.algorithm.winograd[1] for kernel in evidence.kernels if kernel.algorithm.winograd
    }
    filter_sides = {shape.kernel_h, shape.kernel_w}
    return filter_sides == sides if sides else shape.kernel_h * shape.kernel_w > 1


def detect_split_k(case: RowCase) -> Cause | None:
    """A long sum is cut into slices, which are added up afterwards, or by the kernel itself.

    Evidence  a kernel that adds up slices, or the product's own FADD: one for each value and part
              but the first, or each.
    Factor    1 + additions / (products, transforms and repeated work).
    Silent    without additions. Atomic additions are in no counter: ``splitK`` in the name and no
              grid that fits name the cause without a factor.
    Fix       none; larger batches avoid the split.
    """
    if case.executed_flops is None:
        return None
    parts = case.breakdown
    named_kernels = [kernel for kernel in parts.products if kernel.algorithm.split_k]
    unknown = not parts.summed and not parts.rules and deviates_from_one(case.ratio or 1)
    if case.executed_flops and named_kernels and unknown:
        name = named_kernels[0].name[:60]
        return case.make_cause_unless_contradicted(
            "split-K", None, named_kernels, UNSTATED, "by its name", kernel=name
        )
    factor = parts.compute_flop_factor_of_part("summed")
    if not parts.summed or not case.is_factor_significant(factor):
        return None
    depths = (kernel.grid[2] for kernel in parts.products if kernel.grid and kernel.grid[2] > 1)
    adder = parts.summing[0]
    return case.make_cause_unless_contradicted(
        "split-K",
        factor,
        parts.summing,
        flops=parts.summed,
        extra=factor - 1,
        kernel=None if adder in parts.products else adder.name[:60],
        slices=next(depths, None),
    )


def detect_layout_and_epilogue(case: RowCase) -> Cause | None:
    """Kernels do work in addition to the products: change layouts, add a bias, scale results.

    Evidence  FLOPs of the other kernels, and of the products beyond their multiply-adds.
    Factor    1 + their FLOPs / (products and all other parts).
    Silent    if the factor is close to 1.
    Fix       none; the estimate counts multiply-adds only.
    """
    if case.executed_flops is None:
        return None
    parts = case.breakdown
    factor = parts.compute_flop_factor_of_part("extra")
    if not parts.extra or not case.is_factor_significant(factor):
        return None
    works = [
        _describe_work_besides_products(kernel) for kernel in parts.extras if kernel.executed_flops
    ]
    if parts.onto:
        # FFMA of a tensor-core kernel may be any epilogue
        is_tensor = any(kernel.tensor.value for kernel in parts.products)
        beside = "epilogue or dequantisation on CUDA cores"
        works.append("sums onto its output" if parts.rules and not is_tensor else beside)
    return case.make_cause_unless_contradicted(
        "layout and epilogue",
        factor,
        parts.extras,
        flops=parts.extra,
        extra=factor - 1,
        works=tuple(dict.fromkeys(works)),
    )


def _describe_work_besides_products(kernel: KernelGroup) -> str:
    """Return what a kernel does in addition to the products, by its name."""
    name = kernel.name.lower()
    if kernel.is_main_product_kernel and _STREAM_KERNEL.search(name):
        return "the sums of its parts"
    if kernel.is_main_product_kernel and "sliced" in name:
        return "scaling and the sums of its slices"
    if kernel.is_main_product_kernel and _VECTOR_KERNEL.search(name):
        scales = kernel.counts.get("fmul")
        return "scaling and the sums of its threads" if scales else "the sums of its threads"
    if kernel.is_main_product_kernel and _ACTIVATION.search(name):
        return "activation"
    if (
        kernel.is_main_product_kernel
        and kernel.counts.get("fmul")
        and not kernel.counts.get("fadd")
    ):
        return "scaling"
    for work, pattern in _WORK_BY_NAME:
        if not kernel.is_main_product_kernel and pattern.search(name):
            return work
    by_role = _WORK_BY_ROLE.get(kernel.algorithm.role, "epilogues")
    return _WORK_BY_FAMILY.get(kernel.algorithm.family or "") or by_role


def detect_kernel_shared_by_layers(case: RowCase) -> Cause | None:
    """One kernel does the work of this layer and of neighbors that have no kernel.

    Evidence  a count that is this layer's estimate plus that of the next layers, within 2%.
    Factor    (own + theirs) / own; none for the neighbors.
    Silent    if a product lies outside of layers, the grid explains the count, or the neighbors'
              gradients did not run either.
    Fix       read the layers together.
    """
    evidence = case.evidence
    if evidence.kernels:
        served = _find_neighbors_computed_by_kernel(case, evidence)
        if not served:
            return None
        return case.make_cause_unless_contradicted(
            "shared kernel",
            (evidence.estimated_flops + sum(other.estimated_flops for other in served))
            / evidence.estimated_flops,
            evidence.product_kernels,
            Implications(served=served, is_stated=_has_joint_product_grid(evidence, served)),
            name=evidence.row.name,
            others=tuple(other.row.name for other in served),
        )
    # the layer before it that has kernels, and serves those up to the next with kernels
    batch, _, direction = evidence.row_key
    forward = case.forward_row or evidence
    rows, index = _list_rows_in_order_and_index(case, forward)
    owners = (other for other in reversed(rows[:index]) if other.kernels)
    owner = next(owners, None)
    if owner is not None and direction in BACKWARD:
        owner = case.table.get((batch, owner.row.layer, "backward"))
    cause = (
        detect_kernel_shared_by_layers(replace(case, evidence=owner))
        if owner and owner.kernels
        else None
    )
    if owner is None or cause is None or evidence.row.name not in cause.facts["others"]:
        return None
    return replace(
        cause,
        factor=None,
        facts={
            "name": evidence.row.name,
            "owner": owner.row.name,
            "estimated": evidence.estimated_flops,
        },
        variant="within another kernel",
        row=f"{evidence.row.name}{evidence.row.batch_phrase}",
    )


def _has_joint_product_grid(owner: RowEvidence, served: Sequence[RowEvidence]) -> bool:
    """Return whether the grid is that of one product with the columns of all layers."""
    shapes = [row.forward for row in (owner, *served)]
    if not all(isinstance(shape, GemmShape) for shape in shapes):
        return False
    products = [shape for shape in shapes if isinstance(shape, GemmShape)]
    joint = replace(products[0], n=sum(product.n for product in products))
    return has_grid_matching_row_shape(replace(owner, forward=joint))


def _find_neighbors_computed_by_kernel(
    case: RowCase, owner: RowEvidence
) -> tuple[RowEvidence, ...]:
    """Return the neighbors after ``owner`` whose estimates, added to its own, are its count."""
    products = sum_multiply_add_flops(owner.product_kernels)
    if not owner.estimated_flops or products <= owner.estimated_flops * (1 + SAME_WORK_ERROR_MAX):
        return ()
    grids = predict_product_flops_from_tiles(owner, owner.product_kernels)
    if grids is not None and abs(products / grids[0] - 1) <= SAME_WORK_ERROR_MAX:
        return ()
    after = _list_following_rows_without_kernels(case, owner)
    if any(
        kernel.is_main_product_kernel
        and (
            kernel.multiply_add_flops >= OUTSIDE_SHARE_MAX * owner.estimated_flops
            or kernel.flops.value is None
        )
        for kernel in case.unattributed_kernels
    ):
        return ()  # a neighbor's own kernel may be among those outside of layers
    totals = accumulate(
        (evidence.estimated_flops for evidence in after), initial=owner.estimated_flops
    )
    for number, estimated in enumerate(totals):
        if number and abs(products / estimated - 1) <= SAME_WORK_ERROR_MAX:
            return after[:number]
    return ()


def _list_following_rows_without_kernels(
    case: RowCase, owner: RowEvidence
) -> tuple[RowEvidence, ...]:
    """Return the rows of the layers that follow in the network up to the next with kernels; of
    gradients, those of the layers without forward kernels."""
    batch, layer, direction = owner.row_key
    forward = case.table.get((batch, layer, "forward"), owner)
    rows, index = _list_rows_in_order_and_index(case, forward)
    after = tuple(
        takewhile(
            lambda row: not row.kernels and row.profiled and not row.left_out, rows[index + 1 :]
        )
    )
    if direction not in BACKWARD:
        return after
    return tuple(
        row
        for served in after
        for gradient in BACKWARD
        if (row := case.table.get((batch, served.row.layer, gradient))) and not row.kernels
    )


def _list_rows_in_order_and_index(
    case: RowCase, evidence: RowEvidence
) -> tuple[Sequence[RowEvidence], int]:
    """Return the rows of the same batch size and direction in the network's order, and the index
    of the row among them."""
    rows = case.table.rows_in_network_order[evidence.row.key[0], evidence.row.direction]
    return rows, case.table.row_indexes[evidence.row_key]
