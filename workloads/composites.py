"""Describe recurrent layers and attention as one operation each, because devices compute them with different operators.

A CPU runs an LSTM as ``mkldnn_rnn_layer``, a GPU as ``_cudnn_rnn``, meta tensors as hundreds of small products; attention
is one fused kernel or two products. The required work is the same, so the call itself is recorded and the operators below
it are ignored. Imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

RNN_OPS = {"LSTM": "perfctl.lstm", "GRU": "perfctl.gru", "RNN_TANH": "perfctl.rnn", "RNN_RELU": "perfctl.rnn"}
ATTENTION_OP = "perfctl.scaled_dot_product_attention"
_FUSED = ("flash", "efficient", "cudnn", "fused", "overrideable")


@dataclass(slots=True)
class Call:
    """One composite call: its forward inputs and outputs, and the backward passes recorded for it."""

    op: str = ""
    inputs: tuple[tuple[int, ...] | None, ...] = ()
    outputs: tuple[tuple[int, ...] | None, ...] = ()
    dtypes: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    backend: str = "math"
    tasks: set[int] = field(default_factory=set)
    """Numbers of the backward passes (graph tasks) that reached it."""

    def note_operator(self, name: str) -> None:
        """Set the backend when operator ``name`` is a fused kernel."""
        if self.backend == "math" and any(word in name for word in _FUSED):
            self.backend = "flash"


def is_recurrent(module: torch.nn.Module) -> bool:
    """Whether the module's forward is torch's own LSTM, GRU or RNN."""
    return isinstance(module, torch.nn.RNNBase)


def _shape(tensor: Any) -> tuple[int, ...] | None:
    return tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else None


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def describe_rnn(call: Call, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Fill ``call`` from one forward of an RNNBase: shapes as given, packed steps as their sum.

    ``output``: None when checkpointing cut the forward short; then the input's dtype is used.
    """
    given = args[0] if args else kwargs["input"]
    states = args[1] if len(args) > 1 else kwargs.get("hx")
    states = states if isinstance(states, tuple) or states is None else (states,)
    packed = not isinstance(given, torch.Tensor)
    data = given.data if packed else given
    wide = (2 if module.bidirectional else 1) * (getattr(module, "proj_size", 0) or module.hidden_size)
    result = (*data.shape[:-1], wide)
    if packed:
        first, rows = int(given.batch_sizes[0]), int(data.shape[0])
    elif data.dim() == 2:
        first, rows = 1, int(data.shape[0])
    else:
        first = int(data.shape[0 if module.batch_first else 1])
        rows = int(data.shape[0]) * int(data.shape[1])
    grad = torch.is_grad_enabled()
    call.op = RNN_OPS.get(module.mode, "perfctl.rnn")
    call.inputs = (_shape(data), *(_shape(state) for state in states or ()))
    call.outputs = (tuple(result),)
    call.dtypes = tuple(
        _dtype(tensor) for tensor in (data, *(states or ()), data if output is None else output[0].data)
    )
    call.attributes = {
        "input_size": module.input_size,
        "hidden_size": module.hidden_size,
        "proj_size": getattr(module, "proj_size", 0),
        "num_layers": module.num_layers,
        "directions": 2 if module.bidirectional else 1,
        "bias": bool(module.bias),
        "rows": rows,
        "first_rows": first,
        "packed": packed,
        "needs_input": grad and bool(data.requires_grad),
        "needs_weight": grad and any(weight.requires_grad for weight in module.parameters()),
        "needs_hidden": grad and any(state.requires_grad for state in states or ()),
    }


def describe_attention(call: Call, names: dict[str, Any], output: Any) -> None:
    """Fill ``call`` from one scaled_dot_product_attention: query, key, value, and the mask if it is a tensor.

    ``output``: None when checkpointing cut the forward short; then the query's dtype is used.
    """
    query, key, value, mask = (names.get(word) for word in ("query", "key", "value", "attn_mask"))
    grad = torch.is_grad_enabled()
    call.op = ATTENTION_OP
    call.inputs = (_shape(query), _shape(key), _shape(value), _shape(mask))
    call.outputs = ((*query.shape[:-1], value.shape[-1]),) if query is not None and value is not None else (None,)
    last = query if output is None else output
    tensors = [item for item in (query, key, value, mask, last) if isinstance(item, torch.Tensor)]
    call.dtypes = tuple(_dtype(tensor) for tensor in tensors)
    call.attributes = {
        "is_causal": bool(names.get("is_causal", False)),
        "needs": tuple(grad and isinstance(item, torch.Tensor) and item.requires_grad for item in (query, key, value)),
    }
