"""Weights and checkpoints for inference: found, fetched or refused, each refusal in one line, and
nothing in them runs."""

from urllib.error import URLError

import pytest
import torch

from perfctl.workloads.models.torchvision import (
    load_checkpoint_into_model,
    load_torchvision_model,
    read_checkpoint_tensors,
)
from perfctl.workloads.spec import WorkloadError
from tests.workloads import imagenet_shaped as shaped


def test_a_model_that_is_mistyped_gets_its_neighbour():
    with pytest.raises(WorkloadError, match="no model 'resnet_18': did you mean resnet18"):
        load_torchvision_model("resnet_18", "none")
    with pytest.raises(WorkloadError, match="no model 'Dense-Net121': did you mean densenet121"):
        load_torchvision_model("Dense-Net121", "none")
    with pytest.raises(WorkloadError, match="neither a classification"):
        load_torchvision_model("raft_small", "none")


def test_a_checkpoint_that_does_not_fit_names_its_keys(tmp_path):
    state = torch.load(shaped.save(tmp_path / "colours.pth"), weights_only=True)
    del state["features.0.bias"]
    state["extra.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "other.pth")
    with pytest.raises(WorkloadError) as raised:
        load_torchvision_model("squeezenet1_1", str(tmp_path / "other.pth"), classes=5)
    said = str(raised.value)
    assert "1 missing (features.0.bias)" in said
    assert "1 unknown (extra.weight)" in said
    assert "classifier.1.weight is 7x512x1x1, needed 5x512x1x1" in said
    assert "\n" not in said


def test_a_checkpoint_of_a_training_script_is_unwrapped(tmp_path):
    model = torch.nn.Linear(2, 3)
    state = {f"module.{key}": value for key, value in torch.nn.Linear(2, 3).state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "c.pth")
    load_checkpoint_into_model(model, tmp_path / "c.pth", "linear")
    assert torch.equal(model.weight, state["module.weight"])


class Trap:
    """What a hostile checkpoint would run."""

    def __reduce__(self):
        return exec, ("raise SystemExit('this was run')",)


def test_a_file_that_is_no_checkpoint_is_one_line_and_nothing_in_it_runs(tmp_path):
    for name, content in (("text.pth", b"hello"), ("empty.pth", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(WorkloadError, match=f"{name} is not a checkpoint of tensors"):
            read_checkpoint_tensors(tmp_path / name)
    torch.save({"a": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(WorkloadError, match=r"trap.pth is not a checkpoint of tensors"):
        read_checkpoint_tensors(tmp_path / "trap.pth")
    torch.save({"epoch": 3}, tmp_path / "other.pth")
    with pytest.raises(WorkloadError, match="has no state_dict"):
        read_checkpoint_tensors(tmp_path / "other.pth")
    with pytest.raises(WorkloadError, match="does not exist"):
        read_checkpoint_tensors(tmp_path / "none.pth")


@pytest.fixture
def no_network(monkeypatch):
    """Nothing can be fetched, whatever this machine could do."""

    def refuse(*arguments, **options):
        raise URLError("no network here")

    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)


@pytest.mark.usefixtures("no_network")
def test_weights_that_cannot_be_fetched_are_one_line(tmp_path):
    with pytest.raises(WorkloadError) as raised:
        load_torchvision_model("squeezenet1_1", "default", tmp_path)
    said = str(raised.value)
    assert "squeezenet1_1-b8a52dc0.pth" in said
    assert f"is not in {tmp_path} and cannot be downloaded" in said
    assert "no network here" in said
    assert "`weights_dir`" in said
    assert "\n" not in said


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("below", [".", "checkpoints", "hub/checkpoints"])
def test_published_weights_are_found_in_a_folder_or_a_cache(tmp_path, below):
    torch.manual_seed(1)
    made = load_torchvision_model("squeezenet1_1", "none").model.state_dict()
    place = tmp_path / below
    place.mkdir(parents=True, exist_ok=True)
    torch.save(made, place / "squeezenet1_1-b8a52dc0.pth")
    found = load_torchvision_model("squeezenet1_1", "default", tmp_path)
    assert (found.weights, found.trained, found.classes) == (
        "SqueezeNet1_1_Weights.IMAGENET1K_V1",
        True,
        1000,
    )
    assert all(torch.equal(value, made[key]) for key, value in found.model.state_dict().items())


@pytest.mark.usefixtures("no_network")
def test_published_weights_that_are_cut_off_are_one_line(tmp_path):
    (tmp_path / "squeezenet1_1-b8a52dc0.pth").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(WorkloadError, match="cannot be read") as raised:
        load_torchvision_model("squeezenet1_1", "default", tmp_path)
    assert "\n" not in str(raised.value)
