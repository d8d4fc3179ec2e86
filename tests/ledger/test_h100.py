"""Recordings of an H100: what tensor cores executed follows from kernel names, grids and shapes,
and the ledger names the cause."""

import shutil
from math import ceil
from pathlib import Path

import pytest

from perfctl.orchestrator.ingest.ingest import ingest_paths
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import load_readable_runs
from tests.make.synthetic import study_of
from tests.make.tables import table

H100 = Path(__file__).parents[1] / "data" / "h100"
PRECISIONS = ("tf32", "bf16", "fp16")
MNIST_BATCH = 64
FORWARD = 2 * MNIST_BATCH * 24 * 24 * 64 * 32 * 9
"""FLOPs of mnist_cnn's second convolution: 24 x 24 outputs, 32 channels to 64, 3 x 3 taps."""


BATCHES = {16: "Winograd", 32: "Winograd", 64: "FFT", 128: "FFT", 256: "FFT"}
"""Batch size -> how cuDNN computes one of the two gradients of conv2 in fp32."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Name of a recording -> its study."""
    folder = tmp_path_factory.mktemp("h100")
    names = [*(f"ncu-{name}" for name in (*PRECISIONS, "blocks")), *(f"ncu/b{b}" for b in BATCHES)]
    for name in names:
        shutil.copytree(H100 / name, folder / "runs" / name)
    ingest_paths(folder / "runs", folder / "h100.db")
    with database.open_store_for_reading(folder / "h100.db") as connection:
        runs = load_readable_runs(connection, read.list_run_ids(connection))
    return {
        name.removeprefix("ncu-"): study_of(*(run for run in runs if f"/{name}/" in run.artifact))
        for name in names
    }


def row_of(study, layer, direction):
    found = analyse_study(study)
    rows = [row for row in found.ledger.rows if (row.layer, row.direction) == (layer, direction)]
    assert len(rows) == 1
    return found, rows[0]


def padding(study, layer, direction, batch):
    """Factor of tile padding, which has to explain 97% of the gap at least."""
    found, row = row_of(study, layer, direction)
    (cause,) = (
        cause
        for cause in found.judgement.get_row_causes(batch, layer, direction).causes
        if cause.rule == "tile padding"
    )
    assert row.ratio is not None and cause.factor is not None
    assert (cause.factor - 1) / (row.ratio - 1) > 0.97
    return cause.factor


@table("name", ["bf16", "fp16"])
def test_channels_and_parts_of_a_sum_explain_the_gradient_of_a_filter_of_one_channel(
    prepared, name
):
    """32 filters fill a tile of 64; 9 taps of 1 channel, filled up to a load of 8, fill two; 23
    parts of 43,264 outputs take 30 steps of 64 each."""
    outputs = MNIST_BATCH * 26 * 26
    steps = ceil(ceil(outputs / 23) / 64)
    executed = 64 * (2 * 64) * (23 * steps * 64)
    factor = padding(prepared[name], "conv1", "grad_weight", MNIST_BATCH)
    assert factor == pytest.approx(executed / (32 * 9 * outputs))


@pytest.mark.parametrize("name", PRECISIONS)
def test_clusters_and_channels_explain_both_gradients_of_a_convolution(prepared, name):
    """The gradient of 26 x 26 inputs has 32 channels in tiles of 64 and all 9 taps of 64 channels;
    its tiles come in clusters of 5 or 7. That of the weights has 10 tiles for 9 taps, or CUTLASS's
    tiles and 54 parts in TF32."""
    inputs, outputs = MNIST_BATCH * 26 * 26, MNIST_BATCH * 24 * 24
    if name == "tf32":
        tiles, side = ceil(ceil(inputs / 128) / 5) * 5, 128
        weights = 64 * (3 * 128) * (54 * ceil(ceil(outputs / 54) / 16) * 16)
    else:
        tiles, side = ceil(ceil(inputs / 256) / 7) * 7, 256
        weights = 64 * (10 * 64) * outputs
    executed = 2 * (tiles * side * 64 * (64 * 9) + weights)
    factor = padding(prepared[name], "conv2", "backward", MNIST_BATCH)
    assert factor == pytest.approx(executed / (2 * FORWARD))


@table("name", ["bf16", "fp16"])
def test_parts_of_a_sum_explain_a_linear_layer_whose_tiles_are_full(prepared, name):
    """9,216 inputs in 7 parts of 21 steps of 64."""
    factor = padding(prepared[name], "fc1", "forward", MNIST_BATCH)
    assert factor == pytest.approx(7 * 21 * 64 / 9216)


def test_scores_that_a_fused_attention_computes_again_are_on_paper_with_its_kernel(prepared):
    """8 sequences of 128 tokens, width 512: four gradients of products with 512 x 1,536 and 512 x
    512 weights, and five products of 128 x 128 scores in place of forward's two."""
    layer = "model.layers.1.self_attn"
    found, row = row_of(prepared["blocks"], layer, "backward")
    scores = 2 * 8 * 128 * 128 * 512
    linear = 2 * 8 * 128 * 512 * (1536 + 512)
    assert row.estimated.value == 2 * linear + 4 * scores + scores
    assert [call.flops for call in row.calls if call.direction == "recompute"] == [scores]
    assert row.ratio == pytest.approx(1, abs=0.005)
    assert "recompute" not in {row.direction for row in found.ledger.rows}


@table("batch rule", BATCHES.items())
def test_gradients_of_transforms_and_engines_side_by_side_are_explained(prepared, batch, rule):
    """In fp32 cuDNN takes an engine, Winograd and FFT for the two gradients, another pair at almost
    every batch size."""
    found, row = row_of(prepared[f"ncu/b{batch}"], "conv2", "backward")
    judged = found.judgement.get_row_causes(batch, "conv2", "backward")
    assert row.ratio is not None and row.ratio < 0.8
    assert rule in {cause.rule for cause in judged.causes}
    assert judged.unexplained is not None and judged.unexplained < 0.01
