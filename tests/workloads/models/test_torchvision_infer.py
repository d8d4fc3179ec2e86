"""Inference with torchvision's models: exact accuracy on plain colours, and every refusal in one
clear line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perfctl.workloads.models import torchvision
from perfctl.workloads.run import loop
from perfctl.workloads.run.options import parse_workload_arguments
from perfctl.workloads.spec import WorkloadError, WorkloadOptions
from tests.workloads import imagenet_shaped as shaped

pytestmark = [
    pytest.mark.filterwarnings("ignore:CUDA initialization"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    file: Path = shaped.save(tmp_path_factory.mktemp("weights") / "colours.pth")
    return file


def run(words, *more):
    options, own = parse_workload_arguments(
        "torchvision_infer", [*words.split(), "--warmup", "1", *more]
    )
    return loop.run_workload(torchvision, options, own)


def on_folder(folder, checkpoint, words):
    common = f"--model {shaped.MODEL} --classes {shaped.CLASSES} --data imagenet"
    return run(f"{common} {words}", "--data-dir", str(folder), "--weights", str(checkpoint))


def figures(record):
    return {item.name: item.value for item in record.summaries}


def reasons(record):
    return {gap.quantity: gap.reason for gap in record.gaps}


@pytest.mark.parametrize(
    "words", ["--batch 1", "--batch 4", "--batch 14", "--batch 5 --dataloader-workers 2"]
)
def test_top1_top5_and_loss_are_exact_at_every_batch_size(tmp_path, checkpoint, words):
    # Yellow lies in the folder of red, and white in that of blue: two of seven classes are
    # answered wrongly.
    wrong = {"n00000001": "n00000004", "n00000003": "n00000007"}
    shaped.write_images(tmp_path, 2, wrong)
    record = on_folder(tmp_path, checkpoint, words)
    given = [shaped.answers(shaped.COLOURS[wrong.get(name, name)]) for name in shaped.COLOURS]
    first, among, loss = shaped.slow(given, list(range(shaped.CLASSES)))
    assert first == 5
    found = figures(record)
    assert (found["images"], found["images_skipped"]) == (14, 0)
    assert (found["top1"], found["top5"]) == (first / 7, among / 7)
    assert found["loss"] == pytest.approx(loss / 7, abs=1e-3)


def test_phases_lie_within_their_step_and_a_batch_that_is_not_full_is_scored_and_not_timed(
    tmp_path, checkpoint
):
    shaped.write_images(tmp_path, 2)
    record = on_folder(tmp_path, checkpoint, "--batch 4")
    assert Counter(row.phase for row in record.steps) == {
        "step": 3,
        "data": 3,
        "copy": 6,
        "inference": 3,
        "rest": 1,
    }
    assert (figures(record)["images"], figures(record)["top1"]) == (14, 1.0)
    for number in range(3):
        whole, *parts = (row for row in record.steps if row.number == number)
        assert [row.phase for row in (whole, *parts)] == [
            "step",
            "data",
            "copy",
            "inference",
            "copy",
        ]
        assert sum(row.duration_ns or 0 for row in parts) <= (whole.duration_ns or 0)
        assert (whole.loss, whole.accuracy) != (None, None)


def test_a_corrupt_image_is_skipped_counted_and_named(tmp_path, checkpoint):
    shaped.write_images(tmp_path, 2)
    whole = (tmp_path / "n00000002" / "image1.png").read_bytes()
    (tmp_path / "n00000002" / "image1.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "n00000005" / "image0.png").write_bytes(b"no image at all")
    record = on_folder(tmp_path, checkpoint, "--batch 5 --dataloader-workers 1")
    found = figures(record)
    assert (found["images"], found["images_skipped"], found["top1"]) == (12, 2, 1.0)
    said = next(
        gap for gap in record.gaps if gap.quantity == "images" and gap.state == "unreadable"
    )
    assert said.reason.startswith("2 images could not be read")
    assert "n00000002/image1.png: " in said.reason
    assert "n00000005/image0.png: cannot identify image file" in said.reason
    assert record.status == "ok"


def test_a_class_folder_that_is_missing_is_named_or_makes_the_numbers_unknown(tmp_path, checkpoint):
    shaped.write_images(tmp_path, 1)
    (tmp_path / "n00000004" / "image0.png").unlink()
    (tmp_path / "n00000004").rmdir()
    with pytest.raises(WorkloadError, match="has 6 class folders, but the model has 7 classes"):
        on_folder(tmp_path, checkpoint, "--batch 2")
    (tmp_path / "classes.txt").write_text("\n".join(shaped.COLOURS) + "\n")
    with pytest.raises(
        WorkloadError, match=r"lacks 1 of the 7 class folders in classes\.txt: n00000004"
    ) as raised:
        on_folder(tmp_path, checkpoint, "--batch 2")
    assert "\n" not in str(raised.value)


def test_an_empty_class_folder_keeps_the_numbers_of_the_others(tmp_path, checkpoint):
    shaped.write_images(tmp_path, 1)
    (tmp_path / "n00000001" / "image0.png").unlink()
    assert figures(on_folder(tmp_path, checkpoint, "--batch 3"))["top1"] == 1.0


def test_the_same_images_are_drawn_for_every_batch_size(tmp_path, checkpoint):
    shaped.write_images(tmp_path, 2, {"n00000001": "n00000004"})
    one, three = (
        figures(on_folder(tmp_path, checkpoint, f"--batch {batch} --images 6")) for batch in (1, 3)
    )
    assert one["images"] == three["images"] == 6
    assert one["top1"] == three["top1"]
    assert one["loss"] == pytest.approx(three["loss"])


def test_fewer_images_than_asked_for_is_said(tmp_path, checkpoint):
    shaped.write_images(tmp_path, 1)
    record = on_folder(tmp_path, checkpoint, "--batch 2 --images 3000")
    assert figures(record)["images"] == 7
    assert "has only 7 of the 3000 requested images" in reasons(record)["images"]
    with pytest.raises(WorkloadError, match="has 7 images, too few for a batch of 8"):
        on_folder(tmp_path, checkpoint, "--batch 8")


def test_random_weights_claim_no_accuracy_and_few_batches_no_tails():
    record = run("--batch 2 --images 4 --weights none --model squeezenet1_1")
    found = figures(record)
    assert found["latency_p50"] is not None
    assert (found["latency_p95"], found["latency_p99"]) == (None, None)
    assert "at least 20 are needed" in reasons(record)["latency_p95"]
    for name in ("top1", "top5", "loss"):
        assert figures(record)[name] is None
        assert "the weights are random" in reasons(record)[name]
    assert all((row.loss, row.accuracy) == (None, None) for row in record.steps)
    assert record.environment["weights"] == "none"
    assert record.variant == "model=squeezenet1_1 weights=none"


def test_synthetic_images_claim_no_accuracy(checkpoint):
    record = run(
        f"--batch 2 --images 4 --model squeezenet1_1 --classes {shaped.CLASSES} --weights "
        f"{checkpoint}"
    )
    assert figures(record)["top1"] is None
    assert "random pixels" in reasons(record)["top1"]
    assert "not read and decoded" in reasons(record)["step:data"]


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("mobilenet_v3_small", "classification"),
        ("lraspp_mobilenet_v3_large", "segmentation"),
        ("ssdlite320_mobilenet_v3_large", "detection"),
        ("r3d_18", "video"),
    ],
)
def test_a_model_of_each_family_runs(model, family):
    record = run(f"--batch 1 --images 1 --weights none --model {model}")
    assert (record.status, record.environment["family"], record.mode) == ("ok", family, "infer")
    assert any(op.op.startswith("aten.conv") for op in record.ops)
    assert figures(record)["images_per_second"] is not None


@pytest.mark.parametrize(
    ("words", "steps", "images"), [("", 200, 3000), ("--images 100", 6, 100), ("--steps 7", 7, 105)]
)
def test_images_decide_the_steps_or_the_other_way_round(words, steps, images):
    options, own = parse_workload_arguments(
        "torchvision_infer", ["--batch", "15", "--model", "x", *words.split()]
    )
    assert (options.steps, own.images, options.mode) == (steps, images, "infer")


def test_a_detection_model_is_not_given_classes_of_whole_images(tmp_path):
    own = torchvision.Own("ssdlite320_mobilenet_v3_large", weights="none", images=1)
    options = WorkloadOptions(batch_size=1, mode="infer", data="imagenet", data_dir=tmp_path)
    with pytest.raises(
        WorkloadError, match="is a detection model, which ImageNet classes cannot score"
    ):
        torchvision.build(options, own)
