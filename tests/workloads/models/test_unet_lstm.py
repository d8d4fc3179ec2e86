"""The two networks of the CPU and GPU study: their sizes and FLOPs from the dimensions, and that
they learn."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from perfctl.orchestrator.estimate.flops.engine import (
    BACKWARD,
    build_layer_calls_with_flops,
    sum_layer_call_work,
)
from perfctl.workloads.data.shapes import generate_shape_images_and_masks, read_images_and_masks
from perfctl.workloads.data.texts import encode_characters, generate_synthetic_texts, read_texts
from perfctl.workloads.models import lstm, unet
from perfctl.workloads.run.loop import compute_dice, count_mask_overlaps, run_workload
from perfctl.workloads.run.options import parse_workload_arguments
from perfctl.workloads.run.setup import count_direct_parameters_by_module
from perfctl.workloads.spec import WorkloadError
from perfctl.workloads.tracing.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


def flops(model, inputs, targets):
    """(forward, backward) on paper, of one training step seen on the meta device: nothing
    is computed."""
    model.to("meta")
    with Recorder(model) as recorder:
        cross_entropy(model(inputs.to("meta")), targets.to("meta")).backward()
    calls = build_layer_calls_with_flops(recorder.ops)
    assert not sum_layer_call_work(calls, ("forward", *BACKWARD)).missing
    return sum_layer_call_work(calls, ("forward",)).flops, sum_layer_call_work(
        calls, BACKWARD
    ).flops


def test_unet_has_31_037_763_parameters_with_transposed_convolutions_and_no_bias_before_a_normalisation():
    wide = [64 << level for level in range(5)]
    blocks = [(3, 64), *pairwise(wide), *((b, a) for a, b in pairwise(wide))]
    by_hand = sum(9 * i * o + 9 * o * o + 4 * o for i, o in blocks)
    by_hand += sum(4 * b * a + a for a, b in pairwise(wide)) + 64 * 3 + 3
    assert by_hand == 31_037_763
    assert sum(count_direct_parameters_by_module(unet.build_unet()).values()) == by_hand


def test_bilstm_has_2_372_618_parameters_with_128_characters_and_256_units():
    by_hand = (
        sum(2 * (4 * 256 * (width + 256) + 2 * 4 * 256) for width in (128, 512)) + 512 * 10 + 10
    )
    assert by_hand == 2_372_618
    assert sum(count_direct_parameters_by_module(lstm.build_bilstm()).values()) == by_hand


def test_unet_counts_24_and_48_gflop_at_batch_1():
    images, masks = torch.zeros(1, 3, 128, 128), torch.zeros(1, 128, 128, dtype=torch.int64)
    assert flops(unet.build_unet(), images, masks) == (24_087_887_872, 48_119_152_640)


def test_bilstm_counts_15_and_28_gflop_at_batch_32_and_100_characters():
    codes, labels = torch.zeros(32, 100, dtype=torch.int64), torch.zeros(32, dtype=torch.int64)
    assert flops(lstm.build_bilstm(), codes, labels) == (15_099_822_080, 28_454_813_696)


@pytest.mark.parametrize("upsampling", unet.UPSAMPLINGS)
def test_a_mask_has_the_size_of_its_image(upsampling):
    assert unet.build_unet(2, 5, upsampling)(torch.zeros(2, 3, 32, 48)).shape == (2, 5, 32, 48)


def learnt(name, line):
    options, own = parse_workload_arguments(
        name, f"--steps 1 --warmup 1 --threads 1 {line}".split()
    )
    return run_workload({"unet": unet, "lstm": lstm}[name], options, own)  # type: ignore[arg-type]


def test_lstm_learns_the_order_of_letters():
    size = "--hidden 24 --length 6 --classes 4"
    record = learnt("lstm", f"--batch 32 --samples 800 --epochs 8 {size}")
    epochs = [row for row in record.steps if row.phase == "epoch"]
    assert max(row.accuracy for row in epochs) > 0.9
    assert epochs[-1].loss < epochs[0].loss / 2


def test_unet_learns_to_tell_discs_from_squares():
    size = "--base-width 8 --image-size 32"
    record = learnt("unet", f"--batch 8 --samples 160 --epochs 5 {size}")
    scores = [row.value for row in record.summaries if row.name.startswith("dice:epoch:")]
    assert len(scores) == 5
    assert max(scores) > 0.8


def test_letters_without_their_order_say_half():
    """Each pair of capitals is in two classes alike."""
    codes, labels = generate_synthetic_texts(200, 12, 10, seed=3).tensors
    for text, label in zip(codes, labels, strict=True):
        capitals = [chr(code) for code in text if code < ord("a")]
        first = ord("A") + int(label) // 2 * 2
        expected = [chr(first), chr(first + 1)]
        assert capitals == (expected[::-1] if label % 2 else expected)
    assert torch.bincount(labels).tolist() == [20] * 10


def test_the_same_seed_draws_the_same_and_another_draws_others():
    first, again, other = (
        generate_shape_images_and_masks(5, 32, seed).tensors for seed in (1, 1, 2)
    )
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert first[1].unique().tolist() == [0, 1, 2]


def test_dice_is_twice_the_overlap_over_both_and_leaves_the_background_out():
    targets = torch.tensor([[0, 1, 1, 2]])
    found = torch.tensor([[0, 1, 2, 2]])
    # class 1: 2*1/(1+2); class 2: 2*1/(2+1)
    assert compute_dice(count_mask_overlaps(found, targets, 3)) == pytest.approx(2 / 3)
    assert compute_dice(count_mask_overlaps(targets, targets, 3)) == 1.0
    background = torch.zeros(1, 4, dtype=torch.int64)
    assert compute_dice(count_mask_overlaps(background, background, 3)) is None


def test_texts_come_from_csv_with_classes_by_name(tmp_path):
    rows = [
        "text,label",
        *(f'"{word}, {at}",{word}' for at in range(5) for word in ("good", "bad")),
    ]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    train, test = read_texts(tmp_path, 8, 2)
    assert (len(train), len(test)) == (8, 2)
    assert (
        train.tensors[0][0].tolist()
        == encode_characters("bad, 0", 8).tolist()
        == [*b"bad, 0", 0, 0]
    )
    assert train.tensors[1].tolist()[:2] == [0, 1]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("a,b\n1,2\n", "needs columns"),
        ("text,label\nx,0\ny,\n", "record 3 has no label"),
        ("text,label\n" + "x,7\n" * 6, "set `classes` to 8"),
        ("text,label\nx,0\n", "too few rows"),
    ],
)
def test_a_bad_csv_is_named_with_what_is_wrong(tmp_path, content, what):
    (tmp_path / "train.csv").write_text(content)
    with pytest.raises(WorkloadError, match=what):
        read_texts(tmp_path, 8, 2)


def test_images_and_masks_are_paired_by_name(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for part, mode, colour in (("images", "RGB", (255, 0, 0)), ("masks", "L", 2)):
        (tmp_path / part).mkdir()
        for at in range(5):
            image.new(mode, (20, 10), colour).save(tmp_path / part / f"{at}.png")
    train, test = read_images_and_masks(tmp_path, 16, 3)
    assert (len(train), len(test)) == (4, 1)
    pixels, mask = train[0]
    assert pixels.shape == (3, 16, 16)
    assert pixels[:, 0, 0].tolist() == [1.0, -1.0, -1.0]
    assert mask.dtype == torch.int64
    assert mask.unique().tolist() == [2]
    with pytest.raises(WorkloadError, match="values up to 2"):
        read_images_and_masks(tmp_path, 16, 2)[0][0]
    (tmp_path / "masks" / "0.png").unlink()
    with pytest.raises(WorkloadError, match="in only one of images and masks"):
        read_images_and_masks(tmp_path, 16, 3)


def test_compiling_changes_the_variant_and_neither_the_steps_nor_the_losses(monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, *_, **__: seen.append(type(self).__name__)
    )
    monkeypatch.setenv("CXX", "never-called")
    small = "--batch 4 --hidden 3 --length 4 --samples 8 --epochs 1 --seed 3 --steps 2 --warmup 4"
    records = []
    for more in ("", " --compile"):
        options, own = parse_workload_arguments("lstm", f"{small}{more}".split())
        records.append(run_workload(lstm, options, own))
    assert seen == ["BiLSTM"]
    losses = [[(row.phase, row.number, row.loss) for row in record.steps] for record in records]
    assert losses[0] == losses[1]
    assert records[1].variant == f"{records[0].variant} compile=True"


def test_compiling_without_a_compiler_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    options, own = parse_workload_arguments("lstm", ["--batch", "2", "--compile"])
    with pytest.raises(WorkloadError, match="needs a C\\+\\+ compiler"):
        run_workload(lstm, options, own)
