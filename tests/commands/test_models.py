"""estimate_model_for_batches, predict, prices and export as functions: records out, errors that name
the field."""

import pytest

import perfctl
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import (
    compare_manual_value_with_sheets,
    estimate_model_for_batches,
)
from perfctl.orchestrator.predict.prices import load_prices_for_gpu_model

NET = "mlp:depth=3,width=16"


def test_a_model_is_estimated_at_each_batch_size_and_layers_that_are_not_there_are_named():
    pytest.importorskip("torch")
    found = estimate_model_for_batches(Request("mnist_cnn"), (1, 4))
    one, four = (found.batches[size].forward.flops for size in (1, 4))
    assert four == 4 * one > 0
    assert found.problems == () and found.fit is None
    (sheet,) = {sheet.layer for sheet in found.build_layer_sheets_by_batch("fc2").values()}
    assert sheet == "fc2"
    assert {layer.path for layer in found.extract_layer_estimates("fc2")[1].modules} == {"fc2"}
    assert (
        compare_manual_value_with_sheets(
            str(128 * 10), {1: found.build_layer_sheets_by_batch("fc2")[1]}, {}
        )[1].mistakes
        == ()
    )
    with pytest.raises(UsageError, match="`layer`: layer 'conv9'"):
        found.extract_layer_estimates("conv9")
    with pytest.raises(UsageError, match="`check` needs one layer"):
        found.build_layer_sheets_by_batch()


def test_predict_takes_every_option_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = perfctl.predict(
        NET,
        batch=(8, 16),
        device="A100 PCIe 80 GB",
        dataset_size=1000,
        epochs=2,
        gpus=2,
        interconnect=10.0,
        overlap=0.5,
        power=200.0,
        tariff=0.3,
    )
    assert [point.training.job.batch for point in found.points] == [8, 16]
    assert found.training.job.link_gbs == 10.0
    assert found.training.total is not None
    assert found.training.total.low < found.training.total.value < found.training.total.high


def test_prices_of_one_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    every, some = load_prices_for_gpu_model(), load_prices_for_gpu_model("T4")
    assert 0 < len(some.prices) < len(every.prices)
    assert {board.name for price in some.prices for board in price.boards} >= {"T4"}
    assert load_prices_for_gpu_model("P40").prices == ()
    with pytest.raises(UsageError, match="`model`: 'A10H' is not in the table of devices"):
        load_prices_for_gpu_model("A10H")
