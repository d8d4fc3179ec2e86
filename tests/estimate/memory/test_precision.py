"""Memory by precision: a family's lines against the trace of the built network, and the reserve
beside the tensors."""

import csv
import warnings
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.estimate.memory import (
    RESERVE,
    SMALL,
    StepMemory,
    can_run_trace_in_bytes,
    compute_batch_peak_bytes,
    get_default_reserve_bytes,
)
from perfctl.orchestrator.estimate.plan_memory import (
    compute_inference_memory_envelope,
    compute_training_memory_envelope,
)
from perfctl.orchestrator.predict.cost import compute_tensor_memory_need
from perfctl.workloads.models.plan import plan_model

PUBLISHED = Path(__file__).parents[3] / "scripts" / "proof" / "accuracy" / "published.csv"
RESNET50 = "resnet:depth=50,width=64,image=224,classes=1000"


def traced(model, precision, optimizer, batch):
    """A step; of inference where the optimizer is ""."""
    pytest.importorskip("torch")
    from perfctl.orchestrator.estimate.request import Request
    from perfctl.orchestrator.estimate.session import Session

    request = Request(
        model,
        (),
        "train" if optimizer else "infer",
        optimizer or None,
        memory=True,
        precision=precision,
    )
    with warnings.catch_warnings():
        # CUDA builds of torch say in the first backward that there is no driver
        warnings.simplefilter("ignore")
        found = Session(request).estimate_batch(batch).memory_trace
    assert found is not None
    return found


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("spec", "optimizer"),
    [
        ("mlp:depth=3,width=96,activation=gelu", "adam"),
        ("mlp:depth=1", "sgd"),
        ("vgg:batchnorm=yes,width=8", "momentum"),
        ("vgg:width=8,kernel=5", ""),
        ("resnet:depth=26,width=8,image=32", "sgd"),
        ("resnet:width=8,activation=silu", "adam"),
        ("resnet:width=8", ""),
        ("inception:width=8,blocks=3,activation=tanh", "momentum"),
    ],
)
def test_a_familys_lines_are_the_trace_to_the_byte(spec, optimizer, precision):
    planned = plan_model(spec)
    lines = (
        compute_training_memory_envelope(planned, optimizer, precision)
        if optimizer
        else compute_inference_memory_envelope(planned, precision)
    )
    small, more = (traced(spec, precision, optimizer, batch) for batch in (2, 3))
    for batch in (1, 2, 3, 8, 48, 1000):
        assert compute_batch_peak_bytes(lines, batch) == compute_batch_peak_bytes(
            StepMemory(small, more).lines, batch
        ), batch


def test_bf16_has_the_bytes_of_fp16_and_tf32_those_of_fp32():
    planned = plan_model("resnet:depth=26,width=8")
    for one, other in (("bf16", "fp16"), ("tf32", "fp32")):
        assert compute_training_memory_envelope(
            planned, "adam", one
        ) == compute_training_memory_envelope(planned, "adam", other)
        assert compute_inference_memory_envelope(planned, one) == compute_inference_memory_envelope(
            planned, other
        )


def test_sixteen_bits_halve_what_grows_with_the_batch_and_add_casts_to_what_does_not():
    planned = plan_model("vgg:depth=11,width=64,image=224")
    batch = 256
    whole, half = (
        compute_batch_peak_bytes(compute_training_memory_envelope(planned, "momentum", name), batch)
        for name in ("fp32", "fp16")
    )
    places = (
        8
        * batch
        * sum(layer.output_elements for layer in planned.layers if layer.kind == "max_pool")
    )
    given = 4 * batch * planned.layers[0].all_input_elements
    always = 3 * 4 * planned.parameters  # parameters, gradients, momentum
    assert whole / 2 < half < (whole + places + given + always) / 2 + 2 * 2 * planned.parameters


@pytest.mark.parametrize(
    ("spec", "optimizer", "batch"),
    [
        (RESNET50, "momentum", 100),
        (RESNET50, "", 1200),
        ("vgg:depth=16,width=64,image=224,classes=1000", "momentum", 64),
        ("inception:width=64,image=96", "adam", 256),
    ],
)
def test_a_deep_network_runs_in_its_tensors_and_half_a_gib_for_workspaces_and_fragments(
    spec, optimizer, batch
):
    """At batches that fill a small card. Where few tensors are most of the memory it may be more:
    docs/reference/formulas.md, Memory."""
    small, more = (traced(spec, "fp16", optimizer, size) for size in (2, 3))
    memory = StepMemory(small, more)
    step, tensors = (
        memory.extrapolate_trace_to_batch(batch),
        compute_batch_peak_bytes(memory.lines, batch),
    )
    assert can_run_trace_in_bytes(step, tensors + RESERVE // 2)
    assert not can_run_trace_in_bytes(step, tensors - SMALL)


def test_every_published_run_of_resnet_50_is_said_to_fit_on_its_card():
    """DeepLearningExamples, Lambda and others; on a V100 of 16 GB batch 128 in fp32 and 256
    in AMP."""
    planned, fitted, most = plan_model(RESNET50), 0, dict[tuple[str, str], int]()
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["model"] == "torchvision:resnet50" and "pytorch" in row["engine"]
        ]
    for row in rows:
        name = row["device"] + (" 32 GB" if row["note"].startswith("32 GB") else "")
        machine, precision, batch = (
            machines.find_device(name).machine,
            row["precision"],
            int(row["batch"]),
        )
        trains = row["mode"] == "train"
        lines = (
            compute_training_memory_envelope(planned, "momentum", precision)
            if trains
            else compute_inference_memory_envelope(planned, precision)
        )
        assert compute_tensor_memory_need(
            lines, batch, machine.memory_bytes, get_default_reserve_bytes(machine.kind)
        ).fits, row["id"]
        fitted += 1
        if trains and machine.name == "V100 SXM2 16 GB":
            key = row["device"], precision
            most[key] = max(most.get(key, 0), batch)
    assert fitted > 80
    assert most == {("V100 SXM2", "fp32"): 128, ("V100 SXM2", "fp16"): 256}
