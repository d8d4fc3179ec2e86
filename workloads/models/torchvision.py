"""Workload: inference with torchvision's classification, segmentation, detection and
video models."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zipfile import BadZipFile, ZipFile, is_zipfile

from perfctl.workloads.interface import WorkloadParts
from perfctl.workloads.models.source import MODEL_ERRORS, ModelError, build_model
from perfctl.workloads.spec import (
    SpecError,
    WorkloadError,
    WorkloadOptions,
    declare_number_option,
    declare_option,
    get_first_error_line,
)

if TYPE_CHECKING:
    import torch

    from perfctl.workloads.data.images import ImageFeed

NAME = "torchvision_infer"
ABOUT = (
    "Inference with a torchvision model: latency, images/s, top-1 and top-5, over --images images; "
    "--model names it."
)
SAME_NETWORK = ("images", "dataloader_workers", "weights_dir")
"""Own options that do not change the model: runs that differ in them belong to one study."""

IMAGES = 3000
_BY_IMAGES = 0
"""Value of ``steps`` when the number of images determines it."""

FAMILIES = ("classification", "segmentation", "detection", "video")
_FETCH_LIMIT_S = 30.0
"""Socket timeout of a download."""
_NESTED = ("state_dict", "model", "model_state_dict")
"""Keys of the weights in checkpoints of training scripts."""
_SHOWN = 3
_SAVE = "Save only model.state_dict()"
_UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    EOFError,
)
"""What torch.load raises for damaged and hostile files, besides UnpicklingError."""


@dataclass
class Own:
    model: str | None = declare_option(
        None,
        "torchvision model: resnet152, fcn_resnet50, ssd300_vgg16, r3d_18, ...",
        heading=NAME,
        metavar="NAME",
    )
    weights: str = declare_option(
        "default",
        "published weights, random weights, or a checkpoint (default: %(default)s)",
        metavar="default|none|FILE",
    )
    weights_dir: Path | None = declare_option(
        None, "folder for published weights (default: torch's cache)", type=Path, metavar="DIR"
    )
    classes: int | None = declare_number_option(
        1, None, "number of output classes, if different from the published model"
    )
    images: int | None = declare_number_option(
        1, None, f"images to run, instead of --steps (default: {IMAGES})"
    )
    dataloader_workers: int = declare_number_option(
        0,
        0,
        "processes that load images (default: %(default)s, loaded by the computing process)",
    )


DEFAULTS = {"mode": "infer", "steps": _BY_IMAGES}
"""Defaults of options that all workloads share."""


def check(options: WorkloadOptions, model_options: Own) -> WorkloadOptions:
    """Return the options, with ``steps`` from the number of images. Raises SpecError for training,
    other data, too few images."""
    if model_options.model is None:
        raise SpecError("`model` is missing: name a torchvision model, for example resnet18")
    if options.mode != "infer":
        raise SpecError(f"{NAME} does not train: `mode` must be infer, got {options.mode}")
    if options.data == "mnist":
        raise SpecError(
            "torchvision models cannot use MNIST digits: `data` must be imagenet or synthetic"
        )
    if options.data not in ("synthetic", "imagenet"):
        raise SpecError(f"{NAME}: `data` must be imagenet or synthetic, got {options.data}")
    if model_options.classes is not None and model_options.weights == "default":
        raise SpecError(
            "`classes` needs `weights` none or a file: published weights have a fixed number of "
            "classes"
        )
    if model_options.images is not None and options.steps != _BY_IMAGES:
        raise SpecError(
            f"`images` and `steps` {options.steps} determine each other: omit one of them; "
            "`steps` defaults to 1 in 'perfctl ncu'"
        )
    if options.steps != _BY_IMAGES:
        model_options.images = options.steps * options.batch_size
    elif model_options.images is None:
        model_options.images = IMAGES
    if model_options.images < options.batch_size:
        raise SpecError(
            f"`images` must fill a batch of {options.batch_size}, got {model_options.images}"
        )
    return replace(options, steps=model_options.images // options.batch_size)


def build(options: WorkloadOptions, model_options: Own) -> WorkloadParts:
    """Return the model with its weights, and images preprocessed as for these. Raises
    WorkloadError."""
    from torch.nn.functional import cross_entropy

    if model_options.model is None:
        raise WorkloadError("`model` is missing: name a torchvision model, for example resnet18")
    loaded = load_torchvision_model(
        model_options.model, model_options.weights, model_options.weights_dir, model_options.classes
    )
    feed = _make_image_feed(options, model_options, loaded)
    facts = {
        "model": model_options.model,
        "family": loaded.family,
        "weights": loaded.weights,
        "preprocessing": " ".join(repr(loaded.transforms).split()),
    }
    return WorkloadParts(
        loaded.model, cross_entropy, None, feed.dataset, feed.dataset, feed=feed, facts=facts
    )


@dataclass(frozen=True, slots=True)
class WeightedModel:
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


def _make_image_feed(
    options: WorkloadOptions, model_options: Own, loaded: WeightedModel
) -> ImageFeed:
    from perfctl.records.report import Gap
    from perfctl.workloads.data import images
    from perfctl.workloads.data.mnist import count_samples

    dataset: Any
    problem, notes, count = None, [], model_options.images or IMAGES
    if options.data == "synthetic":
        frames = images.FRAMES if loaded.family == "video" else None
        dataset = images.NoiseImages(count, options.seed, loaded.transforms, frames)
        reason = (
            "synthetic images are generated, not read and decoded: loading real ones takes a "
            "different time"
        )
        notes.append(Gap("step:data", "not_available", reason))
    elif loaded.classes is None:
        raise WorkloadError(
            f"{model_options.model} is a {loaded.family} model, which ImageNet classes cannot "
            "score: omit "
            "`data`"
        )
    else:
        assert options.data_dir is not None
        folders = images.read_class_folders(options.data_dir, loaded.classes, loaded.transforms)
        dataset = folders.sample_images_randomly(count, options.seed)
        problem = dataset.describe_unreadable_image
    if count_samples(dataset) < count:
        reason = (
            f"{options.data_dir} has only {count_samples(dataset)} of the {count} requested "
            "images; all were used"
        )
        notes.append(Gap("images", "not_available", reason))
    if count_samples(dataset) < options.batch_size:
        few = f"too few for a batch of {options.batch_size}. Use a smaller batch size"
        raise WorkloadError(f"{options.data_dir} has {count_samples(dataset)} images, {few}")
    return images.ImageFeed(
        dataset,
        options.batch_size,
        workers=model_options.dataloader_workers,
        pinned=options.device == "cuda",
        no_accuracy=_explain_no_accuracy(options, loaded),
        problem=problem,
        notes=tuple(notes),
        classes=loaded.classes,
    )


def _explain_no_accuracy(options: WorkloadOptions, loaded: WeightedModel) -> str | None:
    """Return why accuracy is not computed; None when it is."""
    if loaded.classes is None:
        return f"perfctl scores only image classifiers; this is a {loaded.family} model"
    if not loaded.trained:
        return "the weights are random: the outputs mean nothing"
    if options.data == "synthetic":
        return "the images are random pixels: they have no class"
    return None


def find_torchvision_family(name: str) -> str:
    """Return the family of a model. Raises WorkloadError for an unknown name, with similar ones."""
    try:
        from torchvision import models
    except ImportError as error:
        reason = get_first_error_line(error)
        text = f"torchvision cannot be imported ({reason}): pip install 'perfctl[torch]'"
        raise WorkloadError(text) from error
    modules = (models, models.segmentation, models.detection, models.video)
    names = {
        model: family
        for family, module in zip(FAMILIES, modules, strict=True)
        for model in models.list_models(module)
    }
    if name in names:
        return names[name]
    if ":" in name or name.endswith(".json"):
        here = "runs and loads models of torchvision only"
        raise WorkloadError(
            f"{name}: {NAME} {here}; perfctl estimate and perfctl predict take this name"
        )
    if name in models.list_models():
        raise WorkloadError(
            f"{name} is neither a {', a '.join(FAMILIES[:3])} nor a {FAMILIES[3]} model of "
            "torchvision"
        )
    near = get_close_matches(name.lower().replace("-", "_"), names, 3, 0.5)
    meant = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"it has {len(names)} (resnet18, vit_b_16, ...)"
    )
    raise WorkloadError(f"torchvision has no model '{name}': {meant}")


def load_torchvision_model(
    name: str, weights: str, folder: Path | None = None, classes: int | None = None
) -> WeightedModel:
    """Return the model with ``weights``: "default" (published), "none" (random), or a checkpoint
    file.

    ``folder``: for published weights; ``classes``: only with "none" and files. Raises WorkloadError
    when the weights are unavailable or do not fit.
    """
    family = find_torchvision_family(name)
    from torchvision import models

    published = models.get_model_weights(name).DEFAULT
    outputs = (classes or len(published.meta["categories"])) if family == "classification" else None
    trained = weights != "none"
    if weights == "default":
        model, weights = _load_published_weights(name, published, folder), str(published)
    else:
        model = _build_model_matching_published_weights(name, family, classes, from_file=trained)
        if trained:
            load_checkpoint_into_model(model, Path(weights), name)
            weights = Path(weights).name
            if name == "googlenet":
                model.aux_logits = False  # type: ignore[assignment]
                model.aux1 = model.aux2 = None  # type: ignore[assignment]
    return WeightedModel(model.eval(), family, weights, trained, published.transforms(), outputs)


def _build_model_matching_published_weights(
    name: str, family: str, classes: int | None, *, from_file: bool
) -> torch.nn.Module:
    """Return the model of the published weights, without downloading them."""
    settings: dict[str, Any] = {}
    if family == "segmentation" and "lraspp" not in name:
        settings["aux_loss"] = True
    if name in ("googlenet", "inception_v3"):
        settings |= {"transform_input": True, "aux_logits": from_file or name == "inception_v3"}
    if classes is not None:
        settings["num_classes"] = classes
    try:
        return build_torchvision_without_weights(name, "cpu", **settings)
    except ModelError as error:
        raise WorkloadError(error.message) from error


def build_torchvision_without_weights(name: str, device: str, **settings: Any) -> torch.nn.Module:
    """Return a model without published weights, of the image size of these. Raises ModelError."""
    from torchvision import models

    builder = models.get_model_builder(name)
    parameters = inspect.signature(builder).parameters
    for key in ("weights", "weights_backbone"):
        if key in parameters:
            settings[key] = None
    if "init_weights" in parameters or "googlenet" in name or "inception" in name:
        settings["init_weights"] = False
    if name.startswith("vit_") and (size := find_torchvision_input_shape(name)):
        settings["image_size"] = size[-1]
    return build_model(lambda: builder(**settings), f"torchvision:{name}", device)


def find_torchvision_input_shape(name: str) -> tuple[int, ...] | None:
    """Return the input shape (without batch) that the published weights' preprocessing makes of a
    512 x 512 image."""
    import torch
    from torchvision import models

    weights = models.get_model_weights(name).DEFAULT
    family = weights.__class__.__module__.split(".")[-2]
    image = torch.zeros((1, 16, 3, 512, 512) if family == "video" else (1, 3, 512, 512))
    try:
        ready = weights.transforms()(*((image, image) if family == "optical_flow" else (image,)))
    except MODEL_ERRORS:
        return None
    first = ready[0] if isinstance(ready, (tuple, list)) else ready
    return tuple(first.shape[1:])


def _load_published_weights(name: str, published: Any, folder: Path | None) -> torch.nn.Module:
    import torch
    from torchvision import models

    file = Path(published.url).name
    folder = _find_weights_folder(file, folder)
    exists = (folder / file).is_file()
    builder: Any = models.get_model_builder(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _redirect_weight_downloads_to_folder(folder):
            return builder(weights=published)  # type: ignore[no-any-return]
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        problem = (
            f"{folder / file} cannot be read ({get_first_error_line(error)}). Remove it and "
            "download it again, or set `weights` to none"
            if exists
            else f"{file} is not in {folder} and cannot be downloaded "
            f"({get_first_error_line(error)}). Put "
            f"{published.url} there, set `weights_dir`, or set `weights` to a file or none"
        )
        raise WorkloadError(f"{name}: {problem}") from error


def _find_weights_folder(file: str, folder: Path | None) -> Path:
    """Return the folder that has ``file``, else the one to put it into. ``folder`` may be a cache
    of torch."""
    import torch

    if folder is None:
        return Path(torch.hub.get_dir()) / "checkpoints"
    below = (folder, folder / "checkpoints", folder / "hub" / "checkpoints")
    return next((path for path in below if (path / file).is_file()), folder)


@contextmanager
def _redirect_weight_downloads_to_folder(folder: Path) -> Iterator[None]:
    """During the block, torchvision reads and downloads published weights in ``folder``, with
    a timeout."""
    from torchvision.models import _api

    load_state = partial(_api.load_state_dict_from_url, model_dir=str(folder), map_location="cpu")
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_FETCH_LIMIT_S)
    try:
        with patch.object(_api, "load_state_dict_from_url", load_state):
            yield
    finally:
        socket.setdefaulttimeout(timeout)


def load_checkpoint_into_model(model: torch.nn.Module, file: Path, name: str) -> None:
    """Load the checkpoint's weights into the model. Raises WorkloadError with the keys that do
    not fit."""
    state, needed = read_checkpoint_tensors(file), model.state_dict()
    missing = [key for key in needed if key not in state]
    reshaped = [
        f"{key} is {_describe_shape(state[key])}, needed {_describe_shape(tensor)}"
        for key, tensor in needed.items()
        if key in state and state[key].shape != tensor.shape
    ]
    problems = (
        ("missing", missing),
        ("unknown", [key for key in state if key not in needed]),
        ("of another shape", reshaped),
    )
    wrong = [
        f"{len(keys)} {problem} ({', '.join(keys[:_SHOWN])}{', ...' if len(keys) > _SHOWN else ''})"
        for problem, keys in problems
        if keys
    ]
    if wrong:
        classes = (
            ". If it has another number of classes, set `classes`"
            if reshaped and not missing
            else ""
        )
        raise WorkloadError(f"{file} does not fit {name}; keys: {'; '.join(wrong)}{classes}")
    model.load_state_dict(state)


def read_checkpoint_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Tensors by key, on the CPU. Executes nothing in the file. Raises WorkloadError."""
    from pickle import UnpicklingError  # nosec B403

    import torch

    if not file.is_file():
        raise WorkloadError(
            f"`weights`: {file} does not exist; use default, none, or the path of a checkpoint"
        )
    _raise_if_zip_bomb(file)
    try:
        state = torch.load(os.fspath(file), map_location="cpu", weights_only=True)
    except (*_UNREADABLE, UnpicklingError) as error:
        reason = get_first_error_line(error)[:200]
        raise WorkloadError(f"{file} is not a checkpoint of tensors ({reason}). {_SAVE}") from error
    if isinstance(state, dict):
        state = next((state[key] for key in _NESTED if isinstance(state.get(key), dict)), state)
    if not (
        isinstance(state, dict)
        and state
        and all(isinstance(value, torch.Tensor) for value in state.values())
    ):
        raise WorkloadError(f"{file} has no state_dict. {_SAVE}")
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def _raise_if_zip_bomb(file: Path) -> None:
    """Raise WorkloadError for a zip file that expands: torch stores tensors uncompressed, and a
    bomb would fill memory."""
    if not is_zipfile(file):
        return
    try:
        with ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except (BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise WorkloadError(
            f"{file} is a damaged zip file ({get_first_error_line(error)[:200]}). Copy it again"
        ) from error
    if unpacked > file.stat().st_size:
        sizes = f"unpacks to {unpacked:,} bytes but has {file.stat().st_size:,}"
        raise WorkloadError(f"{file} {sizes}, unlike a checkpoint of torch. {_SAVE}")


def _describe_shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"
