"""Tables of a store as DataFrames: units and NULLs as in the store."""

import pytest

import perfctl
from perfctl.orchestrator.errors import StoreError
from tests.cli import hostile


@pytest.fixture
def store(tmp_path):
    """Three kernels, synthetic: 500 ns, 0 ns and not known."""
    return hostile.store(tmp_path / "perfctl.db")


def test_what_is_not_known_is_missing_and_zero_is_zero(store):
    frame = perfctl.kernels(store)
    assert frame["duration_ns"].isna().tolist() == [False, False, True]
    assert frame["duration_ns"].tolist()[:2] == [500, 0]
    assert frame["registers"].isna().all()
    assert str(frame["launch"].dtype) == "Int64"


def test_each_row_says_which_run_and_batch_size_it_is_of(store):
    assert perfctl.kernels(store)["batch_size"].tolist() == [16, 16, 16]
    assert perfctl.kernels(store, runs=[9]).empty
    assert "flops" in perfctl.layer_calls(store)


def test_a_counter_stands_beside_its_launch(store):
    frame = perfctl.counters(store)
    assert frame["launch"].tolist() == [0, 1, 2]
    assert frame["layer"].tolist() == ["conv1"] * 3
    assert frame["value"].isna().tolist() == [False, True, False]
    assert frame["value"].tolist()[0] == 0


def test_without_a_store_the_error_says_so(tmp_path):
    with pytest.raises(StoreError, match="no results database found"):
        perfctl.kernels(tmp_path / "none.db")
