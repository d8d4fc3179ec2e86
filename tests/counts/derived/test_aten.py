"""Derived counts of PyTorch's own kernels: elementwise by functor, rows by shape, optimizers
by parameters."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from perfctl.orchestrator.counts.derived.operators import by_rows
from perfctl.orchestrator.counts.derived.pointwise import (
    functor_of,
    over_parameters,
    packed,
    parameters_of,
    per_element,
    pointwise,
)
from perfctl.orchestrator.counts.derived.records import Derived, Launch, Rows
from perfctl.orchestrator.counts.derived.rules import verified
from perfctl.orchestrator.counts.derived.run import layer_work
from perfctl.orchestrator.counts.kernels.names import recognise
from perfctl.records.paper import OpShape

SILU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous "
    "namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() "
    "const::{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int, X, "
    "Y)"
)
SILU_OF_NCU = (
    "void vectorized_elementwise_kernel<4, unnamed>::silu_kernel(TensorIteratorBase &)::[lambda() "
    "(instance 1)]::operator ()() lambda() (instance 2)]::operator ()() lambda(float) (instance "
    "1)], std::array<char *, 2>>(int, T2, T3)"
)
GELU = SILU.replace(
    "silu_kernel(at::TensorIteratorBase&)",
    "GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)",
)
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_{}<float, float, float, {}, {}, false, 32>(float*, "
    "float const*, int, int, int)"
)
SUM = (
    "void at::native::reduce_kernel<{}, {}, at::native::ReduceOp<float, "
    "at::native::func_wrapper_t<float, at::native::sum_functor<float, float, "
    "float>::operator()(at::TensorIterator&)::{{lambda(float, float)#1}}>, unsigned int, float, 4, "
    "4> >(X)"
)
LAYER_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, "
    "false>(int, float, float const*)"
)
BATCH_NORM = "void at::native::batch_norm_{}_kernel<{}float, float, float, {}int>(X)"


def derived(
    name: str, grid: tuple[int, int, int], sizes: set[int], capability: str | None = "8.0"
) -> Derived | None:
    return pointwise(Launch(name, grid), recognise(name), sizes, capability)


def counts(found: Derived | None) -> tuple[float | None, ...]:
    assert found is not None
    return found.ffma, found.fmul, found.fadd


@pytest.mark.parametrize("name", [SILU, SILU_OF_NCU])
def test_every_profilers_spelling_of_a_kernel_gives_the_same_functor(name: str) -> None:
    assert functor_of(name) == "silu_kernel{#1}{float#1}"


def test_the_exact_gelu_and_the_one_by_tanh_are_told_apart() -> None:
    assert functor_of(GELU) == "gelucudakernelimpl{#1}{float#1}"
    assert (
        functor_of(GELU.replace("{lambda()#1}", "{lambda()#2}", 1))
        == "gelucudakernelimpl{#2}{float#1}"
    )


def test_silu_is_an_exponential_a_multiply_add_and_a_quotient_for_each_element() -> None:
    elements = 128 * 2048
    exponential, quotient = 4, 5  # its last multiply goes into 1 + e
    assert counts(derived(SILU, (elements // 1024, 1, 1), {elements})) == (
        (exponential + 1 + quotient) * elements,
        0,
        elements,
    )


def test_an_unknown_functor_has_no_rule() -> None:
    assert derived(SILU.replace("silu_kernel", "my_kernel"), (4, 1, 1), {4096}) is None


def test_a_functor_whose_count_depends_on_the_values_has_no_rule() -> None:
    assert per_element("elu_kernel{#1}{float#1}", "8.0") is None, (
        "only negative values are exponentiated"
    )


def test_a_count_that_is_the_middle_of_two_says_so() -> None:
    found = per_element("tanh_kernel_cuda{#2}{float#1}", "8.0")
    assert found is not None and 0 < found.spread <= 0.08


def test_the_columns_of_a_softmax_are_filled_up_to_a_power_of_two() -> None:
    rows, columns, filled, lanes = 320, 20, 32, 32
    found = by_rows(
        Launch(SOFTMAX.format("forward", 5, "false"), (40, 1, 1)), [Rows("softmax", rows, columns)]
    )
    adds = 3 * filled + 5 * lanes  # maximum taken off, inside e, sum; five shuffles
    assert counts(found) == (rows * (4 * filled + 5 * columns), rows * filled, rows * adds)


def test_the_gradient_of_log_softmax_is_an_exponential_and_a_multiply_add() -> None:
    rows, columns = 64, 10
    found = by_rows(
        Launch(SOFTMAX.format("backward", 4, "true"), (4, 1, 1)), [Rows("softmax", rows, columns)]
    )
    assert counts(found) == (
        5 * rows * columns,
        rows * columns,
        rows * (16 + 16 * 4) + rows * columns,
    )


def test_a_softmax_of_another_width_is_not_taken_for_this_one() -> None:
    launch = Launch(SOFTMAX.format("forward", 5, "false"), (40, 1, 1))
    assert by_rows(launch, [Rows("softmax", 320, 33)]) is None
    assert by_rows(launch, [Rows("softmax", 640, 20)]) is None


def test_a_sum_of_neighbours_adds_lanes_by_shuffles() -> None:
    outputs, values = 64, 1024
    # 1,024 / 4 side by side would be 256 lanes, but 16 rows share the 512 threads
    width, height = 32, 16
    found = by_rows(
        Launch(SUM.format(512, 1), (4, 1, 1), (width, height, 1)), [Rows("sum", outputs, values)]
    )
    assert counts(found) == (0, 0, outputs * (values + 3 * width + 5 * width))


def test_a_sum_with_another_block_has_no_rule() -> None:
    assert by_rows(Launch(SUM.format(128, 4), (2, 1, 1), (16, 8, 1)), [Rows("sum", 800, 8)]) is None


def test_layer_norm_takes_a_reciprocal_for_each_element_and_merges_partial_results_across_threads() -> (
    None
):
    rows, columns, threads = 512, 1024, 128
    found = by_rows(
        Launch(LAYER_NORM, (rows, 1, 1), (32, 4, 1)),
        [Rows("layer_norm", rows, columns, affine=True)],
    )
    merges = threads * 5 + 32 * 3
    # FFMA and FADD: Welford's and the reciprocal's; scale and shift
    statistics, scaled = (2 + 2, 3 + 1), (1, 1)
    ffma, fadd = (one + other for one, other in zip(statistics, scaled, strict=True))
    assert counts(found) == (
        rows * (ffma * columns + 4 * merges + 5 * threads),
        rows * (columns + 5 * merges),
        rows * (fadd * columns + 4 * merges + threads),
    )


def test_layer_norm_of_few_columns_has_no_rule() -> None:
    launch = Launch(LAYER_NORM, (512, 1, 1), (32, 4, 1))
    assert by_rows(launch, [Rows("layer_norm", 512, 64, affine=True)]) is None, (
        "lanes without values skip merges"
    )


def test_batch_norm_transforms_an_element_with_one_instruction_of_each_kind() -> None:
    channels, each = 64, 32 * 14 * 14
    name = BATCH_NORM.format("transform_input", "", "true, ")
    found = by_rows(
        Launch(name, (channels, 32, 1), (256, 1, 1)), [Rows("batch_norm", channels, each)]
    )
    assert counts(found) == (channels * each,) * 3


def test_statistics_of_batch_norm_divide_for_each_element() -> None:
    channels, each, threads = 64, 32 * 14 * 14, 512
    name = BATCH_NORM.format("collect_statistics", "at::native::InvStd, ", "")
    found = by_rows(
        Launch(name, (channels, 1, 1), (256, 2, 1)), [Rows("batch_norm", channels, each)]
    )
    assert found is not None and found.ffma == channels * (6 * each + 4 * 5 * (threads + 32))


def test_rows_come_from_the_operations_of_a_layer() -> None:
    def op(name: str, inputs: tuple[tuple[int, ...], ...], *outputs: tuple[int, ...]) -> OpShape:
        return OpShape("", "", f"aten.{name}", "forward", inputs, outputs)

    work = layer_work(
        [
            op("sum", ((4, 8),), (1, 8)),
            op("_softmax", ((2, 3, 5),), (2, 3, 5)),
            op("native_layer_norm", ((6, 4), (4,), (4,)), (6, 4), (6, 1), (6, 1)),
            op("native_batch_norm", ((2, 3, 4, 4),), (2, 3, 4, 4)),
        ]
    )
    assert work.rows == {
        Rows("sum", 8, 4),
        Rows("softmax", 6, 5),
        Rows("layer_norm", 6, 4, affine=True),
        Rows("batch_norm", 3, 32),
    }


def test_an_average_adds_each_window_and_divides_once() -> None:
    halved = {"kernel_size": [2, 2], "stride": []}
    pool = OpShape(
        "", "", "aten.avg_pool2d", "forward", ((2, 3, 8, 8),), ((2, 3, 4, 4),), attributes=halved
    )
    outputs, window = 2 * 3 * 4 * 4, 4
    launch = Launch(
        "void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame<float, float>(int, "
        "float const*, long)",
        (1, 1, 1),
    )
    assert counts(by_rows(launch, layer_work([pool]).rows)) == (5 * outputs, 0, window * outputs)


def test_windows_cut_off_at_the_edge_have_no_rule() -> None:
    padded = OpShape(
        "",
        "",
        "aten.avg_pool2d",
        "forward",
        ((1, 1, 8, 8),),
        ((1, 1, 5, 5),),
        attributes={"kernel_size": 2, "padding": 1},
    )
    beyond = OpShape(
        "",
        "",
        "aten.avg_pool2d",
        "forward",
        ((1, 1, 7, 7),),
        ((1, 1, 4, 4),),
        attributes={"kernel_size": 2},
    )
    assert layer_work([padded, beyond]).rows == frozenset()


def test_a_softmax_over_a_block_makes_each_exponential_twice() -> None:
    name = (
        "void cunn_SoftMaxForward<4, float, float, float, at::native::(anonymous namespace)::{}>(X)"
    )
    rows, columns, threads = 16, 50_257, 1024
    shapes = [Rows("softmax", rows, columns)]
    plain = by_rows(
        Launch(name.format("SoftMaxForwardEpilogue"), (rows, 1, 1), (threads, 1, 1)), shapes
    )
    assert counts(plain)[:2] == (rows * (5 + 4 + 5) * columns, rows * columns)
    logarithm = by_rows(
        Launch(name.format("LogSoftMaxForwardEpilogue"), (rows, 1, 1), (threads, 1, 1)), shapes
    )
    assert counts(logarithm)[:2] == (rows * (5 * columns + 11 * threads), rows * threads)


FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::UnaryOpFunctor<float, "
    "2, 1, 1>, at::native::Sqrt<float> >(X)"
)


def test_an_optimizers_launch_holds_the_parameters_that_its_chunks_say() -> None:
    tensors = (288, 32, 18_432, 64, 1_179_648, 128, 1_280, 10)  # the MNIST network
    chunks = 7 + 1_179_648 // 65_536
    found = over_parameters(Launch(FOREACH, (chunks, 1, 1)), tensors, "8.0")
    assert found is not None and found.family == "optimizer"
    assert f"{sum(tensors):,} elements" in found.rule
    assert over_parameters(Launch(FOREACH, (chunks - 1, 1, 1)), tensors, "8.0") is None


def test_a_tensor_that_does_not_fit_goes_on_in_the_next_launch() -> None:
    launches = list(packed((330 * 65_536, 5), 64, 320))
    assert launches == [(320, 320 * 65_536), (11, 10 * 65_536 + 5)]


def test_parameters_are_read_off_the_operations_that_use_them() -> None:
    conv = OpShape(
        "conv",
        "Conv2d",
        "aten.convolution",
        "forward",
        ((2, 3, 8, 8), (4, 3, 3, 3), (4,)),
        ((2, 4, 6, 6),),
        parameters=112,
    )
    assert parameters_of([conv]) == (108, 4)
    other = OpShape("odd", "Odd", "aten.mul", "forward", ((7,),), ((7,),), parameters=5)
    assert parameters_of([conv, other]) is None


@cache
def silicon() -> ModuleType:
    """scripts/proof/silicon/silicon_aten.py, which is no package."""
    path = Path(__file__).resolve().parents[3] / "scripts" / "proof" / "silicon" / "silicon_aten.py"
    spec = importlib.util.spec_from_file_location("perfctl_scripts_silicon_aten", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_pytorchs_kernels_of_an_a100_come_out_as_counted(shared: Path) -> None:
    found = [one for one in silicon().launches(silicon().REPORT) if "distribution" not in one.name]
    assert len(found) == 13 and all(one.derived is not None for one in found)
    wrong = [one for one in found if abs(one.error) > 0.001]
    assert [recognise(one.name).role for one in wrong] == [
        recognise(SOFTMAX.format("forward", 5, "false")).role
    ]
    (softmax,) = wrong
    quotients = 2 * 8 * 20 * 20
    assert softmax.ffma - softmax.derived.ffma == 2 * quotients, (
        "the older compiler takes 7 FFMA for a quotient"
    )
    assert (softmax.fmul, softmax.fadd) == (softmax.derived.fmul, softmax.derived.fadd)
    assert verified()["softmax"].worst == pytest.approx(abs(softmax.error), abs=1e-5)
