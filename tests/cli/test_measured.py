"""Runs of the store as the predictor takes them."""

import pytest

from perfctl.orchestrator.evidence import read_measurements
from perfctl.orchestrator.predict.measurements import (
    format_run_model_name,
    infer_optimizer_name,
)
from perfctl.records.paper import OpShape
from tests.cli import plain_runs as runs
from tests.cli.conftest import sql


@pytest.mark.parametrize(
    ("workload", "variant", "name"),
    [
        ("families", "model=mlp:width=64,depth=4", "mlp:depth=4,width=64"),
        ("families", "model=mlp:nonsense=1", "mlp:nonsense=1"),
        ("torchvision_infer", "model=resnet18", "torchvision:resnet18"),
        (
            "torchvision_infer",
            "images=8 model=resnet18",
            "torchvision_infer images=8 model=resnet18",
        ),
        ("mnist_cnn", None, "mnist_cnn"),
        ("mnist_cnn", "conv2=32,128,5,1", "mnist_cnn conv2=32,128,5,1"),
    ],
)
def test_a_run_has_the_name_by_which_its_model_is_asked_for(workload, variant, name):
    assert format_run_model_name(workload, variant) == name


@pytest.mark.parametrize(
    ("op", "attributes", "name"),
    [
        ("SGD", {}, "sgd"),
        ("SGD", {"momentum": 0.9}, "momentum"),
        ("AdamW", {}, "adam"),
        ("Adadelta", {}, "adam"),
    ],
)
def test_an_optimizer_goes_by_how_many_values_it_keeps(op, attributes, name):
    shape = ((4, 3),)
    assert (
        infer_optimizer_name(
            [
                OpShape(
                    "a", "Linear", f"optim.{op}", "optimizer", shape, shape, attributes=attributes
                )
            ]
        )
        == name
    )


def test_there_is_nothing_where_there_is_no_store(tmp_path):
    assert read_measurements(tmp_path / "none.db").measured == ()


def test_of_several_runs_the_fastest_counts_and_data_phases_do_not(tmp_path):
    rows = [
        runs.Row("mlp", 8, (30.0, 30.0)),
        runs.Row("mlp", 8, (12.0, 14.0, 16.0), data_ms=2.0, watts=70.0),
        runs.Row("mlp", 16, (20.0,)),
        runs.Row("mlp", 8, (9.0,), device="AMD EPYC", threads=2),
        runs.Row("mlp compile=True", 8, (1.0,)),
    ]
    found = read_measurements(runs.store(tmp_path / "perfctl.db", rows))
    by_case = {(one.machine, one.case.batch): one for one in found.measured}
    assert set(by_case) == {("T4", 8), ("T4", 16), ("AMD EPYC, 2 threads", 8)}
    best = by_case["T4", 8]
    assert (best.low, best.seconds, best.high) == pytest.approx((0.011, 0.012, 0.013))
    assert best.backward == pytest.approx(0.006)
    assert best.peak_bytes == 10**9
    assert best.case.training and best.case.optimizer == "sgd"
    assert {work.kind for work in best.case.works} >= {"linear", "activation", "softmax", "loss"}
    assert found.kinds == {"T4": "gpu", "AMD EPYC, 2 threads": "cpu"}
    (reading,) = found.power
    assert (reading.watts, reading.readings, reading.batch_size) == (70.0, 1, 8)


def test_profiled_failed_and_synthetic_runs_are_no_measurements(tmp_path):
    path = runs.store(
        tmp_path / "perfctl.db",
        [runs.Row("mlp", size, (10.0,), watts=9.0) for size in (1, 2, 3, 4)],
    )
    for size, change in enumerate(
        ("profiler = 'nsys'", "status = 'partial'", "origin = 'synthetic'"), 1
    ):
        sql(f"UPDATE run SET {change} WHERE batch_size = {size}", path)
    found = read_measurements(path)
    assert [one.case.batch for one in found.measured] == [4]
    assert sorted(reading.batch_size for reading in found.power if reading.batch_size) == [1, 4]
