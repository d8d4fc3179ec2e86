"""perfctl predict from the command line's side."""

import pytest

from tests.cli.predict_calls import NET, ask

pytestmark = [
    pytest.mark.usefixtures("own_configuration"),
    pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning"),
]


SIZES = ("1", "2", "8", "64", "512")

MODEL = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
"""


def test_a_model_in_a_file_is_traced_and_its_memory_is_that_of_an_estimate_at_any_batch(
    perfctl, tmp_path
):
    from perfctl.orchestrator.estimate.request import Request
    from perfctl.orchestrator.estimate.session import Session

    (tmp_path / "net.py").write_text(MODEL)
    words = "predict net.py:net --input 3x8x8 --batch 37 --device T4 --json"
    said = perfctl(words).ok()
    exact = Session(
        Request("net.py:net", ("3x8x8",), "train", "momentum", memory=True)
    ).estimate_batch(37)
    assert exact.memory is not None
    assert said.json["batches"][0]["memory"]["needed_bytes"] == exact.memory.allocated
    assert said.json["optimizer"] == "momentum"
    assert said.json["parameters"] == 8 * 27 + 8 + 288 * 10 + 10
    inference = perfctl(f"{words} --mode infer").json["batches"][0]
    assert inference["step_s"]["value"] < said.json["batches"][0]["step_s"]["value"]
    assert inference["memory"]["needed_bytes"] < exact.memory.allocated


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("torchvision:squeezenet1_1", "--precision fp32"),
        ("torchvision:squeezenet1_1", "--precision fp16"),
        ("torchvision:squeezenet1_1", "--precision tf32 --mode infer"),
        ("resnet:depth=10,stages=3,width=8", "--precision bf16"),
        ("resnet:depth=10,stages=3,width=8", "--precision fp32"),
        ("resnet:width=16,image=32", "--precision fp32 --mode infer"),
        ("mnist_cnn", "--precision fp32 --optimizer adam"),
    ],
)
def test_predict_and_estimate_give_the_same_bytes_and_the_same_largest_batch(
    perfctl, model, options
):
    """With the defaults of both; a model of a family is traced, too, so that its allocations have
    their order."""
    on = f"{model} --batch 3 --json {options}"
    peaks = (
        "fp32_tflops=8,bandwidth_gbs=320,tensor_fp16_tflops=65,tensor_bf16_tflops=65,"
        "tensor_tf32_tflops=30"
    )
    for megabytes in (1200, 2500, 16000):
        given = f"name=X1,{peaks},memory_gb={megabytes / 1000}"
        said = perfctl(f"predict {on} --device-spec {given}")
        paper = perfctl(f"estimate {on} --memory {megabytes}MB")
        assert (said.code, paper.code) == (0, 0), said.err + paper.err
        found, fit = said.json["batches"][0]["memory"], paper.json["largest_batch"]
        assert found["needed_bytes"] == paper.json["batches"]["3"]["memory"]["allocated"]
        assert found["reserve_bytes"] == fit["reserve"] == 2**30
        assert found["largest_batch"] == fit["batch"] > 3
        assert found["fits"] is True
        assert said.json["parameters"] == paper.json["batches"]["3"]["parameters"]
        assert fit["needed"] + fit["reserve"] + fit["margin"] == found["limit_bytes"]


def test_what_is_null_has_its_reason(perfctl):
    (bare,) = ask(perfctl, "--batch 64 --device T4")["batches"]
    (full,) = ask(
        perfctl,
        "--batch 64 --device T4 --dataset-size 1000 --epochs 2 --gpus 2 --interconnect 5 --tariff 0.3",
    )["batches"]
    for point in (bare, full):
        empty = {
            name
            for name, value in point.items()
            if value in (None, [], {}) and name != "extrapolations"
        }
        assert {name for name in point["missing_values"] if "." not in name} == empty
    assert bare["missing_values"]["epoch_s"] == "no --dataset-size"
    assert "energy.cost" not in full["missing_values"]


def test_a_step_that_does_not_fit_says_by_how_much_and_the_largest_batch_that_does(perfctl):
    model = "resnet:depth=26,width=128,image=224,classes=1000"
    said = perfctl(f"predict {model} --batch 512 --device T4 --json --dataset-size 1000")
    memory = said.json["batches"][0]["memory"]
    assert memory["fits"] is False
    assert memory["reserve_bytes"] == 2**30
    assert memory["missing_bytes"] == memory["needed_bytes"] + 2**30 - 15 * 2**30 > 0
    largest = memory["largest_batch"]
    edges = perfctl(f"predict {model} --batches {largest},{largest + 1} --device T4 --json")
    assert [point["memory"]["fits"] for point in edges.json["batches"]] == [True, False]
    text = " ".join(
        perfctl(f"predict {model} --batch 512 --device T4 --dataset-size 1000").out.split()
    )
    whole = (memory["needed_bytes"] + 2**30) / 2**30
    kept = "the memory includes 1.00 GiB reserved for the CUDA context and cuDNN"
    assert f"{whole:.3g} GiB of 15.0 GiB, does not fit:" in text and kept in text
    assert f"{memory['missing_bytes'] / 2**30:.3g} GiB are missing" in text
    assert f"largest batch {largest}" in text
    assert "Cost of" not in text


def test_several_batch_sizes_are_a_table_and_larger_ones_never_take_less_time(perfctl):
    options = f"--batches {','.join(SIZES)} --device A100-SXM4-80GB --dataset-size 10000"
    found = ask(perfctl, options)
    steps = [point["step_s"]["value"] for point in found["batches"]]
    assert steps == sorted(steps)
    table = perfctl(f"predict {NET} {options}").ok()
    assert all(len(line) <= 80 for line in table.out.splitlines())
    assert sum(
        line.split()[:1] == [size] for line in table.out.splitlines() for size in SIZES
    ) == len(SIZES)


def test_the_frontier_is_beaten_by_no_offer_and_names_what_does_not_fit(perfctl):
    model = "resnet:depth=50,width=64,image=224,classes=1000"
    words = f"{model} --batches 32,256 --dataset-size 100000 --device T4 --frontier"
    best = perfctl(f"predict {words} --json").json["frontier"]
    times = [choice["training_s"]["value"] for choice in best["choices"]]
    costs = [choice["on_demand_usd"]["value"] for choice in best["choices"]]
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)
    assert best["too_large"] > 0  # batch 256 on a T4
    assert best["compared"] > 60
    assert "do not fit in memory" in " ".join(perfctl(f"predict {words}").out.split())


def test_a_plan_has_the_memory_of_each_rank_by_estimate_and_data_parallelism_its_time(perfctl):
    model = f"{NET} --batch 64 --optimizer adam --parallel zero=3,dp=4 --json"
    memory = perfctl(f"predict {model} --device T4").json
    assert memory["parallel"]["ranks"] == perfctl(f"estimate {model}").json["parallel"]["ranks"]
    assert "no time with ZeRO or FSDP" in memory["notes"][-1]
    options = ("--parallel dp=4", "--gpus 4")
    plans = [ask(perfctl, f"--batch 64 --device T4 --interconnect 50 {gpus}") for gpus in options]
    first, second = (plan["batches"] for plan in plans)
    assert first == second
