"""Inference with any of torchvision's classification, segmentation, detection and video models."""

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
"""Own options that change what is measured, not the network: runs that differ here are one study."""

IMAGES = 3000
_BY_IMAGES = 0
"""Value of --steps where the number of images decides."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--model`` and where its weights come from, ``--images``, ``--dataloader-workers``."""
    add = parser.add_argument_group(NAME).add_argument
    add("--model", metavar="NAME", help="a model of torchvision: resnet152, fcn_resnet50, ssd300_vgg16, r3d_18, ...")
    add(
        "--weights",
        default="default",
        metavar="default|none|FILE",
        help="published weights, random ones, or those of a checkpoint (default: %(default)s)",
    )
    add(
        "--weights-dir",
        type=Path,
        metavar="DIR",
        help="where published weights lie, or are put (default: torch's own cache)",
    )
    add("--classes", type=at_least(1), metavar="N", help="classes that the model answers, where not as published")
    add("--images", type=at_least(1), metavar="N", help=f"images to run, instead of --steps (default: {IMAGES})")
    add(
        "--dataloader-workers",
        type=at_least(0),
        default=0,
        metavar="N",
        help="processes that load images (default: %(default)s, the one that computes loads them)",
    )
    parser.set_defaults(mode="infer", steps=_BY_IMAGES)


def settle(options: Options, own: argparse.Namespace) -> Options:
    """``steps`` from the number of images. Raises SpecError for training, unfit data, or too few images."""
    if own.model is None:
        raise SpecError("--model is missing: name a model of torchvision, as in --model resnet18")
    if options.mode != "infer":
        raise SpecError(f"{NAME} does not train: leave out --mode {options.mode}")
    if options.data == "mnist":
        raise SpecError("--data mnist has digits of 28 x 28: torchvision's models take --data imagenet or synthetic")
    if options.data not in ("synthetic", "imagenet"):
        raise SpecError(f"--data {options.data} is for training: {NAME} takes --data imagenet or synthetic")
    if own.classes is not None and own.weights == "default":
        raise SpecError("--classes goes with --weights none or FILE: published weights have their own")
    if own.images is not None and options.steps != _BY_IMAGES:
        raise SpecError("--images and --steps say the same thing: leave one of them out")
    if options.steps != _BY_IMAGES:
        own.images = options.steps * options.batch_size
    elif own.images is None:
        own.images = IMAGES
    if own.images < options.batch_size:
        raise SpecError(f"--images {own.images} do not fill one batch of {options.batch_size}")
    return replace(options, steps=own.images // options.batch_size)


def build(options: Options, own: argparse.Namespace) -> Parts:
    """The model with its weights, and the images prepared as these were trained. Raises WorkloadError."""
    from torch.nn.functional import cross_entropy

    from perfctl.workloads import weights

    if own.model is None:
        raise WorkloadError("--model is missing: name a model of torchvision, as in --model resnet18")
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
        reason = (
            "synthetic images are made and prepared, not read and decoded: waiting for real ones takes another time"
        )
        notes.append(Gap("step:data", "not_available", reason))
    if size(images) < own.images:
        reason = f"{options.data_dir} has {size(images)} images, {own.images} were asked for: all of them were taken"
        notes.append(Gap("images", "not_available", reason))
    if size(images) < options.batch_size:
        raise WorkloadError(
            f"{options.data_dir} has {size(images)} images, which do not fill one batch of {options.batch_size}. "
            "Use smaller --batches"
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
    from perfctl.workloads.images import FRAMES, Noise, chosen, read_folder

    if options.data == "synthetic":
        frames = FRAMES if found.family == "video" else None
        return Noise(own.images, options.seed, found.transforms, frames), None
    if found.classes is None:
        raise WorkloadError(
            f"--data imagenet holds one class an image, and {own.model} is a {found.family} model: leave --data out"
        )
    assert options.data_dir is not None
    folder = options.data_dir
    images = chosen(read_folder(folder, found.classes, found.transforms), own.images, options.seed)

    def problem(place: int) -> str:
        return f"{images.paths[place].relative_to(folder)}: {images.problem(place)}"

    return images, problem


def _no_accuracy(options: Options, found: Weighted) -> str | None:
    """Why no accuracy is claimed; None when it is."""
    if found.classes is None:
        return f"perfctl scores classifiers of images only, and this is a {found.family} model"
    if not found.trained:
        return "the weights are random (--weights none): the answers mean nothing"
    if options.data == "synthetic":
        return "the images are random pixels (--data synthetic): they belong to no class"
    return None
