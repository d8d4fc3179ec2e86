"""The precisions that a step can be worked out for, by name."""

from __future__ import annotations

from typing import NamedTuple


class Precision(NamedTuple):
    """How a step is computed on a GPU. Types have torch's names."""

    autocast: str | None
    """The type of ``torch.autocast("cuda", dtype=...)`` around forward and loss; None
    without autocast."""
    weights: str | None
    """The type that ``model.to(...)`` casts the whole model and its inputs to; None: as
    they are."""
    said: str
    """What it means, and what is assumed, in one line."""


PRECISIONS = {
    "fp32": Precision(None, None, ""),
    "tf32": Precision(
        None,
        None,
        "the step of fp32, with TF32 allowed in cuBLAS and cuDNN (Ampere and later): "
        "multiplications of float32 matrices, convolutions and recurrent layers take TF32. "
        "Attention, depthwise convolutions and products with a vector stay fp32. Bytes do not "
        "change",
    ),
    "bf16": Precision(
        "bfloat16",
        None,
        'torch.autocast("cuda", dtype=torch.bfloat16) by CUDA\'s op lists: parameters stay '
        "float32, each weight is cast once per step",
    ),
    "fp16": Precision(
        "float16",
        None,
        'torch.autocast("cuda", dtype=torch.float16) by CUDA\'s op lists: parameters stay '
        "float32, each weight is cast once per step. GradScaler's passes over the gradients are "
        "not included",
    ),
    "bf16-true": Precision(
        None,
        "bfloat16",
        "model.to(torch.bfloat16): parameters, gradients, optimizer state and inputs are bfloat16; "
        "no autocast",
    ),
    "fp16-true": Precision(
        None,
        "float16",
        "model.to(torch.float16): parameters, gradients, optimizer state and inputs are float16; "
        "no autocast",
    ),
    "fp8": Precision(
        "bfloat16",
        None,
        "assumed: nn.Linear multiplies in FP8 (e4m3 forward, e5m2 gradients, one scale per "
        "tensor) where rows, inputs and outputs are multiples of 16; everything else is as in "
        "bf16. Casts are included, finding the scales is not. Hopper, Ada and later",
    ),
}
"""Name -> what it means. The names with "-true" are those of Lightning; autocast is what PyTorch
calls mixed precision."""
