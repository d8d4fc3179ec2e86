"""Workload: inference with torchvision's classification, segmentation, detection and
video models."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile, is_zipfile

from perfctl.workloads.interface import Parts
from perfctl.workloads.models.source import ModelError
from perfctl.workloads.models.torchvision_builder import build_torchvision
from perfctl.workloads.spec import Options, SpecError, WorkloadError, at_least, first_line

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--model`` and where its weights come from, ``--images``, ``--dataloader-workers``."""
    add = parser.add_argument_group(NAME).add_argument
    add(
        "--model",
        metavar="NAME",
        help="torchvision model: resnet152, fcn_resnet50, ssd300_vgg16, r3d_18, ...",
    )
    kinds = "published weights, random weights, or a checkpoint (default: %(default)s)"
    add("--weights", default="default", metavar="default|none|FILE", help=kinds)
    add(
        "--weights-dir",
        type=Path,
        metavar="DIR",
        help="folder for published weights (default: torch's cache)",
    )
    add(
        "--classes",
        type=at_least(1),
        metavar="N",
        help="number of output classes, if different from the published model",
    )
    add(
        "--images",
        type=at_least(1),
        metavar="N",
        help=f"images to run, instead of --steps (default: {IMAGES})",
    )
    loaded = "processes that load images (default: %(default)s, loaded by the computing process)"
    add("--dataloader-workers", type=at_least(0), default=0, metavar="N", help=loaded)
    parser.set_defaults(mode="infer", steps=_BY_IMAGES)


def check(options: Options, own: argparse.Namespace) -> Options:
    """The options, with ``steps`` from the number of images. Raises SpecError for training, other
    data, too few images."""
    if own.model is None:
        raise SpecError("`model` is missing: name a torchvision model, for example resnet18")
    if options.mode != "infer":
        raise SpecError(f"{NAME} does not train: `mode` must be infer, got {options.mode}")
    if options.data == "mnist":
        raise SpecError(
            "torchvision models cannot use MNIST digits: `data` must be imagenet or synthetic"
        )
    if options.data not in ("synthetic", "imagenet"):
        raise SpecError(f"{NAME}: `data` must be imagenet or synthetic, got {options.data}")
    if own.classes is not None and own.weights == "default":
        raise SpecError(
            "`classes` needs `weights` none or a file: published weights have a fixed number of "
            "classes"
        )
    if own.images is not None and options.steps != _BY_IMAGES:
        raise SpecError("`images` and `steps` determine each other: omit one of them")
    if options.steps != _BY_IMAGES:
        own.images = options.steps * options.batch_size
    elif own.images is None:
        own.images = IMAGES
    if own.images < options.batch_size:
        raise SpecError(f"`images` must fill a batch of {options.batch_size}, got {own.images}")
    return replace(options, steps=own.images // options.batch_size)


def build(options: Options, own: argparse.Namespace) -> Parts:
    """The model with its weights, and images preprocessed as for these. Raises WorkloadError."""
    from torch.nn.functional import cross_entropy

    if own.model is None:
        raise WorkloadError("`model` is missing: name a torchvision model, for example resnet18")
    found = load(own.model, own.weights, own.weights_dir, own.classes)
    feed = _feed(options, own, found)
    facts = {"model": own.model, "family": found.family, "weights": found.weights}
    facts["preprocessing"] = " ".join(repr(found.transforms).split())
    return Parts(
        found.model, cross_entropy, None, feed.dataset, feed.dataset, feed=feed, facts=facts
    )


def _feed(options: Options, own: argparse.Namespace, found: Weighted) -> ImageFeed:
    from perfctl.records.report import Gap
    from perfctl.workloads.data.images import ImageFeed
    from perfctl.workloads.data.mnist import size

    images, problem = _images(options, own, found)
    notes = []
    if options.data == "synthetic":
        reason = (
            "synthetic images are generated, not read and decoded: loading real ones takes a "
            "different time"
        )
        notes.append(Gap("step:data", "not_available", reason))
    if size(images) < own.images:
        reason = (
            f"{options.data_dir} has only {size(images)} of the {own.images} requested images; all "
            "were used"
        )
        notes.append(Gap("images", "not_available", reason))
    if size(images) < options.batch_size:
        few = f"too few for a batch of {options.batch_size}. Use a smaller batch size"
        raise WorkloadError(f"{options.data_dir} has {size(images)} images, {few}")
    return ImageFeed(
        images,
        options.batch_size,
        workers=own.dataloader_workers,
        pinned=options.device == "cuda",
        no_accuracy=_no_accuracy(options, found),
        problem=problem,
        notes=tuple(notes),
        classes=found.classes,
    )


def _images(options: Options, own: argparse.Namespace, found: Weighted) -> tuple[Any, Any]:
    """(data set, place of an unreadable image -> file and reason)."""
    from perfctl.workloads.data.images import FRAMES, Noise, read_folder, sample_images

    if options.data == "synthetic":
        frames = FRAMES if found.family == "video" else None
        return Noise(own.images, options.seed, found.transforms, frames), None
    if found.classes is None:
        raise WorkloadError(
            f"{own.model} is a {found.family} model, which ImageNet classes cannot score: omit "
            "`data`"
        )
    assert options.data_dir is not None
    folder = options.data_dir
    images = sample_images(
        read_folder(folder, found.classes, found.transforms), own.images, options.seed
    )

    def problem(place: int) -> str:
        return f"{images.paths[place].relative_to(folder)}: {images.problem(place)}"

    return images, problem


def _no_accuracy(options: Options, found: Weighted) -> str | None:
    """Why accuracy is not computed; None when it is."""
    if found.classes is None:
        return f"perfctl scores only image classifiers; this is a {found.family} model"
    if not found.trained:
        return "the weights are random: the outputs mean nothing"
    if options.data == "synthetic":
        return "the images are random pixels: they have no class"
    return None


@dataclass(frozen=True, slots=True)
class Weighted:
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
        text = f"torchvision cannot be imported ({first_line(error)}): pip install 'perfctl[torch]'"
        raise WorkloadError(text) from error
    modules = zip(
        FAMILIES, (models, models.segmentation, models.detection, models.video), strict=True
    )
    names = {model: family for family, module in modules for model in models.list_models(module)}
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


def load(name: str, asked: str, folder: Path | None = None, classes: int | None = None) -> Weighted:
    """The model with the weights ``asked``: "default" (published), "none" (random), or a
    checkpoint file.

    ``folder``: for published weights; ``classes``: only with "none" and files. Raises WorkloadError
    when the weights are unavailable or do not fit.
    """
    family = family_of(name)
    from torchvision import models

    published = models.get_model_weights(name).DEFAULT
    transforms = published.transforms()
    answers = (classes or len(published.meta["categories"])) if family == "classification" else None
    if asked == "default":
        model = _published(name, published, folder)
        return Weighted(model.eval(), family, str(published), True, transforms, answers)
    model = _like_published(name, family, classes, from_file=asked != "none")
    if asked == "none":
        return Weighted(model.eval(), family, "none", False, transforms, answers)
    file = Path(asked)
    fit(model, file, name)
    if name == "googlenet":
        model.aux_logits, model.aux1, model.aux2 = False, None, None  # type: ignore[assignment]
    return Weighted(model.eval(), family, file.name, True, transforms, answers)


def _like_published(
    name: str, family: str, classes: int | None, *, from_file: bool
) -> torch.nn.Module:
    """The model of the published weights, without downloading them."""
    settings: dict[str, Any] = {}
    if family == "segmentation" and "lraspp" not in name:
        settings["aux_loss"] = True
    if name in ("googlenet", "inception_v3"):
        settings |= {"transform_input": True, "aux_logits": from_file or name == "inception_v3"}
    if classes is not None:
        settings["num_classes"] = classes
    try:
        return build_torchvision(name, "cpu", **settings)
    except ModelError as error:
        raise WorkloadError(error.message) from error


def _published(name: str, published: Any, folder: Path | None) -> torch.nn.Module:
    import torch
    from torchvision import models

    file = Path(published.url).name
    place = _place_of(file, folder)
    there = (place / file).is_file()
    builder: Any = models.get_model_builder(name)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _checkpoints_in(place):
            return builder(weights=published)  # type: ignore[no-any-return]
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        why = first_line(error)
        if there:
            again = "Remove it and download it again, or set `weights` to none"
            raise WorkloadError(
                f"{name}: {place / file} cannot be read ({why}). {again}"
            ) from error
        put = f"Put {published.url} there, set `weights_dir`, or set `weights` to a file or none"
        raise WorkloadError(
            f"{name}: {file} is not in {place} and cannot be downloaded ({why}). {put}"
        ) from error


def _place_of(file: str, folder: Path | None) -> Path:
    """The folder that has ``file``, else the one to put it into. ``folder`` may be a cache
    of torch."""
    import torch

    if folder is None:
        return Path(torch.hub.get_dir()) / "checkpoints"
    below = (folder, folder / "checkpoints", folder / "hub" / "checkpoints")
    return next((place for place in below if (place / file).is_file()), folder)


@contextmanager
def _checkpoints_in(place: Path) -> Iterator[None]:
    """During the block, torchvision reads and downloads published weights in ``place``, with
    a timeout."""
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
    """Load the checkpoint's weights into the model. Raises WorkloadError with the keys that do
    not fit."""
    state = read_checkpoint(file)
    own = model.state_dict()
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    different = [key for key in own if key in state and state[key].shape != own[key].shape]
    other = [f"{key} is {_shape(state[key])}, needed {_shape(own[key])}" for key in different]
    wrong = [
        f"{len(keys)} {what} ({', '.join(keys[:_SHOWN])}{', ...' if len(keys) > _SHOWN else ''})"
        for what, keys in (("missing", missing), ("unknown", unknown), ("of another shape", other))
        if keys
    ]
    if wrong:
        classes = (
            ". If it has another number of classes, set `classes`" if other and not missing else ""
        )
        raise WorkloadError(f"{file} does not fit {name}; keys: {'; '.join(wrong)}{classes}")
    model.load_state_dict(state)


def read_checkpoint(file: Path) -> dict[str, torch.Tensor]:
    """Tensors by key, on the CPU. Executes nothing in the file. Raises WorkloadError."""
    from pickle import UnpicklingError  # nosec B403

    import torch

    if not file.is_file():
        raise WorkloadError(
            f"`weights`: {file} does not exist; use default, none, or the path of a checkpoint"
        )
    _refuse_bomb(file)
    try:
        found = torch.load(os.fspath(file), map_location="cpu", weights_only=True)
    except (*_UNREADABLE, UnpicklingError) as error:
        why = first_line(error)[:200]
        raise WorkloadError(f"{file} is not a checkpoint of tensors ({why}). {_SAVE}") from error
    if isinstance(found, dict):
        found = next((found[key] for key in _NESTED if isinstance(found.get(key), dict)), found)
    if not (
        isinstance(found, dict)
        and found
        and all(isinstance(value, torch.Tensor) for value in found.values())
    ):
        raise WorkloadError(f"{file} has no state_dict. {_SAVE}")
    return {str(key).removeprefix("module."): value for key, value in found.items()}


def _refuse_bomb(file: Path) -> None:
    """Raises WorkloadError for a zip file that expands: torch stores tensors uncompressed, and a
    bomb would fill memory."""
    if not is_zipfile(file):
        return
    try:
        with ZipFile(file) as archive:
            held = sum(member.file_size for member in archive.infolist())
    except (BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise WorkloadError(
            f"{file} is a damaged zip file ({first_line(error)[:200]}). Copy it again"
        ) from error
    if held > file.stat().st_size:
        sizes = f"unpacks to {held:,} bytes but has {file.stat().st_size:,}"
        raise WorkloadError(f"{file} {sizes}, unlike a checkpoint of torch. {_SAVE}")


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"
