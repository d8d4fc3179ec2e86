"""Linear layers in FP8, as torchao (``Float8Linear``, one scale a tensor) and Transformer Engine (hybrid recipe) do it.

Forward casts the input and the weight to e4m3, backward casts the gradient to e5m2. Products take two FP8 matrices and write the
type of autocast. cuBLASLt wants sizes that are multiples of 16, and Hopper both matrices with the summed dimension contiguous: so
every matrix is also cast transposed for backward, as Transformer Engine does. Scales are taken as known: finding them costs nothing
here. Imports torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MULTIPLE = 16
"""Of rows, inputs and outputs of a layer; others are left in the type of autocast."""
FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2


def fits(data: Tensor, weight: Tensor) -> bool:
    """Whether the product can run in FP8."""
    width = data.shape[-1] if data.dim() else 0
    sizes = (*weight.shape, width, data.numel() // max(width, 1))
    return weight.dim() == 2 and all(size and size % MULTIPLE == 0 for size in sizes)


def transposed(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """A cast copy whose columns became rows."""
    return matrix.t().to(dtype, memory_format=torch.contiguous_format)


class Linear8(torch.autograd.Function):
    """rows @ weight.T + bias; ``weight8``: the weight in e4m3, ``weight8_t``: also transposed, None where there is no backward."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, weight8: Tensor, weight8_t: Tensor | None, scale: Tensor
    ) -> Tensor:  # fmt: skip
        result: Tensor = torch._scaled_mm(rows.to(FORWARD), weight8.t(), scale, scale, bias, None, rows.dtype)
        ctx.save_for_backward(transposed(rows, FORWARD) if ctx.needs_input_grad[1] else None, weight8_t, scale)
        ctx.type = weight.dtype
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows8_t, weight8_t, scale = ctx.saved_tensors
        rows = weight = bias = None
        if ctx.needs_input_grad[0]:
            rows = torch._scaled_mm(grad.to(GRADIENT), weight8_t.t(), scale, scale, None, None, grad.dtype)
        if ctx.needs_input_grad[1]:
            product = torch._scaled_mm(transposed(grad, GRADIENT), rows8_t.t(), scale, scale, None, None, grad.dtype)
            weight = product.to(ctx.type)
        if ctx.needs_input_grad[2]:
            bias = grad.sum(0)
        return rows, weight, bias, None, None, None
