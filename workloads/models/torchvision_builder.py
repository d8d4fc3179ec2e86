"""Models of torchvision without published weights."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from perfctl.workloads.models.source import MODEL_ERRORS, build_model

if TYPE_CHECKING:
    import torch


def build_torchvision(name: str, device: str, **settings: Any) -> torch.nn.Module:
    """A model without published weights, of the image size of these. Raises ModelError."""
    from torchvision import models

    builder = models.get_model_builder(name)
    parameters = inspect.signature(builder).parameters
    fixed: dict[str, Any] = {
        key: None for key in ("weights", "weights_backbone") if key in parameters
    }
    if "init_weights" in parameters or "googlenet" in name or "inception" in name:
        fixed["init_weights"] = False
    if name.startswith("vit_") and (size := torchvision_size(name)):
        fixed["image_size"] = size[-1]
    return build_model(lambda: builder(**fixed, **settings), f"torchvision:{name}", device)


def torchvision_size(name: str) -> tuple[int, ...] | None:
    """The input shape (without batch) that the published weights' preprocessing makes of a 512 x
    512 image."""
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
