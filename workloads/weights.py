"""torchvision's models by name, with their published weights, those of a file, or none. torch loads when one is built."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile, is_zipfile

from perfctl.workloads.models import ModelError, build_model, torchvision_size
from perfctl.workloads.spec import WorkloadError, first_line

if TYPE_CHECKING:
    import torch

FAMILIES = ("classification", "segmentation", "detection", "video")
_FETCH_LIMIT_S = 30.0
"""Silence after which a download counts as impossible."""
_NESTED = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts put the weights into a checkpoint."""
_SHOWN = 3
_UNREADABLE = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError, EOFError)
"""What torch's reader raises for damaged and hostile files, beside its own error."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """A model in memory, and what its weights are."""

    model: torch.nn.Module
    family: str
    """One of FAMILIES."""
    weights: str
    """For the record: "ResNet18_Weights.IMAGENET1K_V1", the file's name, or "none"."""
    trained: bool
    transforms: Any
    """The preprocessing that goes with the published weights: image (or clip) in, tensor out."""
    classes: int | None
    """How many classes a classifier answers; None for other families."""


def family_of(name: str) -> str:
    """The family of a model. Raises WorkloadError for a name that torchvision lacks, with the nearest that it has."""
    try:
        from torchvision import models
    except ImportError as error:
        raise WorkloadError(
            f"torchvision cannot be imported ({first_line(error)}): pip install 'perfctl[torch]'"
        ) from error
    modules = (models, models.segmentation, models.detection, models.video)
    names = {
        model: family for family, part in zip(FAMILIES, modules, strict=True) for model in models.list_models(part)
    }
    if name in names:
        return names[name]
    if name in models.list_models():
        raise WorkloadError(f"{name} is neither a {', a '.join(FAMILIES[:3])} nor a {FAMILIES[3]} model of torchvision")
    near = get_close_matches(name.lower().replace("-", "_"), names, 3, 0.5)
    meant = f"did you mean {' or '.join(near)}" if near else f"it has {len(names)} (resnet18, vit_b_16, ...)"
    raise WorkloadError(
        f"torchvision has no model '{name}': {meant}?" if near else f"torchvision has no model '{name}': {meant}"
    )


def load(name: str, asked: str, folder: Path | None = None, classes: int | None = None) -> Weighted:
    """The model with the weights ``asked`` for: "default", "none", or a checkpoint file.

    ``folder`` is where published weights lie, or are put; ``classes`` goes with "none" and files alone.
    Raises WorkloadError, one line, when they cannot be had or do not fit.
    """
    family = family_of(name)
    from torchvision import models

    published = models.get_model_weights(name).DEFAULT
    transforms = published.transforms()
    if asked == "default":
        model = _published(name, published, folder)
        answers = len(published.meta["categories"]) if family == "classification" else None
        return Weighted(model.eval(), family, str(published), True, transforms, answers)
    model = _build(name, _settings(name, family, classes, from_file=asked != "none"))
    answers = (classes or len(published.meta["categories"])) if family == "classification" else None
    if asked == "none":
        return Weighted(model.eval(), family, "none", False, transforms, answers)
    file = Path(asked)
    fit(model, file, name)
    if name == "googlenet":
        model.aux_logits, model.aux1, model.aux2 = False, None, None  # type: ignore[assignment]
    return Weighted(model.eval(), family, file.name, True, transforms, answers)


def _settings(name: str, family: str, classes: int | None, *, from_file: bool) -> dict[str, Any]:
    """Arguments with which the builder makes the network of the published weights, without fetching any."""
    from torchvision import models

    builder = models.get_model_builder(name)
    settings: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        settings["weights_backbone"] = None
    if family == "segmentation" and "lraspp" not in name:
        settings["aux_loss"] = True
    if name in ("googlenet", "inception_v3"):
        settings |= {"init_weights": False, "transform_input": True, "aux_logits": from_file or name == "inception_v3"}
    if name.startswith("vit_") and (size := torchvision_size(name)):
        settings["image_size"] = size[-1]
    if classes is not None:
        settings["num_classes"] = classes
    return settings


def _build(name: str, settings: dict[str, Any]) -> torch.nn.Module:
    from torchvision import models

    builder = models.get_model_builder(name)
    try:
        return build_model(lambda: builder(**settings), f"torchvision:{name}", "cpu")
    except ModelError as error:
        raise WorkloadError(error.message) from error


def _published(name: str, published: Any, folder: Path | None) -> torch.nn.Module:
    import torch
    from torchvision import models

    file = Path(published.url).name
    place = _place_of(file, folder)
    there = (place / file).is_file()
    builder = models.get_model_builder(name)
    settings: dict[str, Any] = {"weights": published}
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _checkpoints_in(place):
            return builder(**settings)  # type: ignore[no-any-return]
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        why = first_line(error)
        if there:
            raise WorkloadError(
                f"{name}: {place / file} cannot be read ({why}). Remove it and fetch it again, or say --weights none"
            ) from error
        raise WorkloadError(
            f"{name}: {file} is not in {place} and cannot be fetched ({why}). Put {published.url} there, or say "
            "--weights-dir DIR, FILE or none"
        ) from error


def _place_of(file: str, folder: Path | None) -> Path:
    """The folder that holds ``file``, else the one it is to go to. A cache folder of torch's may be named, too."""
    import torch

    if folder is None:
        return Path(torch.hub.get_dir()) / "checkpoints"
    below = (folder, folder / "checkpoints", folder / "hub" / "checkpoints")
    return next((place for place in below if (place / file).is_file()), folder)


@contextmanager
def _checkpoints_in(place: Path) -> Iterator[None]:
    """torchvision looks for published weights, and puts what it fetches, in ``place``; no attempt waits for ever."""
    from torchvision.models import _api

    given, limit = _api.load_state_dict_from_url, socket.getdefaulttimeout()
    _api.load_state_dict_from_url = partial(given, model_dir=str(place), map_location="cpu")
    socket.setdefaulttimeout(_FETCH_LIMIT_S)
    try:
        yield
    finally:
        _api.load_state_dict_from_url = given
        socket.setdefaulttimeout(limit)


def fit(model: torch.nn.Module, file: Path, name: str) -> None:
    """Put the checkpoint's weights into the model. Raises WorkloadError naming the keys that do not fit."""
    state = read_checkpoint(file)
    own = model.state_dict()
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    other = [
        f"{key} is {_shape(state[key])}, needed {_shape(own[key])}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    wrong = [
        f"{len(keys)} {what} ({', '.join(keys[:_SHOWN])}{', ...' if len(keys) > _SHOWN else ''})"
        for what, keys in (("missing", missing), ("unknown", unknown), ("of another shape", other))
        if keys
    ]
    if wrong:
        classes = ". With a number of classes of its own, say --classes N" if other and not missing else ""
        raise WorkloadError(f"{file} does not fit {name}; keys: {'; '.join(wrong)}{classes}")
    model.load_state_dict(state)


def read_checkpoint(file: Path) -> dict[str, torch.Tensor]:
    """Tensors by key, on the CPU. Nothing in the file is run. Raises WorkloadError."""
    from pickle import UnpicklingError  # nosec B403

    import torch

    if not file.is_file():
        raise WorkloadError(f"--weights {file}: there is no such file; say default, none, or the path of a checkpoint")
    _refuse_bomb(file)
    try:
        found = torch.load(os.fspath(file), map_location="cpu", weights_only=True)
    except (*_UNREADABLE, UnpicklingError) as error:
        raise WorkloadError(
            f"{file} cannot be read as a checkpoint of tensors ({first_line(error)[:200]}). Save model.state_dict() alone"
        ) from error
    for key in _NESTED:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    tensors = isinstance(found, dict) and found and all(isinstance(value, torch.Tensor) for value in found.values())
    if not tensors:
        raise WorkloadError(f"{file} holds no table of tensors (state_dict). Save model.state_dict() alone")
    return {str(key).removeprefix("module."): value for key, value in found.items()}


def _refuse_bomb(file: Path) -> None:
    """torch stores tensors as they are in its zip files; one that holds more than its size would fill the memory."""
    if not is_zipfile(file):
        return
    try:
        with ZipFile(file) as archive:
            held = sum(member.file_size for member in archive.infolist())
    except (BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise WorkloadError(f"{file} is a damaged zip file ({first_line(error)[:200]}). Copy it again") from error
    if held > file.stat().st_size:
        raise WorkloadError(
            f"{file} unpacks to {held:,} bytes, more than its own {file.stat().st_size:,}, which no checkpoint of torch "
            "does. Save model.state_dict() alone"
        )


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"
