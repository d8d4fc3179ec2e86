"""Derived counts of PyTorch's own kernels: elementwise by functor, rows by shape, optimizers
by parameters."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.derived.operators import derive_row_kernel
from perfctl.orchestrator.counts.derived.pointwise import (
    derive_foreach_kernel,
    derive_pointwise_kernel,
    extract_functor,
    find_instructions_per_element,
    list_parameter_sizes,
    pack_chunks_into_launches,
)
from perfctl.orchestrator.counts.derived.records import Launch, RowWork
from perfctl.orchestrator.counts.derived.rules import read_rule_verifications
from perfctl.orchestrator.counts.derived.run import collect_layer_work
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from tests.make.scripts import load
from tests.make.shapes import op
from tests.make.tables import table

SPACE = "void at::native::(anonymous namespace)::"
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
FORWARD = SOFTMAX.format("forward", 5, "false")
BLOCK_SOFTMAX = f"void cunn_SoftMaxForward<4, float, float, float, {SPACE[5:]}{{}}>(X)"
SUM = (
    "void at::native::reduce_kernel<{}, {}, at::native::ReduceOp<float, "
    "at::native::func_wrapper_t<float, at::native::sum_functor<float, float, "
    "float>::operator()(at::TensorIterator&)::{{lambda(float, float)#1}}>, unsigned int, float, 4, "
    "4> >(X)"
)
LAYER_NORM = f"{SPACE}vectorized_layer_norm_kernel<float, float, false>(int, float, float const*)"
BATCH_NORM = "void at::native::batch_norm_{}_kernel<{}float, float, float, {}int>(X)"
STATISTICS = BATCH_NORM.format("collect_statistics", "at::native::InvStd, ", "")
MERGES = 128 * 5 + 32 * 3
"""Of the partial results of 128 threads."""
IMAGES = 32 * 14 * 14


def counts(found):
    """FFMA, FMUL and FADD."""
    return found and (found.ffma, found.fmul, found.fadd)


def derived(name, elements):
    launch = Launch(name, (elements // 1024, 1, 1))
    return derive_pointwise_kernel(launch, recognise_kernel(name), {elements}, "8.0")


def test_every_profilers_spelling_of_a_kernel_gives_the_functor_with_its_lambdas():
    assert {extract_functor(name) for name in (SILU, SILU_OF_NCU)} == {"silu_kernel{#1}{float#1}"}
    exact, by_tanh = (
        extract_functor(GELU.replace("{lambda()#1}", number, 1))
        for number in ("{lambda()#1}", "{lambda()#2}")
    )
    assert exact == "gelucudakernelimpl{#1}{float#1}"
    assert by_tanh == "gelucudakernelimpl{#2}{float#1}"


def test_silu_is_an_exponential_a_multiply_add_and_a_quotient_for_each_element():
    exponential, quotient = 4, 5  # its last multiply goes into 1 + e
    elements = 128 * 2048
    each = exponential + 1 + quotient
    assert counts(derived(SILU, elements)) == (each * elements, 0, elements)


def test_a_functor_that_is_unknown_or_whose_count_depends_on_the_values_has_no_rule():
    assert derived(SILU.replace("silu_kernel", "my_kernel"), 4096) is None
    assert find_instructions_per_element("elu_kernel{#1}{float#1}", "8.0") is None, (
        "only negative values are exponentiated"
    )


def test_a_count_that_is_the_middle_of_two_says_so():
    found = find_instructions_per_element("tanh_kernel_cuda{#2}{float#1}", "8.0")
    assert found is not None and 0 < found.spread <= 0.08


@table(
    "launch rows expected",
    {
        # filled up to 32 columns: maximum taken off, inside e, sum; five shuffles of 32 lanes
        "softmax": (
            Launch(FORWARD, (40, 1, 1)),
            RowWork("softmax", 320, 20),
            (320 * (4 * 32 + 5 * 20), 320 * 32, 320 * (3 * 32 + 5 * 32)),
        ),
        "softmax of more columns": (
            Launch(FORWARD, (40, 1, 1)),
            RowWork("softmax", 320, 33),
            None,
        ),
        "softmax of more rows": (Launch(FORWARD, (40, 1, 1)), RowWork("softmax", 640, 20), None),
        "the gradient of log softmax": (
            Launch(SOFTMAX.format("backward", 4, "true"), (4, 1, 1)),
            RowWork("softmax", 64, 10),
            (5 * 64 * 10, 64 * 10, 64 * (16 + 16 * 4) + 64 * 10),
        ),
        # 1,024 / 4 side by side would be 256 lanes, but 16 rows share the 512 threads
        "a sum of neighbours: shuffles of lanes": (
            Launch(SUM.format(512, 1), (4, 1, 1), (32, 16, 1)),
            RowWork("sum", 64, 1024),
            (0, 0, 64 * (1024 + 3 * 32 + 5 * 32)),
        ),
        "a sum with another block": (
            Launch(SUM.format(128, 4), (2, 1, 1), (16, 8, 1)),
            RowWork("sum", 800, 8),
            None,
        ),
        # Welford's and the reciprocal's, then scale and shift
        "layer norm: a reciprocal for each element, merges across threads": (
            Launch(LAYER_NORM, (512, 1, 1), (32, 4, 1)),
            RowWork("layer_norm", 512, 1024, affine=True),
            (
                512 * ((2 + 2 + 1) * 1024 + 4 * MERGES + 5 * 128),
                512 * (1024 + 5 * MERGES),
                512 * ((3 + 1 + 1) * 1024 + 4 * MERGES + 128),
            ),
        ),
        # lanes without values skip merges
        "layer norm of few columns": (
            Launch(LAYER_NORM, (512, 1, 1), (32, 4, 1)),
            RowWork("layer_norm", 512, 64, affine=True),
            None,
        ),
        "batch norm: one instruction of each kind": (
            Launch(BATCH_NORM.format("transform_input", "", "true, "), (64, 32, 1), (256, 1, 1)),
            RowWork("batch_norm", 64, IMAGES),
            (64 * IMAGES,) * 3,
        ),
    },
)
def test_a_kernel_over_rows_counts_by_their_shape_or_has_no_rule(launch, rows, expected):
    assert counts(derive_row_kernel(launch, [rows])) == expected


def test_statistics_of_batch_norm_divide_for_each_element():
    found = derive_row_kernel(
        Launch(STATISTICS, (64, 1, 1), (256, 2, 1)), [RowWork("batch_norm", 64, IMAGES)]
    )
    assert found is not None and found.ffma == 64 * (6 * IMAGES + 4 * 5 * (512 + 32))


@table(
    "epilogue ffma fmul",
    [
        ("SoftMaxForwardEpilogue", (5 + 4 + 5) * 50_257, 50_257),
        ("LogSoftMaxForwardEpilogue", 5 * 50_257 + 11 * 1024, 1024),
    ],
)
def test_a_softmax_over_a_block_makes_each_exponential_twice(epilogue, ffma, fmul):
    launch = Launch(BLOCK_SOFTMAX.format(epilogue), (16, 1, 1), (1024, 1, 1))
    found = derive_row_kernel(launch, [RowWork("softmax", 16, 50_257)])
    assert found is not None and (found.ffma, found.fmul) == (16 * ffma, 16 * fmul)


def pool(*sides, **attributes):
    shapes = [((2, 3, side, side),) for side in sides]
    return collect_layer_work([op("aten.avg_pool2d", *shapes, **attributes)]).rows


def test_rows_come_from_the_operations_of_a_layer():
    work = collect_layer_work(
        [
            op("aten.sum", ((4, 8),), ((1, 8),)),
            op("aten._softmax", ((2, 3, 5),), ((2, 3, 5),)),
            op("aten.native_layer_norm", ((6, 4), (4,), (4,)), ((6, 4), (6, 1), (6, 1))),
            op("aten.native_batch_norm", ((2, 3, 4, 4),), ((2, 3, 4, 4),)),
        ]
    )
    assert work.rows == {
        RowWork("sum", 8, 4),
        RowWork("softmax", 6, 5),
        RowWork("layer_norm", 6, 4, affine=True),
        RowWork("batch_norm", 3, 32),
    }


def test_an_average_adds_each_window_and_divides_once():
    name = f"{SPACE}avg_pool2d_out_cuda_frame<float, float>(int, float const*, long)"
    found = derive_row_kernel(Launch(name, (1, 1, 1)), pool(8, 4, kernel_size=[2, 2], stride=[]))
    outputs, window = 2 * 3 * 4 * 4, 4
    assert counts(found) == (5 * outputs, 0, window * outputs)


def test_windows_cut_off_at_the_edge_have_no_rule():
    assert pool(8, 5, kernel_size=2, padding=1) == pool(7, 4, kernel_size=2) == frozenset()


FOREACH = (
    f"{SPACE}multi_tensor_apply_kernel<{SPACE[5:]}TensorListMetadata<2>, "
    f"{SPACE[5:]}UnaryOpFunctor<float, 2, 1, 1>, at::native::Sqrt<float> >(X)"
)


def test_an_optimizers_launch_holds_the_parameters_that_its_chunks_say():
    tensors = (288, 32, 18_432, 64, 1_179_648, 128, 1_280, 10)  # the MNIST network
    chunks = 7 + 1_179_648 // 65_536
    found = derive_foreach_kernel(Launch(FOREACH, (chunks, 1, 1)), tensors, "8.0")
    assert found is not None and found.family == "optimizer"
    assert f"{sum(tensors):,} elements" in found.rule
    assert derive_foreach_kernel(Launch(FOREACH, (chunks - 1, 1, 1)), tensors, "8.0") is None


def test_a_tensor_that_does_not_fit_goes_on_in_the_next_launch():
    launches = list(pack_chunks_into_launches((330 * 65_536, 5), 64, 320))
    assert launches == [(320, 320 * 65_536), (11, 10 * 65_536 + 5)]


def test_parameters_are_read_off_the_operations_that_use_them():
    shapes = ((2, 3, 8, 8), (4, 3, 3, 3), (4,))
    conv = replace(op("aten.convolution", shapes, ((2, 4, 6, 6),)), parameters=112)
    assert list_parameter_sizes([conv]) == (108, 4)
    other = replace(op("aten.mul", ((7,),), ((7,),), layer="odd"), parameters=5)
    assert list_parameter_sizes([conv, other]) is None


def test_pytorchs_kernels_of_an_a100_come_out_as_counted(shared):
    script = load("proof/silicon/silicon_aten.py")
    found = [one for one in script.launches(script.REPORT) if "distribution" not in one.name]
    assert len(found) == 13 and all(one.derived is not None for one in found)
    wrong = [one for one in found if abs(one.error) > 0.001]
    assert [recognise_kernel(one.name).role for one in wrong] == [
        recognise_kernel(SOFTMAX.format("forward", 5, "false")).role
    ]
    (softmax,) = wrong
    quotients = 2 * 8 * 20 * 20
    assert softmax.ffma - softmax.derived.ffma == 2 * quotients, (
        "the older compiler takes 7 FFMA for a quotient"
    )
    assert (softmax.fmul, softmax.fadd) == (softmax.derived.fmul, softmax.derived.fadd)
    assert read_rule_verifications()["softmax"].worst == pytest.approx(abs(softmax.error), abs=1e-5)
