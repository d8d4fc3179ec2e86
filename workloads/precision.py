"""Implement fp32, tf32, bf16 and fp16: TF32 switches, autocast, loss scaling."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from perfctl.parsers.records import Device, Gap

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_tf32(precision: str) -> None:
    """Enable TF32 in cuDNN and cuBLAS for ``tf32``, disable it for everything else."""
    wanted = precision == "tf32"
    matmul, cudnn = tf32_switches()
    if hasattr(matmul, "fp32_precision"):
        # torch 2.9 and later, where setting allow_tf32 as well is an error.
        for switch in (matmul, cudnn.conv, cudnn.rnn):
            switch.fp32_precision = "tf32" if wanted else "ieee"
    else:
        matmul.allow_tf32 = cudnn.allow_tf32 = wanted


def tf32_is_on() -> tuple[bool, bool]:
    """Whether TF32 is enabled for fp32: (matrix products, convolutions)."""
    matmul, cudnn = tf32_switches()
    if hasattr(matmul, "fp32_precision"):
        return matmul.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32"
    return bool(matmul.allow_tf32), bool(cudnn.allow_tf32)


def tf32_switches() -> tuple[Any, Any]:
    """The objects with the switches: (cuBLAS, cuDNN). The switches' names changed in torch 2.9."""
    return torch.backends.cuda.matmul, torch.backends.cudnn


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """The context for a forward pass."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device, dtype=dtype)


def make_scaler(precision: str, device: str) -> torch.amp.GradScaler:
    """A loss scaler for fp16, whose gradients would underflow; disabled for other precisions."""
    return torch.amp.GradScaler(device, enabled=precision == "fp16")


def precision_gaps(precision: str, device: Device) -> list[Gap]:
    """A gap when the device does not have the precision."""
    capability = device.compute_capability
    if precision == "tf32" and capability is not None and int(capability.split(".")[0]) < 8:
        reason = f"compute capability {capability} has no TF32 (8.0 and later do): the run computed in fp32"
        return [Gap("precision:tf32", "not_available", reason)]
    return []
