"""perfctl infer and perfctl prepare, as a user calls them."""

import io
import shlex
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest

TABLE = Path(__file__).resolve().parent.parent / "data" / "imagenet-devkit"

pytestmark = pytest.mark.skipif(
    find_spec("torchvision") is None, reason="torchvision is not installed"
)


@pytest.mark.usefixtures("quick_sweeps")
def test_a_sweep_over_models_keeps_each_run_apart_and_goes_on(perfctl, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = "infer --models squeezenet1_1,shufflenet_v2_x0_5 --images 4 --weights none --warmup 1"
    said = perfctl(f"{words} --batches 2").ok()
    folders = sorted(Path("perfctl-runs").iterdir())
    assert [folder.name.rsplit("-", 1)[0] for folder in folders] == ["none-torchvision_infer"] * 2
    lines = [line.split() for line in said.out.splitlines()]
    latency = {
        line[0]: line[1]
        for line in lines
        if line and line[0] in ("squeezenet1_1", "shufflenet_v2_x0_5")
    }
    assert latency["squeezenet1_1"] == latency["shufflenet_v2_x0_5"] == "2"
    assert "the weights are random" in said.out

    again = perfctl(f"{words} --batches 2").ok()
    assert again.err.count("already complete, skipped") == 2
    told = perfctl(f"{words} --batches 2 --json").json
    assert [(one["model"], [run["status"] for run in one["runs"]]) for one in told] == [
        ("squeezenet1_1", ["ok"]),
        ("shufflenet_v2_x0_5", ["ok"]),
    ]
    runs = perfctl("runs --json").json
    assert [(run["profiler"], run["batch_size"], run["mode"]) for run in runs] == [
        ("none", 2, "infer")
    ] * 2

    perfctl("report --out page.html").ok()
    assert "Latency of a batch" in Path("page.html").read_text()
    one = perfctl("show", runs[0]["id"])
    assert "Latency of a batch" in one.out
    names = [row["name"] for row in perfctl(f"show {runs[0]['id']} --json").json["summaries"]]
    assert sorted(names) == sorted(set(names)), (
        "the record is the report, and must not be read twice"
    )


def test_a_dry_run_prints_one_command_a_model_and_batch(perfctl):
    said = perfctl(
        "infer --models vgg11,alexnet --batches 1,5 --profiler torch --images 20 --dry-run"
    ).ok()
    lines = [shlex.split(line) for line in said.out.splitlines()]
    asked = [(line[line.index("--model") + 1], line[line.index("--batch") + 1]) for line in lines]
    assert asked == [("vgg11", "1"), ("vgg11", "5"), ("alexnet", "1"), ("alexnet", "5")]
    assert all(line[line.index("--window") + 1] == "torch" for line in lines)
    assert list(Path().iterdir()) == []


def write_tar(name, members):
    with tarfile.open(name, "w") as archive:
        for member_name, content in members.items():
            member = tarfile.TarInfo(member_name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return name


@pytest.fixture
def archives(perfctl):
    truth = "data/ILSVRC2012_validation_ground_truth.txt"
    kit = write_tar(
        "kit.tar", {truth: b"1\n2\n3\n", "data/meta.mat": (TABLE / "meta.mat").read_bytes()}
    )
    return write_tar(
        "val.tar", {f"ILSVRC2012_val_0000000{number}.JPEG": b"image" for number in (1, 2)}
    ), kit


def test_prepare_sorts_says_what_is_missing_and_goes_on(perfctl, archives):
    archive, kit = archives
    said = perfctl(f"prepare imagenet-val {archive} --devkit {kit} --out sorted").ok()
    assert "Wrote 2 of 3 images in 3 class folders to sorted" in said.out
    assert "the archive lacks 1 images" in said.err
    assert "does not compare the MD5 sum" in said.err
    assert Path("sorted/n02119789/ILSVRC2012_val_00000001.JPEG").read_bytes() == b"image"
    again = perfctl(f"prepare imagenet-val {archive} --devkit {kit} --out sorted --no-verify")
    assert "2 of them already existed" in again.out
    assert "MD5" not in again.err
    told = perfctl(f"prepare imagenet-val {archive} --devkit {kit} --out sorted --json").json
    counts = {"images": 2, "total": 3, "existing": 2, "classes": 3}
    assert told == {
        "schema": "perfctl.prepare/2",
        "folder": "sorted",
        **counts,
        "ignored": [],
        "misplaced": [],
    }


def test_prepare_refuses_what_it_does_not_know(perfctl, archives):
    archive, kit = archives
    assert perfctl(f"prepare coco {archive} --devkit {kit}").code == 2
    gone = perfctl(f"prepare imagenet-val gone.tar --devkit {kit}")
    assert (gone.code, "gone.tar: file not found" in gone.err) == (2, True)
    perfctl(f"prepare imagenet-val {kit} --devkit {archive}").ends(
        1, "has no ILSVRC2012_validation_ground_truth.txt"
    )


def test_prepare_compares_the_checksum_of_a_published_name(perfctl, archives):
    archive, kit = archives
    Path(archive).rename("ILSVRC2012_img_val.tar")
    perfctl(f"prepare imagenet-val ILSVRC2012_img_val.tar --devkit {kit}").ends(
        1, "but that of the published file is 29b22e2961454d5413ddabcf34fc5622"
    )
    assert not Path("imagenet-val").exists()
