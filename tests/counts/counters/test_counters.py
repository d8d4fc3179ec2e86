"""FLOPs from counters: what is added, what is left out, and what is never turned into a number."""

from __future__ import annotations

from perfctl.orchestrator.counts.counters.work import KernelFlops, kernel_flops, values_by_launch
from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.records.report import Counter, Kernel
from tests.make import synthetic
from tests.make.metrics import PIPE, ZEROS, ops
from tests.make.tables import table


def test_constant_moves_on_ampere_are_no_tensor_work_and_no_half_precision() -> None:
    values = ZEROS | ops(ffma=10**9, hfma=3200) | {PIPE: 100}
    found = kernel_flops(values, "8.0", name="void gemm_v0<float>(T1 *, T1 *, T1 *, int, int, int)")
    assert (found.tensor.value, found.fp16.value) == (0, 0)
    assert found.total.value == 2 * 10**9 and not found.total.lower_bound


@table("name", [None, "my_kernel", "void axpy<__half>(T1 *, T1 *, int)", "triton_poi_fused_add_0"])
def test_half_precision_on_the_tensor_pipe_is_not_called_zero_unless_the_kernel_has_no_halves(
    name: str | None,
) -> None:
    """ptxas puts single half-precision multiply-adds for sm_80 there, as it does constants."""
    values = ZEROS | ops(ffma=1000, hfma=3200) | {PIPE: 100}
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


HALF = ZEROS | ops(ffma=524_288, fmul=16_384, hfma=20_480)


@table("pipe", [{}, {PIPE: 640}, {PIPE: 900}])
def test_on_an_unknown_chip_half_precision_that_may_be_constant_moves_is_refused(
    pipe: dict[str, float],
) -> None:
    found = kernel_flops(HALF | pipe, None)
    assert found.fp16.state == "refused" and "unknown" in (found.fp16.reason or "")
    assert found.tensor.value is None
    assert (found.total.value, found.total.state) == (2 * 524_288 + 16_384, "counted")
    assert set(found.total.missing) == {"fp16", "tensor"}


def test_without_the_chip_s_name_half_precision_may_be_work_or_constant_moves() -> None:
    """A kernel made for Ampere says that the chip is Ampere or later: an idle tensor pipe may be
    Blackwell's, which moves constants elsewhere."""

    def half(name: str, pipe: int) -> KernelFlops:
        values = ZEROS | ops(hfma=3200, ffma=7) | {PIPE: pipe}
        counters = [Counter(1, metric, value, None) for metric, value in values.items()]
        kernels = [Kernel(0, name), Kernel(1, "my_copy(float *, int)")]
        run = synthetic.make_run(device=None, profiler="ncu", kernels=kernels, counters=counters)
        return PreparedRun(run).flops[1]

    assert half("ampere_sgemm_128x64_tn", 100).total == Figure(
        14,
        "counted",
        "HFMA2 moved constants and is not included; the tensor pipe only moved constants "
        "(HFMA2 = 32 x its instructions)",
    )
    assert half("ampere_sgemm_128x64_tn", 0).fp16.state == "refused"
    assert half("another", 100).total.lower_bound
