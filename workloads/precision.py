"""What fp32, tf32, bf16 and fp16 mean here: TF32 switches, autocast, loss scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from perfctl.parsers.records import Device, Gap

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_tf32(precision: str) -> None:
    """TF32 on for ``tf32`` and off for everything else, in cuDNN and in cuBLAS."""
    wanted = precision == "tf32"
    matmul, cudnn = tf32_switches()
    if hasattr(matmul, "fp32_precision"):
        # torch 2.9 and later; to set both these and allow_tf32 is an error there.
        for switch in (matmul, cudnn.conv, cudnn.rnn):
            switch.fp32_precision = "tf32" if wanted else "ieee"
    else:
        matmul.allow_tf32 = cudnn.allow_tf32 = wanted


def tf32_is_on() -> tuple[bool, bool]:
    """Whether fp32 (matrix products, convolutions) may use TF32."""
    matmul, cudnn = tf32_switches()
    if hasattr(matmul, "fp32_precision"):
        return matmul.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32"
    return bool(matmul.allow_tf32), bool(cudnn.allow_tf32)


def tf32_switches() -> tuple[Any, Any]:
    """The objects (cuBLAS, cuDNN) that hold the switches, whose names changed in torch 2.9."""
    return torch.backends.cuda.matmul, torch.backends.cudnn


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """The context a forward pass runs in."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device, dtype=dtype)


def make_scaler(precision: str, device: str) -> torch.amp.GradScaler:
    """Keeps fp16 gradients from vanishing; does nothing for the other precisions."""
    return torch.amp.GradScaler(device, enabled=precision == "fp16")


def precision_gaps(precision: str, device: Device) -> list[Gap]:
    """What the wanted precision cannot be on this device."""
    capability = device.compute_capability
    if precision == "tf32" and capability is not None and int(capability.split(".")[0]) < 8:
        reason = f"compute capability {capability} has no TF32 (8.0 and later do): the run computed in fp32"
        return [Gap("precision:tf32", "not_available", reason)]
    return []
