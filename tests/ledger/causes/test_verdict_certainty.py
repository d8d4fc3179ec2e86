"""How sure a cause is: what else has the same count, and is then plausible or no cause."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.gradient_rules import needless_gradient
from perfctl.orchestrator.ledger.causes.rule import RuleInput
from perfctl.orchestrator.ledger.causes.tensor_rules import sparsity, tensor_cores
from perfctl.orchestrator.ledger.causes.window_rules import find_window
from tests.make.rows import by_place, call, case, work

TF32 = Algorithm("gemm", "gemm", tensor_core=True, math="tf32")
DGRAD = Algorithm("conv", "implicit gemm", direction="grad_input")
WGRAD = Algorithm("conv", "implicit gemm", direction="grad_weight")


@pytest.mark.parametrize(
    ("executed", "derived", "confidence"),
    [
        (64_000.0, True, "predicted and matched"),
        (3_600.0, True, "plausible"),
        (64_000.0, False, "observed"),
    ],
)
def test_a_derived_count_far_from_the_estimate_does_not_match_what_tf32_predicts(
    executed: float, derived: bool, confidence: str
) -> None:
    kernel = work("s1688gemm", TF32, tensor=executed, flops=executed, ffma=0)
    row = case(32, kernel, counted=executed, derived=derived)
    cause = tensor_cores(RuleInput(row, by_place(row)))
    assert cause is not None and cause.confidence == confidence


def test_a_kernel_of_sparse_blocks_is_not_sparse_two_of_four() -> None:
    def named(name: str) -> bool:
        row = case(32, work(name, TF32, tensor=32_000, flops=32_000, ffma=0), counted=32_000)
        return sparsity(RuleInput(row, by_place(row))) is not None

    assert named("cutlass_80_tensorop_s16832spgemm_f16") and named("sparse_gemm")
    assert not named("block_sparse_matmul")


def test_a_gradient_that_another_layer_lacks_is_not_needless_where_it_is() -> None:
    def backward(layer: str, *works: object, lacks: bool, calls: int) -> object:
        directions = ("grad_weight", "grad_input")[:calls]
        each = tuple(call(32, direction, layer=layer, kind="Conv2d") for direction in directions)
        executed = 128_000.0 if not lacks else 64_000.0
        return case(
            32,
            *works,
            direction="backward",
            layer=layer,
            kind="Conv2d",
            calls=each,
            counted=executed,
        )

    wgrad, dgrad = work("wgrad", WGRAD, ffma=32_000), work("dgrad", DGRAD, ffma=32_000)
    first = backward("c1", wgrad, dgrad, lacks=False, calls=1)
    whole = backward("c2", wgrad, dgrad, lacks=False, calls=2)
    half = backward("c2", wgrad, lacks=True, calls=2)
    assert needless_gradient(RuleInput(first, by_place(first, whole))) is not None
    assert needless_gradient(RuleInput(first, by_place(first, half))) is None


def test_more_ranks_with_as_many_samples_each_are_no_wrong_window() -> None:
    def table(*worlds: int) -> object:
        return by_place(
            *(
                case(
                    batch,
                    work("k", grid=(64, 1, 1), ffma=32_000),
                    counted=64_000.0,
                    environment={"world_size": str(world)} if world > 1 else {},
                )
                for batch, world in zip((32, 64, 128), worlds, strict=True)
            )
        )

    assert find_window(table(1, 1, 1), {}) is not None
    assert find_window(table(1, 2, 4), {}) is None
