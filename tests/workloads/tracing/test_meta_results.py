"""Results of operators on meta that are kept: new tensors of the same sizes, and nothing kept that
depends on more."""

import pytest

torch = pytest.importorskip("torch")

from perfctl.workloads.tracing import meta_results  # noqa: E402

aten = torch.ops.aten


def meta(*size, dtype=torch.float32):
    return torch.empty(size, dtype=dtype, device="meta")


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(meta_results, "_results", {})
    monkeypatch.setattr(meta_results, "_shapes", {})


def test_the_second_result_is_a_new_tensor_like_the_first():
    first = meta_results.compute_or_reuse_result(aten.mm.default, (meta(3, 4), meta(4, 5)), {})
    second = meta_results.compute_or_reuse_result(aten.mm.default, (meta(3, 4), meta(4, 5)), {})
    assert len(meta_results._results) == 1
    assert (
        (second.shape, second.dtype, second.stride())
        == (first.shape, first.dtype, first.stride())
        == ((3, 5), torch.float32, (5, 1))
    )
    assert second.untyped_storage()._cdata != first.untyped_storage()._cdata


def test_other_sizes_strides_types_and_numbers_have_results_of_their_own():
    assert meta_results.compute_or_reuse_result(
        aten.mm.default, (meta(3, 4), meta(4, 7)), {}
    ).shape == (3, 7)
    assert (
        meta_results.compute_or_reuse_result(
            aten.mm.default, (meta(3, 4, dtype=torch.float16), meta(4, 7, dtype=torch.float16)), {}
        ).dtype
        == torch.float16
    )
    rows, columns = (
        meta_results.compute_or_reuse_result(aten.relu.default, (one,), {})
        for one in (meta(4, 6), meta(6, 4).t())
    )
    assert (rows.stride(), columns.stride()) == ((6, 1), (1, 4))
    whole, real = (
        meta_results.compute_or_reuse_result(aten.add.Tensor, (meta(3, dtype=torch.int64), one), {})
        for one in (1, 1.0)
    )
    assert (whole.dtype, real.dtype) == (torch.int64, torch.float32)


def test_an_operator_in_place_gives_its_argument_back():
    for _ in range(2):
        tensor = meta(3)
        assert meta_results.compute_or_reuse_result(aten.add_.Tensor, (tensor, 2.0), {}) is tensor
    many = [meta(3), meta(5)]
    for _ in range(2):
        assert (
            meta_results.compute_or_reuse_result(aten._foreach_mul_.Scalar, (many, 2.0), {}) is None
        )
    assert len(meta_results._results) == 2


def test_an_operator_that_changes_the_size_of_its_argument_runs_each_time():
    for _ in range(2):
        tensor = meta(3)
        meta_results.compute_or_reuse_result(aten.resize_.default, (tensor, [7]), {})
        assert tensor.shape == (7,)


def test_views_and_tensors_with_data_are_computed_each_time():
    tensor = meta(3, 4)
    for _ in range(2):
        assert (
            meta_results.compute_or_reuse_result(aten.t.default, (tensor,), {})
            .untyped_storage()
            ._cdata
            == tensor.untyped_storage()._cdata
        )
        assert meta_results.compute_or_reuse_result(
            aten.add.Tensor, (torch.ones(2), 1), {}
        ).tolist() == [2.0, 2.0]
    assert meta_results._results == {}


def test_an_error_is_raised_each_time():
    for _ in range(2):
        with pytest.raises(RuntimeError):
            meta_results.compute_or_reuse_result(aten.mm.default, (meta(3, 4), meta(5, 6)), {})
