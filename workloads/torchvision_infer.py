"""Workload: inference with torchvision's classification, segmentation, detection and video models."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.parsers.records import Gap
from perfctl.workloads.arguments import at_least
from perfctl.workloads.spec import Options, Parts, SpecError, WorkloadError

if TYPE_CHECKING:
    from perfctl.workloads.feed import ImageFeed
    from perfctl.workloads.weights import Weighted

NAME = "torchvision_infer"
ABOUT = (
    "Inference with a torchvision model: latency, images/s, top-1 and top-5, over --images images; --model names it."
)
SAME_NETWORK = ("images", "dataloader_workers", "weights_dir")
"""Own options that do not change the model: runs that differ in them belong to one study."""

IMAGES = 3000
_BY_IMAGES = 0
"""Value of ``steps`` when the number of images determines it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--model`` and where its weights come from, ``--images``, ``--dataloader-workers``."""
    add = parser.add_argument_group(NAME).add_argument
    add("--model", metavar="NAME", help="a model of torchvision: resnet152, fcn_resnet50, ssd300_vgg16, r3d_18, ...")
    add(
        "--weights",
        default="default",
        metavar="default|none|FILE",
        help="published weights, random weights, or a checkpoint (default: %(default)s)",
    )
    add(
        "--weights-dir",
        type=Path,
        metavar="DIR",
        help="folder for published weights (default: torch's cache)",
    )
    add("--classes", type=at_least(1), metavar="N", help="number of output classes, if not as published")
    add("--images", type=at_least(1), metavar="N", help=f"images to run, instead of --steps (default: {IMAGES})")
    add(
        "--dataloader-workers",
        type=at_least(0),
        default=0,
        metavar="N",
        help="processes that load images (default: %(default)s, loaded by the computing process)",
    )
    parser.set_defaults(mode="infer", steps=_BY_IMAGES)


def check(options: Options, own: argparse.Namespace) -> Options:
    """The options, with ``steps`` from the number of images. Raises SpecError for training, other data, too few images."""
    if own.model is None:
        raise SpecError("`model` is missing: name a torchvision model, for example resnet18")
    if options.mode != "infer":
        raise SpecError(f"{NAME} does not train: `mode` must be infer, got {options.mode}")
    if options.data == "mnist":
        raise SpecError("torchvision models cannot use MNIST digits: `data` must be imagenet or synthetic")
    if options.data not in ("synthetic", "imagenet"):
        raise SpecError(f"{NAME}: `data` must be imagenet or synthetic, got {options.data}")
    if own.classes is not None and own.weights == "default":
        raise SpecError("`classes` needs `weights` none or a file: published weights have a fixed number of classes")
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

    from perfctl.workloads import weights

    if own.model is None:
        raise WorkloadError("`model` is missing: name a torchvision model, for example resnet18")
    found = weights.load(own.model, own.weights, own.weights_dir, own.classes)
    feed = _feed(options, own, found)
    return Parts(
        model=found.model,
        loss=cross_entropy,
        optimizer=None,
        scheduler=None,
        train_data=feed.dataset,
        test_data=feed.dataset,
        feed=feed,
        facts={
            "model": own.model,
            "family": found.family,
            "weights": found.weights,
            "preprocessing": " ".join(repr(found.transforms).split()),
        },
    )


def _feed(options: Options, own: argparse.Namespace, found: Weighted) -> ImageFeed:
    from perfctl.workloads.data import size
    from perfctl.workloads.feed import ImageFeed

    images, problem = _images(options, own, found)
    notes = []
    if options.data == "synthetic":
        reason = "synthetic images are generated, not read and decoded: loading real ones takes a different time"
        notes.append(Gap("step:data", "not_available", reason))
    if size(images) < own.images:
        reason = f"{options.data_dir} has only {size(images)} of the {own.images} requested images; all were used"
        notes.append(Gap("images", "not_available", reason))
    if size(images) < options.batch_size:
        raise WorkloadError(
            f"{options.data_dir} has {size(images)} images, too few for a batch of {options.batch_size}. "
            "Use a smaller batch size"
        )
    return ImageFeed(
        dataset=images,
        batch_size=options.batch_size,
        workers=own.dataloader_workers,
        pinned=options.device == "cuda",
        no_accuracy=_no_accuracy(options, found),
        problem=problem,
        notes=tuple(notes),
        classes=found.classes,
    )


def _images(options: Options, own: argparse.Namespace, found: Weighted) -> tuple[Any, Any]:
    """(data set, place of an unreadable image -> file and reason)."""
    from perfctl.workloads.images import FRAMES, Noise, read_folder, sample_images

    if options.data == "synthetic":
        frames = FRAMES if found.family == "video" else None
        return Noise(own.images, options.seed, found.transforms, frames), None
    if found.classes is None:
        raise WorkloadError(f"{own.model} is a {found.family} model, which ImageNet classes cannot score: omit `data`")
    assert options.data_dir is not None
    folder = options.data_dir
    images = sample_images(read_folder(folder, found.classes, found.transforms), own.images, options.seed)

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
