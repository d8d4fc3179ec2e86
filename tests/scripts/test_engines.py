"""Text from a server: rules that hold on every device and precision, and how near the shipped fit
is to what it learned from."""

from dataclasses import fields, replace
from itertools import pairwise, permutations
from statistics import median
from types import SimpleNamespace

import pytest

from perfctl.orchestrator.counts.hardware.machines import find_device, parse_device_spec
from perfctl.orchestrator.predict import generation
from perfctl.orchestrator.predict.answer import ENGINES
from perfctl.orchestrator.predict.generation import GenerationStepWork
from perfctl.orchestrator.predict.published import list_board_table_machines
from perfctl.orchestrator.predict.step_parts import get_peak_flops_or_raise
from scripts.proof.accuracy.engines.engine_rows import SHAPES, Shape, at_once, rows, step

FIT = generation.load_engine_fit()
LLAMA = SHAPES["hf:meta-llama/Llama-3.1-8B"]
SMALL = Shape("", 4, 256, 128, 3 * 512, 1000, 7)


def seconds(work, machine, precision="fp16"):
    """None where the machine cannot compute in the precision."""
    try:
        return generation.predict_engine_step_seconds(FIT.costs, work, precision, machine)
    except ValueError:
        return None


def machines(precision):
    return [
        machine
        for machine in list_board_table_machines()
        if seconds(step(SMALL, 1, 1, 9, precision), machine, precision)
    ]


@pytest.mark.parametrize("precision", ENGINES["tensorrt-llm"])
@pytest.mark.parametrize("shape", [LLAMA, SMALL], ids=["8B", "small"])
def test_a_larger_batch_and_a_longer_context_or_prompt_never_take_less_time(shape, precision):
    able = machines(precision)
    assert len(able) > 20
    for machine in able:
        for works in (
            [step(shape, batch, 1, 512, precision) for batch in (1, 2, 31, 256, 2048)],
            [step(shape, 8, 1, context, precision) for context in (1, 128, 4096, 131072)],
            [step(shape, 4, prompt, prompt, precision) for prompt in (2, 128, 2048, 30000)],
        ):
            times = [seconds(work, machine, precision) or 0.0 for work in works]
            assert all(less <= more for less, more in pairwise(times)), machine.name


@pytest.mark.parametrize("precision", ENGINES["tensorrt-llm"])
def test_a_device_is_never_slower_than_one_whose_peaks_are_all_lower(precision):
    works = [
        step(LLAMA, 1, 1, 512, precision),
        step(LLAMA, 256, 1, 2048, precision),
        step(LLAMA, 4, 2048, 2048, precision),
    ]
    known = [
        (
            (
                get_peak_flops_or_raise(one, precision),
                get_peak_flops_or_raise(one, "fp16"),
                one.bytes_per_second,
            ),
            [seconds(work, one, precision) or 0.0 for work in works],
            one.name,
        )
        for one in machines(precision)
    ]
    compared = 0
    for (high, fast, one), (low, slow, other) in permutations(known, 2):
        if all(a >= b for a, b in zip(high, low, strict=True)):
            compared += 1
            assert all(less <= more for less, more in zip(fast, slow, strict=True)), (
                f"{one} is slower than {other}"
            )
    assert compared > 100


def test_fp8_is_at_least_as_fast_as_fp16_and_refused_where_the_chip_has_none():
    compared = 0
    for machine in machines("fp8"):
        for batch, tokens, context in ((1, 1, 512), (64, 1, 2048), (2, 2048, 2048)):
            eight, sixteen = (
                seconds(step(LLAMA, batch, tokens, context, one), machine, one)
                for one in ("fp8", "fp16")
            )
            compared += 1
            assert eight is not None
            assert sixteen is not None
            assert eight <= sixteen, machine.name
    assert compared > 30
    with pytest.raises(ValueError, match="A100 SXM4 80 GB has no fast fp8"):
        generation.predict_engine_step_seconds(
            FIT.costs, step(LLAMA, 1, 1, 9, "fp8"), "fp8", find_device("A100 SXM4 80 GB").machine
        )


def test_published_figures_are_met_within_ten_percent_in_the_median_on_each_device():
    learned = [row for row in rows() if row.may_fit and not row.behind_server]
    assert len(learned) == len(FIT.rows) > 80
    for device in FIT.devices:
        missed = [
            abs(row.predicted(FIT.costs) / row.seconds - 1)
            for row in learned
            if row.machine.name.startswith(device)
        ]
        assert len(missed) >= 9
        assert median(missed) < 0.1, device


def test_no_prediction_is_below_the_roofline():
    for precision in ENGINES["tensorrt-llm"]:
        for machine in machines(precision):
            for batch, tokens, context in ((1, 1, 1), (512, 1, 4096), (8, 4096, 4096)):
                work = step(LLAMA, batch, tokens, context, precision)
                assert generation.compute_engine_step_floor_seconds(work, precision, machine) <= (
                    seconds(work, machine, precision) or 0.0
                )


def test_each_part_of_a_step_costs_time():
    machine, work = find_device("H100 SXM5").machine, step(LLAMA, 64, 2048, 2048, "fp16")
    whole = seconds(work, machine) or 0.0
    for field in fields(GenerationStepWork):
        if field.name not in (
            "prefill",
            "weight_bytes",
            "head_bytes",
            "head",
        ):  # hidden behind the FLOPs here, or too little
            less = replace(work, **{field.name: 0})
            assert (seconds(less, machine) or 0.0) < whole, field.name


def test_the_range_is_wider_on_devices_that_were_not_measured_and_the_answer_says_why():
    known, alike = find_device("H100 SXM5").machine, find_device("H100 PCIe").machine
    unlike = parse_device_spec(
        "name=X1,fp32_tflops=9,bandwidth_gbs=300,memory_gb=16,tensor_fp16_tflops=60,process_nm=28"
    ).machine
    work = step(LLAMA, 1, 1, 512, "fp16")
    for prefill in (True, False):
        widths = [
            generation.compute_engine_interval_factor(FIT, machine, prefill)
            for machine in (known, alike, unlike)
        ]
        assert widths == sorted(set(widths))
    assert generation.list_engine_extrapolations(FIT, known, work, "fp16") == ()
    assert generation.list_engine_extrapolations(FIT, alike, work, "fp16") == (
        "the fit has no data for H100 PCIe",
    )
    said = " ".join(
        generation.list_engine_extrapolations(FIT, unlike, step(SMALL, 1, 1, 512, "fp16"), "fp16")
    )
    assert "28 nm" in said
    assert "300 GB/s" in said
    assert "billion weights" in said


def test_the_nearest_published_run_is_one_of_the_same_device_and_precision_where_there_is_one():
    asked = SimpleNamespace(batch=64, prompt=128, generate=127, parameters=6.05e9)
    near = generation.find_nearest_published_engine_run(
        FIT, find_device("L40S").machine, "fp8", asked
    )
    assert near is not None
    assert (near.device, near.precision, near.prompt, near.generate, near.batch) == (
        "L40S",
        "fp8",
        128,
        128,
        64,
    )


def test_a_server_holds_as_many_sequences_as_the_memory_takes():
    machine = find_device("H100 SXM5").machine
    weights = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 2 * 2 * 4096 * 128256
    each = 32 * 2 * 1024 * 4000
    assert at_once(LLAMA, "fp8", machine, 4000) == int(
        0.95 * (81_559 * 2**20 - weights - 1.5e9) / each
    )
    assert at_once(LLAMA, "fp8", machine, 2) == 2048
