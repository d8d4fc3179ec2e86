"""Build torchvision models with published weights, weights from a file, or random ones. Imports torch when needed."""

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
"""Socket timeout of a download."""
_NESTED = ("state_dict", "model", "model_state_dict")
"""Keys of the weights in checkpoints of training scripts."""
_SHOWN = 3
_UNREADABLE = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError, EOFError)
"""What torch.load raises for damaged and hostile files, besides UnpicklingError."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """A model and the facts about its weights."""

    model: torch.nn.Module
    family: str
    """One of FAMILIES."""
    weights: str
    """For the record: "ResNet18_Weights.IMAGENET1K_V1", the file's name, or "none"."""
    trained: bool
    transforms: Any
    """The preprocessing of the published weights, from an image (or clip) to a tensor."""
    classes: int | None
    """Number of classes of a classifier; None for other families."""


def family_of(name: str) -> str:
    """The family of a model. Raises WorkloadError for an unknown name, with similar ones."""
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
    meant = f"did you mean {' or '.join(near)}?" if near else f"it has {len(names)} (resnet18, vit_b_16, ...)"
    raise WorkloadError(f"torchvision has no model '{name}': {meant}")


def load(name: str, asked: str, folder: Path | None = None, classes: int | None = None) -> Weighted:
    """The model with the weights ``asked``: "default" (published), "none" (random), or a checkpoint file.

    ``folder``: for published weights; ``classes``: only with "none" and files. Raises WorkloadError when the weights are
    unavailable or do not fit.
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
    """Arguments for the builder that give the model of the published weights, without downloading them."""
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
                f"{name}: {place / file} cannot be read ({why}). Remove it and download it again, or set `weights` to none"
            ) from error
        raise WorkloadError(
            f"{name}: {file} is not in {place} and cannot be downloaded ({why}). Put {published.url} there, set `weights_dir`, "
            "or set `weights` to a file or none"
        ) from error


def _place_of(file: str, folder: Path | None) -> Path:
    """The folder that has ``file``, else the one to put it into. ``folder`` may be a cache of torch."""
    import torch

    if folder is None:
        return Path(torch.hub.get_dir()) / "checkpoints"
    below = (folder, folder / "checkpoints", folder / "hub" / "checkpoints")
    return next((place for place in below if (place / file).is_file()), folder)


@contextmanager
def _checkpoints_in(place: Path) -> Iterator[None]:
    """During the block, torchvision reads and downloads published weights in ``place``, with a timeout."""
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
    """Load the checkpoint's weights into the model. Raises WorkloadError with the keys that do not fit."""
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
        classes = ". If it has another number of classes, set `classes`" if other and not missing else ""
        raise WorkloadError(f"{file} does not fit {name}; keys: {'; '.join(wrong)}{classes}")
    model.load_state_dict(state)


def read_checkpoint(file: Path) -> dict[str, torch.Tensor]:
    """Tensors by key, on the CPU. Executes nothing in the file. Raises WorkloadError."""
    from pickle import UnpicklingError  # nosec B403

    import torch

    if not file.is_file():
        raise WorkloadError(f"`weights`: {file} does not exist; use default, none, or the path of a checkpoint")
    _refuse_bomb(file)
    try:
        found = torch.load(os.fspath(file), map_location="cpu", weights_only=True)
    except (*_UNREADABLE, UnpicklingError) as error:
        raise WorkloadError(
            f"{file} is not a checkpoint of tensors ({first_line(error)[:200]}). Save only model.state_dict()"
        ) from error
    for key in _NESTED:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    tensors = isinstance(found, dict) and found and all(isinstance(value, torch.Tensor) for value in found.values())
    if not tensors:
        raise WorkloadError(f"{file} has no state_dict. Save only model.state_dict()")
    return {str(key).removeprefix("module."): value for key, value in found.items()}


def _refuse_bomb(file: Path) -> None:
    """Raises WorkloadError for a zip file that expands: torch stores tensors uncompressed, and a bomb would fill memory."""
    if not is_zipfile(file):
        return
    try:
        with ZipFile(file) as archive:
            held = sum(member.file_size for member in archive.infolist())
    except (BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise WorkloadError(f"{file} is a damaged zip file ({first_line(error)[:200]}). Copy it again") from error
    if held > file.stat().st_size:
        raise WorkloadError(
            f"{file} unpacks to {held:,} bytes but has {file.stat().st_size:,}, unlike a checkpoint of torch. "
            "Save only model.state_dict()"
        )


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"
