"""Casts, chains of elementwise kernels and recomputation: when they are named, with which number,
and when they are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfctl.orchestrator.ledger.causes.timeline.judge import run_verdicts
from perfctl.orchestrator.ledger.causes.timeline.kernels import elements, least_bytes, read_cast
from perfctl.orchestrator.ledger.causes.timeline.records import RunVerdict
from perfctl.records.paper import OpShape
from perfctl.records.report import Copy, Kernel, OpCall
from perfctl.records.run import Run
from tests.make import synthetic

US = 1000
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int)"
)
TO_FLOAT = (
    "void at::native::vectorized_elementwise_kernel<4, "
    "at::native::bfloat16tofloat32_copy_kernel_cuda(x)>"
)
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"


def run_of(*named: tuple[str, int], **changes: Any) -> Run:
    """Kernels (name, us) one after the other without gaps, each of 1000 blocks of 128 threads."""
    kernels, at = [], 0
    for number, (name, length) in enumerate(named):
        kernels.append(
            Kernel(
                number,
                name,
                grid_x=1000,
                grid_y=1,
                grid_z=1,
                block_x=128,
                start_ns=at * US,
                duration_ns=length * US,
                device_index=0,
                stream=7,
            )
        )
        at += length
    return synthetic.foreign_run(
        1, **({"profiler": "torch", "kernels": kernels, "ranges": []} | changes)
    )


def said(run: Run) -> dict[str, RunVerdict]:
    return {verdict.rule: verdict for verdict in run_verdicts(run)}


def cast(source: str, target: str, device_us: int, *shape: int) -> OpCall:
    types = json.dumps([target, source, "Scalar"])
    return OpCall("aten::copy_", 0, 50, device_us * US, json.dumps([shape, shape, []]), types)


def test_casts_are_told_by_their_types_with_the_bytes_that_they_move() -> None:
    calls = (cast("float", "c10::BFloat16", 20, 512, 1024), cast("float", "float", 30, 512, 1024))
    found = said(run_of(("gemm", 60), ("copy", 20), ("copy", 20), waiting_calls=calls))[
        "dtype casts"
    ]
    assert found.share == pytest.approx(20 / 100)
    moved = 512 * 1024 * (4 + 2)
    assert f"{moved / 1e6:.3g} MB" in found.sentence and "float to bfloat16" in found.sentence


def test_without_types_casts_are_told_by_the_names_of_kernels() -> None:
    found = said(run_of(("gemm", 80), (TO_FLOAT, 20)))["dtype casts"]
    assert (
        found.share == pytest.approx(0.2)
        and found.kernels == (TO_FLOAT,)
        and " B" not in found.sentence
    )


def test_copies_within_a_type_of_integers_and_a_few_casts_are_no_storm() -> None:
    same, whole = cast("float", "float", 50, 64), cast("long int", "float", 50, 64)
    assert read_cast(same) is None and read_cast(whole) is None
    assert "dtype casts" not in said(
        run_of(("gemm", 50), ("copy", 50), waiting_calls=(same, whole))
    )
    assert "dtype casts" not in said(run_of(("gemm", 97), (TO_FLOAT, 3)))
    assert read_cast(OpCall("aten::copy_", 0, 5, 5, "[[4]]", None)) is None, (
        "no types were recorded"
    )


def test_a_chain_of_elementwise_kernels_saves_a_write_and_a_read_a_pass() -> None:
    found = said(run_of(("gemm", 60), (NORM, 20), (ADD, 10), (ADD, 10)))["memory-bound chain"]
    assert found.share == pytest.approx((40 - 20) / 100), "all but the longest kernel of the chain"
    # whole blocks of 128 threads with 4 floats; the norm's size is in no name
    least = (1000 - 1) * 128 * 4 * 4
    assert "1 chain of 3" in found.sentence and f"{2 * least / 1e6:.3g} MB less" in found.sentence
    assert "(1 of known size)" in found.sentence and found.confidence == "plausible"


def test_products_between_them_other_sizes_and_short_kernels_make_no_chain() -> None:
    assert "memory-bound chain" not in said(run_of((ADD, 20), ("gemm", 40), (ADD, 20)))
    assert "memory-bound chain" not in said(run_of((ADD, 4), (ADD, 4), (ADD, 4), ("gemm", 30)))
    assert "memory-bound chain" not in said(run_of((ADD, 40), (NORM, 10), ("gemm", 30))), (
        "times four apart"
    )
    run = run_of((ADD, 20), (ADD, 20))
    first, second = run.report.kernels
    other = synthetic.foreign_run(
        1, profiler="torch", kernels=[first, second._replace(grid_x=500)], ranges=[]
    )
    assert "memory-bound chain" not in said(other), "half as many elements"
    late = second._replace(start_ns=first.start_ns + first.duration_ns + 150 * US)
    other = synthetic.foreign_run(1, profiler="torch", kernels=[first, late], ranges=[])
    assert "memory-bound chain" not in said(other), "150 us between them"
    copy = Copy("HtoD", 64, 20 * US, 1, device_index=0, stream=7)
    later = second._replace(start_ns=25 * US)
    for copies, is_chain in (((), True), ((copy,), False)):
        other = synthetic.foreign_run(
            1, profiler="torch", kernels=[first, later], ranges=[], copies=list(copies)
        )
        assert ("memory-bound chain" in said(other)) is is_chain


def test_the_optimizers_kernels_make_no_chain() -> None:
    kernels = [
        kernel._replace(direction="optimizer")
        for kernel in run_of((ADD, 20), (ADD, 20)).report.kernels
    ]
    assert not run_verdicts(synthetic.foreign_run(1, profiler="torch", kernels=kernels, ranges=[]))


def test_elements_and_bytes_of_a_grid() -> None:
    (kernel,) = run_of((ADD, 20)).report.kernels
    assert elements(kernel) == 1000 * 128 * 4 and least_bytes(kernel) == 999 * 512 * 4
    half = kernel._replace(name=ADD.replace("float", "c10::BFloat16"))
    assert least_bytes(half) == 999 * 512 * 2
    plain = kernel._replace(name="void at::native::elementwise_kernel<128, 2, F<float>>(int)")
    assert elements(plain) == 1000 * 128 * 2
    assert elements(kernel._replace(name=NORM)) is None is least_bytes(kernel._replace(name=NORM))


B, I, O = 8, 64, 128  # noqa: E741 - samples, inputs and outputs of a linear layer


def addmm(direction: str, calls: int = 1) -> OpShape:
    return OpShape(
        "fc", "Linear", "aten.addmm", direction, ((O,), (B, I), (I, O)), ((B, O),), calls=calls
    )


def mm(*inputs: tuple[int, int]) -> OpShape:
    return OpShape("fc", "Linear", "aten.mm", "backward", inputs, ((inputs[0][0], inputs[1][1]),))


GRADIENTS = (mm((B, O), (O, I)), mm((O, B), (B, I)))


def test_a_forward_operator_that_runs_again_in_backward_is_recomputation() -> None:
    run = synthetic.make_run(ops=(addmm("forward"), addmm("backward"), *GRADIENTS))
    found = said(run)["recomputed forward"]
    flops = 2 * B * I * O  # 1 multiply-add is 2 FLOPs
    assert found.share == pytest.approx(1 / 3), "one more product beside forward and two gradients"
    assert f"{flops / 1e3:.3g} kFLOP" in found.sentence and "checkpoint" in found.todo


def test_gradients_and_operators_of_other_shapes_are_no_recomputation() -> None:
    assert not run_verdicts(synthetic.make_run(ops=(addmm("forward"), *GRADIENTS)))
    square = mm((B, I), (I, O))
    same = OpShape("fc", "Linear", "aten.mm", "forward", square.inputs, square.outputs)
    assert not run_verdicts(synthetic.make_run(ops=(same, square))), "a product may be a gradient"
    other = OpShape("g", "Linear", "aten.addmm", "backward", ((I,), (B, O), (O, I)), ((B, I),))
    assert not run_verdicts(synthetic.make_run(ops=(addmm("forward"), other, *GRADIENTS)))
