"""FLOPs from counters: what is added, what is left out, and what is never turned into a number."""

from perfctl.orchestrator.counts.counters.work import compute_kernel_flops, group_counters_by_launch
from perfctl.records.report import Counter
from tests.make.metrics import PIPE, ZEROS, ops
from tests.make.tables import table


@table("name", [None, "my_kernel", "void axpy<__half>(T1 *, T1 *, int)", "triton_poi_fused_add_0"])
def test_half_precision_on_the_tensor_pipe_is_not_called_zero_unless_the_kernel_has_no_halves(name):
    """ptxas puts single half-precision multiply-adds for sm_80 there, as it does constants."""
    values = ZEROS | ops(ffma=1000, hfma=3200) | {PIPE: 100}
    found = compute_kernel_flops(values, "8.0", kernel_name=name)
    assert (found.fp16.value, found.fp16.state) == (None, "not_available")
    assert f"0 to {2 * 3200:,} FLOPs" in (found.fp16.reason or "")
    assert (found.total.value, found.total.missing, found.tensor.value) == (2000, ("fp16",), 0)


def test_a_metric_repeated_by_sections_is_read_once():
    counters = [
        Counter(0, "a.sum", None, None, "x"),
        Counter(0, "a.sum", 4, None, "y"),
        Counter(0, "a.sum", 5, None, "z"),
    ]
    assert group_counters_by_launch(counters) == {0: {"a.sum": 4}}


HALF = ZEROS | ops(ffma=524_288, fmul=16_384, hfma=20_480)


@table("pipe", [{}, {PIPE: 640}, {PIPE: 900}])
def test_on_an_unknown_chip_half_precision_that_may_be_constant_moves_is_refused(pipe):
    found = compute_kernel_flops(HALF | pipe, None)
    assert found.fp16.state == "refused" and "unknown" in (found.fp16.reason or "")
    assert found.tensor.value is None
    assert (found.total.value, found.total.state) == (2 * 524_288 + 16_384, "counted")
    assert set(found.total.missing) == {"fp16", "tensor"}
