"""Predictions of generated text: amounts by hand, rules over devices, and what is refused."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from perfctl import predict_generation
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.generation_steps import estimate_generation
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.predict.generation import (
    integrate_generation_time,
    predict_generation_steps,
    sum_generation_step_work,
)
from perfctl.orchestrator.predict.published import (
    get_product_depthwise_and_byte_peaks,
    list_board_table_machines,
)
from scripts.proof.accuracy.engines.engine_rows import Shape, step

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
FILE = f"{Path(__file__).parents[1] / 'data' / 'scripts' / 'language_model.py'}:plain"
LAYERS, WIDTH, PAIRS, SIZE, INNER, WORDS = 2, 64, 2, 16, 96, 500
LLAMA = (
    f"hf:llama:num_hidden_layers={LAYERS},hidden_size={WIDTH},num_attention_heads=4,"
    f"num_key_value_heads={PAIRS},intermediate_size={INNER},vocab_size={WORDS}"
)
SHAPE = Shape("", LAYERS, WIDTH, PAIRS * SIZE, 3 * INNER, WORDS, 7)
WEIGHTS = LAYERS * SHAPE.each + 2 * WIDTH * WORDS + (2 * LAYERS + 1) * WIDTH
BATCH, PROMPT, TOKENS = 3, 20, 9


def predicted(**more):
    return predict_generation(
        LLAMA,
        **{"prompt": PROMPT, "generate": TOKENS, "batch": BATCH, "device": "H100 SXM5"} | more,
    )


@pytest.fixture(scope="module")
def traced():
    request = Request(LLAMA, prompt=PROMPT, generate=TOKENS - 1, precision="fp16-true")
    return estimate_generation(request, (BATCH, 50 * BATCH))


def test_what_a_server_does_follows_from_the_sizes_of_the_model(traced):
    found = traced[BATCH]
    for name, tokens, context in (
        ("prefill", PROMPT, PROMPT),
        ("decode, last step", 1, PROMPT + TOKENS - 1),
    ):
        for precision in ("fp16", "fp8"):
            work, by_hand = (
                sum_generation_step_work(found, found.get_phase(name), precision),
                step(SHAPE, BATCH, tokens, context, precision),
            )
            for field in (
                "prefill",
                "sequences",
                "products",
                "weight_bytes",
                "head",
                "head_bytes",
                "attention",
                "layers",
            ):
                assert getattr(work, field) == getattr(by_hand, field), (name, precision, field)
    # The cache is traced in 16 bits; a step reads what earlier ones left and writes its own.
    assert (
        sum_generation_step_work(found, found.get_phase("decode, last step"), "fp16").cache_bytes
        == step(SHAPE, BATCH, 1, PROMPT + TOKENS - 1, "fp16").cache_bytes
    )


EIGHT_BIT = LAYERS * SHAPE.each + 2 * 2 * WIDTH * WORDS + (4 * LAYERS + 2) * WIDTH


@pytest.mark.parametrize(
    ("engine", "precision", "kind", "weights", "item"),
    [
        ("eager", "fp16", None, 2 * WEIGHTS, 2),
        ("eager", "fp32", None, 4 * WEIGHTS, 4),
        ("tensorrt-llm", "bf16", "fp8", 2 * WEIGHTS, 1),
        ("tensorrt-llm", "fp8", None, EIGHT_BIT, 1),
    ],
)
def test_weights_and_cache_take_the_bytes_of_their_types(engine, precision, kind, weights, item):
    cached = item * BATCH * (PROMPT + TOKENS - 1) * LAYERS * 2 * PAIRS * SIZE
    found = predicted(engine=engine, precision=precision, kv_cache=kind).points[0].memory
    assert (found.weights, found.cache, found.reserve) == (weights, cached, 2**30)
    assert found.fits is None, "the activations of the prompt need more"
    assert found.largest == int((81_559 * 2**20 - 2**30 - weights) / (cached / BATCH))


@pytest.mark.parametrize("engine", ["eager", "tensorrt-llm"])
def test_tokens_a_second_and_cost_are_those_of_the_whole_batch(engine):
    (point,) = predicted(engine=engine).points
    assert point.first is not None and point.last is not None and point.cost is not None
    each = (point.first.time.value + point.last.time.value) / 2
    assert point.total.value == pytest.approx(point.prefill.time.value + (TOKENS - 1) * each)
    rate = point.tokens_per_second.value
    assert rate == pytest.approx(BATCH * TOKENS / point.total.value)
    hour = (point.cost.price.on_demand or 0) / point.cost.price.count
    assert point.cost.dollars.value == pytest.approx(hour / 3600 / rate * 1e6)
    for step_of in (point.prefill, point.first, point.last):
        assert step_of.time.low < step_of.time.value < step_of.time.high
        assert step_of.floor <= step_of.time.value
    assert point.source and point.nearest
    said = r", prompt [\d,]+, [\d,]+ generated, (batch [\d,]+|as many)"
    assert engine == "eager" or re.search(said, point.nearest)


def test_one_token_is_prefill_alone():
    (point,) = predicted(generate=1).points
    assert point.first is None
    assert point.total == point.prefill.time


def test_eager_mode_waits_for_the_host_and_the_server_does_not():
    eager, served = (
        predicted(engine=engine).points[0].first for engine in ("eager", "tensorrt-llm")
    )
    assert eager is not None and served is not None
    assert eager.limit in ("host", "overhead"), "its operations are tiny"
    assert served.limit not in ("overhead", "arithmetic")
    assert served.time.value < eager.time.value / 3


@pytest.mark.parametrize("engine", ["eager", "tensorrt-llm"])
def test_on_every_device_a_larger_batch_and_a_later_step_never_take_less_time(traced, engine):
    one, many = traced.values()
    compared = 0
    for machine in list_board_table_machines():
        try:
            few, lots = (
                predict_generation_steps(found, engine, "fp16", machine) for found in (one, many)
            )
        except ValueError:
            continue
        compared += 1
        for small, large in zip(few, lots, strict=True):
            assert small.time.value <= large.time.value, machine.name
        for steps in (few, lots):
            assert steps[1].time.value <= steps[2].time.value, machine.name
        assert (
            integrate_generation_time(few, TOKENS).value
            <= integrate_generation_time(few, TOKENS + 1).value
        )
    assert compared > 40


@pytest.mark.parametrize("engine", ["eager", "tensorrt-llm"])
def test_a_device_is_never_slower_than_one_whose_peaks_are_all_lower(traced, engine):
    known = []
    for machine in list_board_table_machines():
        try:
            steps = predict_generation_steps(traced[50 * BATCH], engine, "fp16", machine)
        except ValueError:
            continue
        known.append(
            (
                get_product_depthwise_and_byte_peaks(machine, "fp16"),
                [step_of.time.value for step_of in steps],
                machine.name,
            )
        )
    known.sort(key=lambda row: row[0])
    compared = 0
    for low, slow, other in known:
        for high, fast, name in known:
            if all(a >= b for a, b in zip(high, low, strict=True)):
                compared += 1
                assert all(a <= b * (1 + 1e-12) for a, b in zip(fast, slow, strict=True)), (
                    f"{name} is slower than {other}"
                )
    assert compared > 500


def test_several_batches_each_have_their_point_and_grow():
    points = predicted(batch=(1, 8, 64), engine="tensorrt-llm").points
    assert [point.batch for point in points] == [1, 8, 64]
    for less, more in pairwise(points):
        assert less.total.value < more.total.value
        assert less.tokens_per_second.value < more.tokens_per_second.value


def test_what_does_not_fit_has_no_cost():
    spec = "name=X1,fp32_tflops=20,bandwidth_gbs=900,memory_gb=1,tensor_fp16_tflops=160"
    (point,) = predicted(device=None, device_spec=spec).points
    assert point.memory.fits is False
    assert point.cost is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": 0}, "`prompt` must be at least 1, got 0"),
        ({"generate": 0}, "`generate` must be at least 1, got 0"),
        ({"batch": 0}, "`batch` must be at least 1"),
        ({"engine": "vllm"}, "invalid value 'vllm' for `engine`"),
        ({"precision": "fp8"}, "`precision` fp8 for eager"),
        (
            {"engine": "tensorrt-llm", "precision": "fp32"},
            "`precision` fp32 for tensorrt-llm",
        ),
        (
            {"engine": "tensorrt-llm", "precision": "fp8", "device": "A100"},
            "A100 SXM4 40 GB has no fast fp8",
        ),
        ({"engine": "tensorrt-llm", "device": "MI250"}, "tensorrt-llm does not run on MI250"),
        (
            {"kv_cache": "fp8"},
            "`kv_cache` fp8: PyTorch in eager mode keeps the cache in the type of the weights",
        ),
        ({"engine": "tensorrt-llm", "kv_cache": "none"}, "`kv_cache` none"),
        ({"device": "cpu"}, "perfctl predicts generation on GPUs only"),
        ({"device": "A10H"}, "'A10H' is not in the table of devices"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_traced(given, said):
    with pytest.raises(UsageError) as caught:
        predicted(**given)
    assert said in str(caught.value)


def test_a_factory_of_ones_own_is_predicted_too():
    (point,) = predict_generation(FILE, prompt=8, generate=4, device="T4").points
    assert point.tokens_per_second.value > 0
    assert any("decode in eager mode" in sentence for sentence in point.outside)
