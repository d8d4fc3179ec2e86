"""FLOPs from counters: what is added, what is left out, and what is never turned into a number."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.counts.counters.work import kernel_flops, values_by_launch
from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.records.report import Counter, Kernel


def ops(prefix: str = "smsp__", **values: float | None) -> dict[str, float | None]:
    return {
        f"{prefix}sass_thread_inst_executed_op_{op}_pred_on.sum": value
        for op, value in values.items()
    }


ZEROS = dict.fromkeys(("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma"), 0)
PIPE = "sm__inst_executed_pipe_tensor.sum"


def test_a_multiply_add_counts_twice_and_nothing_is_multiplied_by_a_warp() -> None:
    macs = 64 * 64 * 24 * 24 * 288
    found = kernel_flops(ops(**ZEROS | {"fadd": 5, "fmul": 7, "ffma": macs}) | {PIPE: 0}, "7.0")
    assert found.fp32.value == 5 + 7 + 2 * macs
    assert found.total == Figure(5 + 7 + 2 * macs, "counted")


def test_tensor_operations_are_taken_as_they_are_and_sparsity_parts_are_not_added() -> None:
    name = "sm__ops_path_tensor_src_bf16_dst_fp32"
    values = {
        f"{name}.sum": 800,
        f"{name}_sparsity_on.sum": 300,
        f"{name}_sparsity_off.sum": 500,
        "sm__ops_path_tensor_src_tf32_dst_fp32.sum": 8,
        "sm__ops_path_tensor_src_fp16.sum": 0,
    }
    assert kernel_flops(values, "9.0").tensor == Figure(808, "counted")


def test_volta_tensor_instructions_are_an_estimate() -> None:
    tensor = kernel_flops({PIPE: 33_554_432_000}, "7.0").tensor
    assert (tensor.value, tensor.state) == (2 * 20480**3, "estimated")


@pytest.mark.parametrize("capability", ["7.5", "8.6", "9.0", None])
def test_an_instruction_count_without_its_shape_gives_no_flops(capability: str | None) -> None:
    tensor = kernel_flops({PIPE: 1000}, capability).tensor
    assert tensor.value is None and tensor.state == "not_available"


@pytest.mark.parametrize("slack", [1.0, 1.02])
def test_constant_moves_on_ampere_are_no_tensor_work_and_no_half_precision(slack: float) -> None:
    values = ops(**ZEROS | {"ffma": 10**9, "hfma": 3_355_443_200}) | {PIPE: 104_857_600 * slack}
    found = kernel_flops(values, "8.0", name="void gemm_v0<float>(T1 *, T1 *, T1 *, int, int, int)")
    assert (found.tensor.value, found.fp16.value) == (0, 0)
    assert found.total.value == 2 * 10**9 and not found.total.lower_bound


@pytest.mark.parametrize(
    "name", [None, "my_kernel", "void axpy<__half>(T1 *, T1 *, int)", "triton_poi_fused_add_0"]
)
def test_half_precision_on_the_tensor_pipe_is_not_called_zero_unless_the_kernel_has_no_halves(
    name: str | None,
) -> None:
    """ptxas puts single half-precision multiply-adds for sm_80 there, as it does constants."""
    values = ops(**ZEROS | {"ffma": 1000, "hfma": 3200}) | {PIPE: 100}
    found = kernel_flops(values, "8.0", name=name)
    assert (found.fp16.value, found.fp16.state) == (None, "not_available")
    assert f"0 to {2 * 3200:,} FLOPs" in (found.fp16.reason or "")
    assert (found.total.value, found.total.missing, found.tensor.value) == (2000, ("fp16",), 0)


def test_a_metric_repeated_by_sections_is_read_once() -> None:
    counters = [
        Counter(0, "a.sum", None, None, "x"),
        Counter(0, "a.sum", 4, None, "y"),
        Counter(0, "a.sum", 5, None, "z"),
    ]
    assert values_by_launch(counters) == {0: {"a.sum": 4}}


def test_flops_of_a_run_use_its_own_compute_capability(synthetic: object) -> None:
    run = synthetic.make_run(
        device=synthetic.V100, counters=synthetic.fp_counters(3, 0, 0, 5, pipe=2)
    )  # type: ignore[attr-defined]
    assert PreparedRun(run).flops[3].total.value == 2 * 5 + 512 * 2


HALF = ops(**ZEROS | {"ffma": 524_288, "fmul": 16_384, "hfma": 20_480})


@pytest.mark.parametrize("pipe", [{}, {PIPE: 640}, {PIPE: 900}])
def test_on_an_unknown_chip_half_precision_that_may_be_constant_moves_is_refused(
    pipe: dict[str, float],
) -> None:
    found = kernel_flops(HALF | pipe, None)
    assert found.fp16.state == "refused" and "unknown" in (found.fp16.reason or "")
    assert found.tensor.value is None
    assert (found.total.value, found.total.state) == (2 * 524_288 + 16_384, "counted")
    assert set(found.total.missing) == {"fp16", "tensor"}


def test_half_precision_beside_an_idle_tensor_pipe_is_work_on_any_chip_that_moves_constants_there() -> (
    None
):
    assert kernel_flops(HALF | {PIPE: 0}, "8.0").fp16.value == 2 * 20_480


@pytest.mark.parametrize(
    ("capability", "state"), [("7.5", "estimated"), ("9.0", "counted"), ("10.0", "refused")]
)
def test_constants_are_moved_by_half_precision_from_ampere_on(capability: str, state: str) -> None:
    found = kernel_flops(HALF | {PIPE: 640}, capability, name="void scale(float *, int)").fp16
    assert (
        found.state == state
        and found.value == {"estimated": 2 * 20_480, "counted": 0, "refused": None}[state]
    )


def test_a_chip_is_ampere_or_later_where_a_kernel_was_made_for_it(synthetic: object) -> None:
    names = ["ampere_sgemm_128x64_tn", "my_copy(float *, int)"]
    kernels = [Kernel(launch, name) for launch, name in enumerate(names)]
    counters = [
        Counter(launch, name, value, None)
        for launch in (0, 1)
        for name, value in (ops(**ZEROS | {"hfma": 3200, "ffma": 7}) | {PIPE: 100}).items()
    ]
    run = synthetic.make_run(device=None, profiler="ncu", kernels=kernels, counters=counters)  # type: ignore[attr-defined]
    assert [found.total for found in PreparedRun(run).flops.values()] == [
        Figure(14, "counted", reason)
        for reason in [
            "HFMA2 moved constants and is not included; the tensor pipe only moved constants "
            "(HFMA2 = 32 x its instructions)"
        ]
        * 2
    ]
    idle = [counter._replace(value=0) if counter.name == PIPE else counter for counter in counters]
    newer = synthetic.make_run(device=None, profiler="ncu", kernels=kernels, counters=idle)  # type: ignore[attr-defined]
    assert {found.fp16.state for found in PreparedRun(newer).flops.values()} == {
        "refused"
    }  # Blackwell moves them elsewhere
    unknown = synthetic.make_run(
        device=None, profiler="ncu", kernels=kernels[1:], counters=counters[len(counters) // 2 :]
    )  # type: ignore[attr-defined]
    assert PreparedRun(unknown).flops[1].total.lower_bound
