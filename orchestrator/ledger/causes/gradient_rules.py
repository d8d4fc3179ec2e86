"""Rules about the gradients of a layer: one that is missing or not needed, trials, and forward that
runs again among them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import exp, log

from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape, round_up
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_name
from perfctl.orchestrator.estimate.flops.engine import BACKWARD
from perfctl.orchestrator.ledger.causes.breakdown import LEAST_MULTIPLIES
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, Kernels, count_launches
from perfctl.orchestrator.ledger.causes.matching import CLOSE, EXACT
from perfctl.orchestrator.ledger.causes.rule import (
    Cause,
    ExpectedNumber,
    Implications,
    RowCase,
)
from perfctl.orchestrator.statistics import group_by

GRADIENTS = ("grad_input", "grad_weight")
ONE_PRODUCT_FAMILIES = {"conv", "winograd", "gemm", "fft", "depthwise"}
"""Families whose kernels compute one gradient each."""


def _get_estimated_flops_by_gradient(case: RowCase) -> Mapping[str, float]:
    """Return gradient -> estimated FLOPs, of a row of backward."""
    estimates: dict[str, float] = defaultdict(float)
    for call in case.evidence.row.calls:
        if call.direction in GRADIENTS and call.flops:
            estimates[call.direction] += call.flops
    scale = case.evidence.estimated_flops / sum(estimates.values()) if estimates else 1.0
    return {direction: flops * scale for direction, flops in estimates.items()}


def _select_single_gradient_kernels(case: RowCase) -> Kernels:
    """Return the products of a backward row if each computes one gradient; () if they may be parts
    of something else."""
    evidence = case.evidence
    if case.executed_flops is None or evidence.row.direction not in BACKWARD or evidence.calls != 1:
        return ()
    families = {kernel.algorithm.family for kernel in case.breakdown.products}
    if case.breakdown.repeated or not families <= ONE_PRODUCT_FAMILIES:
        return ()
    return case.breakdown.products


def _computes_single_gradient(kernel: KernelGroup, gradient_flops: float) -> bool:
    """Return whether each launch of the kernel executes about the FLOPs of one gradient."""
    return (
        kernel.multiply_add_flops > 0
        and abs(log(kernel.multiply_add_flops / kernel.launches / gradient_flops)) < CLOSE
    )


def detect_missing_gradient(case: RowCase) -> Cause | None:
    """One product ran although the layer has two gradients.

    Evidence  one launch with the multiply-adds of one gradient; its name says which (plausible if
              it does not).
    Factor    that gradient / both.
    Silent    for Winograd, if the report may lack launches, and if forward deviates by the same
              factor.
    Fix       look among the kernels outside of layers.
    """
    estimates, products = (
        _get_estimated_flops_by_gradient(case),
        _select_single_gradient_kernels(case),
    )
    if len(estimates) != 2 or len(products) != 1:
        return None
    (kernel,) = products
    named_pass = kernel.algorithm.direction if kernel.algorithm.direction in estimates else None
    present = named_pass or next(iter(estimates))
    if kernel.algorithm.family == "winograd":
        return None
    (missing,) = set(estimates) - {present}
    return case.make_cause_unless_contradicted(
        "gradient missing",
        estimates[present] / sum(estimates.values()),
        products,
        Implications(
            flops=ExpectedNumber(kernel.multiply_add_flops, estimates[present], CLOSE),
            launches=ExpectedNumber(kernel.launches, 1),
            is_complete=True,
            is_stated=bool(named_pass),
            gradients_only=kernel.multiply_add_flops / estimates[present],
        ),
        gradient=missing if named_pass else None,
        outside=sum(
            other.is_main_product_kernel and _computes_single_gradient(other, estimates[missing])
            for other in case.unattributed_kernels
        ),
    )


def detect_needless_gradient(case: RowCase) -> Cause | None:
    """The gradient of the input was computed although nothing needs it.

    Evidence  a kernel of the input's gradient, by its name, next to that of the weight.
    Factor    2.
    Silent    if forward deviates by the same factor: another layer's kernels, or another batch;
              and if another layer lacks such a gradient, whose kernel it is.
    Fix       check ``requires_grad`` of the network's input.
    """
    estimates, products = (
        _get_estimated_flops_by_gradient(case),
        _select_single_gradient_kernels(case),
    )
    named_kernels = [kernel for kernel in products if kernel.algorithm.direction == "grad_input"]
    if (
        set(estimates) != {"grad_weight"}
        or not named_kernels
        or len(named_kernels) == len(products)
    ):
        return None
    estimated = estimates["grad_weight"]
    batch, layer, direction = case.evidence.row_key
    if any(
        row_key[0] == batch
        and row_key[1] != layer
        and row_key[2] == direction
        and other.row.executed.value
        and other.row.executed.value < other.estimated_flops / exp(CLOSE)
        and abs(
            log(
                (other.row.executed.value + named_kernels[0].multiply_add_flops)
                / other.estimated_flops
            )
        )
        < CLOSE
        for row_key, other in case.table.items()
        if other.estimated_flops
    ):
        return None  # the kernel is that of another layer, which lacks it
    implies = Implications(
        flops=ExpectedNumber(named_kernels[0].multiply_add_flops, estimated, CLOSE),
        launches=ExpectedNumber(count_launches(named_kernels), 1),
        gradients_only=named_kernels[0].multiply_add_flops / estimated,
    )
    return case.make_cause_unless_contradicted(
        "needless gradient", 2.0, named_kernels, implies, flops=estimated
    )


def detect_algorithm_trials_in_gradients(case: RowCase) -> Cause | None:
    """Several kernels each compute the same gradient: cuDNN was trying them out.

    Evidence  kernels of different names with the multiply-adds of one gradient, which their names
              state.
    Factor    the sum of what ran / estimate.
    Silent    if cudnn.benchmark was off, or one kernel was launched twice.
    Fix       warm up outside of the profiled steps, or turn it off.
    """
    estimates, products = (
        _get_estimated_flops_by_gradient(case),
        _select_single_gradient_kernels(case),
    )
    by_direction = group_by(products, lambda kernel: kernel.algorithm.direction or "")
    if not estimates or set(by_direction) != set(estimates):
        return None
    runs = {direction: count_launches(kernels) for direction, kernels in by_direction.items()}
    repeated = [direction for direction, count in runs.items() if count > 1]
    if not repeated or any(len(by_direction[direction]) == 1 for direction in repeated):
        return None
    for direction, kernels in by_direction.items():
        if not all(_computes_single_gradient(kernel, estimates[direction]) for kernel in kernels):
            return None
    executed = sum(estimates[direction] * count for direction, count in runs.items())
    return case.make_cause_unless_contradicted(
        "several algorithms",
        executed / sum(estimates.values()),
        products,
        Implications(trials=True),
        "of gradients",
        inputs=runs["grad_input"] if "grad_input" in repeated else None,
        weights=runs["grad_weight"] if "grad_weight" in repeated else None,
        both=len(repeated) == 2,
    )


def detect_strided_conv_gradient_zeros(case: RowCase) -> Cause | None:
    """The input gradient of a strided convolution runs over every input: most factors are zeros.

    Evidence  the kernel's name, and its count, which is that of a product over every input, within
              2%.
    Factor    (all inputs + the other gradient) / both gradients.
    Silent    if all groups as one product have the same count, forward deviates alike, or the
              kernel's tile would execute more.
    Fix       none; the estimate leaves the inserted zeros out.
    """
    estimates, full = _get_estimated_flops_by_gradient(case), case.evidence.upsampled
    own_products = [
        kernel
        for kernel in _select_single_gradient_kernels(case)
        if kernel.algorithm.direction == "grad_input"
    ]
    if full is None or "grad_input" not in estimates or len(own_products) != 1:
        return None
    estimated = estimates["grad_input"]
    if full <= estimated:
        return None
    forward = case.evidence.forward
    groups = forward.groups if isinstance(forward, ConvShape) else 1
    if groups > 1 and abs(log(full / estimated / groups)) < EXACT:
        return None
    both = sum(estimates.values())
    product = None
    if isinstance(forward, ConvShape) and groups == 1:
        depth = forward.out_channels * forward.kernel_h * forward.kernel_w
        positions = int(full) // (2 * forward.in_channels * depth)
        product = GemmShape(positions, forward.in_channels, depth)
    padded = _compute_padded_input_gradient_flops(own_products[0], forward, estimated)
    return case.make_cause_unless_contradicted(
        "zeros inserted",
        (both - estimated + full) / both,
        own_products,
        Implications(
            flops=ExpectedNumber(own_products[0].multiply_add_flops, full, EXACT),
            launches=ExpectedNumber(own_products[0].launches, 1),
            gradients_only=full / estimated,
            product=product,
        ),
        flops=full,
        estimated=estimated,
    ) or (
        None
        if padded == estimated
        else case.make_cause_unless_contradicted(
            "tile padding",
            (both - estimated + padded) / both,
            own_products,
            Implications(
                flops=ExpectedNumber(own_products[0].multiply_add_flops, padded, EXACT),
                is_stated=False,
                gradients_only=padded / estimated,
            ),
            tiles=(f"its kernel is {shorten_kernel_name(own_products[0].name)}",),
            in_all=True,
        )
    )


def _compute_padded_input_gradient_flops(
    kernel: KernelGroup, forward_shape: object, estimated: float
) -> float:
    """Return the FLOPs of the gradient of an input whose channels fill one tile; ``estimated`` if
    no name states it."""
    tile = kernel.algorithm.tile
    if not isinstance(forward_shape, ConvShape) or forward_shape.groups > 1 or not tile:
        return estimated
    return estimated * round_up(forward_shape.in_channels, tile[1]) / forward_shape.in_channels


def detect_recomputed_forward_other_kernel(case: RowCase) -> Cause | None:
    """Forward ran again in backward, by another kernel than the first time.

    Evidence  a forward kernel, by its name, next to the named kernels of all gradients.
    Factor    1 + its FLOPs / gradients.
    Silent    if cudnn.benchmark was on, because a trial looks alike.
    Fix       none; that is activation checkpointing.
    """
    forward, estimates, products = (
        case.forward_row,
        _get_estimated_flops_by_gradient(case),
        _select_single_gradient_kernels(case),
    )
    other_products = [kernel for kernel in products if kernel.algorithm.direction not in estimates]
    named_passes = {kernel.algorithm.direction for kernel in products} & set(estimates)
    if (
        forward is None
        or not forward.estimated_flops
        or len(other_products) != 1
        or "grad_input" not in estimates
    ):
        return None
    (kernel,) = other_products
    if named_passes != set(estimates) or count_launches(products) != len(estimates) + 1:
        return None
    if kernel.algorithm.direction != "forward":
        return None
    if kernel.multiply_add_flops / forward.estimated_flops <= LEAST_MULTIPLIES:
        return None
    is_direct = kernel.algorithm.family != "winograd"
    return case.make_cause_unless_contradicted(
        "recomputation",
        1 + kernel.executed_flops / case.evidence.estimated_flops,
        other_products,
        Implications(
            trials=False,
            flops=ExpectedNumber(kernel.multiply_add_flops, forward.estimated_flops, CLOSE)
            if is_direct
            else None,
        ),
        "by another kernel",
        flops=kernel.executed_flops,
        extra=kernel.executed_flops / case.evidence.estimated_flops,
        kernel=shorten_kernel_name(kernel.name),
        # whether cuDNN tried algorithms
        recorded=case.evidence.environment.get("cudnn_benchmark") == "off",
    )


def detect_forward_recomputation(case: RowCase) -> Cause | None:
    """Forward's kernels run once more in backward (activation checkpointing), or as a direction of
    its own.

    Evidence  forward's kernel names and grids in backward, next to as many others as the gradients
              need, each with at least a quarter of a gradient's multiply-adds.
    Factor    1 + forward's FLOPs / gradients, 1.5 with two gradients; none if a kernel was not
              counted.
    Silent    if cudnn.benchmark was on, because a trial looks alike, if more ran than forward
              and the gradients, or if all others compute the gradient of the weight, by name.
    Fix       none; it saves memory.
    """
    if case.executed_flops is None:
        return None
    evidence, parts, row = case.evidence, case.breakdown, case.evidence.row
    if row.direction == "recompute" and case.executed_flops:
        return case.make_cause_unless_contradicted(
            "recomputation",
            None,
            evidence.product_kernels,
            variant="as a direction",
            flops=case.executed_flops,
            layer=row.layer,
            at=row.batch_phrase,
        )
    if not parts.repeated:
        return None
    factor = parts.compute_flop_factor_of_part("repeated")
    if parts.called and parts.seen:
        # further launches of all products, of which grids may show only some
        factor = 1 + parts.repeated / parts.seen
    forward = case.forward_row
    has_no_shape = forward is not None and forward.forward is None and parts.seen > 0
    unclear = has_no_shape and not parts.called and log(parts.seen / parts.estimated) > EXACT
    if row.executed.lower_bound or unclear:
        return case.make_cause_unless_contradicted(
            "recomputation",
            None,
            parts.repeating,
            Implications(trials=False, is_stated=False),
            "without a number",
            unclear=unclear,
        )
    gradients = {call.direction for call in row.calls if call.flops}
    repeated_keys = {kernel.name_and_grid for kernel in parts.repeating}
    other_passes = {
        kernel.algorithm.direction
        for kernel in evidence.product_kernels
        if kernel.name_and_grid not in repeated_keys
    }
    if "grad_input" in gradients and other_passes == {"grad_weight"}:
        return None  # forward's kernel computes the gradient of the input
    # otherwise forward's kernel may compute the gradient of the input
    names_input = any(
        kernel.algorithm.direction == "grad_input" for kernel in evidence.product_kernels
    )
    may_be_gradient = evidence.forward is not None and "grad_input" not in gradients
    return case.make_cause_unless_contradicted(
        "recomputation",
        factor,
        parts.repeating,
        Implications(trials=False, is_stated=not may_be_gradient and names_input),
        flops=parts.repeated,
        may_be_gradient=may_be_gradient,
    )
