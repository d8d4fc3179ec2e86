"""perfctl estimate --prompt from the command line's side."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
FILE = Path(__file__).parents[1] / "data" / "scripts" / "language_model.py"
ESTIMATE = f"estimate {FILE}:mixture --prompt 6 --generate 5"
MOVED = ("weight_bytes", "cache_read_bytes", "cache_written_bytes")


def test_json_has_every_layer_of_each_phase(perfctl):
    found = perfctl(f"{ESTIMATE} --batches 1,2 --json").json["batches"]
    for phase in (phase for batch in found.values() for phase in batch["phases"]):
        layers = phase["layers"]
        assert phase["flops"] == sum(layer["flops"] for layer in layers)
        assert phase["bytes"] == sum(layer[name] for layer in layers for name in MOVED)
    one, two = (found[size]["kv_cache"] for size in ("1", "2"))
    assert two["bytes_at_end"] == 2 * one["bytes_at_end"] == 2 * 11 * one["bytes_per_token"]


def test_a_model_that_is_cast_whole_reads_half_the_bytes_and_does_the_same_work(perfctl):
    totals = []
    for precision in ("fp32", "bf16-true"):
        found = perfctl(f"{ESTIMATE} --precision {precision} --json").json["batches"]["1"]
        totals.append(next(phase for phase in found["phases"] if phase["name"] == "total"))
    whole, cast = totals
    assert cast["macs"] == whole["macs"]
    assert all(cast[name] == whole[name] / 2 > 0 for name in MOVED)


def test_layers_are_shown_on_request_and_a_part_of_the_model_alone(perfctl):
    assert perfctl(f"{ESTIMATE} --all").out.count("blocks.2.attention.kv") == 2, "once a phase"
    part = perfctl(f"{ESTIMATE} --layer blocks.1").out
    assert "blocks.1.attention.kv" in part and "blocks.2" not in part
    assert "a token and sequence" not in part, "the cache is the model's, not the part's"


@pytest.mark.parametrize(
    ("form", "piece"),
    [
        ("md", "## Decode, by layer"),
        ("tex", "\\end{longtable}"),
        ("html", "<figcaption>Decode, by layer"),
    ],
)
def test_the_sheet_comes_in_every_format(perfctl, form, piece):
    out = perfctl(f"{ESTIMATE} --sheet --format {form}").out
    assert piece in out and "total" in out
    assert "blocks.0.mlp.experts" in out.replace("\\_", "_")
