"""Patch torch while a Recorder is open, and undo it. Imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional
from torch.optim import optimizer as optimizers

from perfctl.workloads.compiled import ModuleHooks
from perfctl.workloads.composites import Call, describe_attention
from perfctl.workloads.places import Frame

if TYPE_CHECKING:
    from perfctl.workloads.watch import Watch

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Patches:
    """Global module hooks, optimizer hooks, attention as one call, and the encoder's fast path disabled."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.handles: list[Any] = []
        self.module_hooks = ModuleHooks(watch.enter, watch.leave, with_kwargs=True)
        self.attention: Any = None
        self.fast_path = True

    def apply(self) -> None:
        watch = self.watch
        self.module_hooks.install()
        self.handles = [
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        # The fused encoder path exists only on CPU and GPU in eval: disable it, so that all devices run the same operators.
        self.fast_path = torch.backends.mha.get_fastpath_enabled()
        if watch.model is not None:  # a user's script must give the same results to the bit
            torch.backends.mha.set_fastpath_enabled(False)
        self.attention = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = self._attend

    def undo(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.module_hooks.remove()
        torch.backends.mha.set_fastpath_enabled(self.fast_path)
        torch.nn.functional.scaled_dot_product_attention = self.attention

    def _attend(self, *args: Any, **kwargs: Any) -> Any:
        watch, places = self.watch, self.watch.places
        above = places.top
        if above.call is not None:
            return self.attention(*args, **kwargs)
        call = Call()
        recompute = above.recompute or torch._C._current_graph_task_id() != -1
        frame = Frame(above.layer, above.kind, above.leaf, recompute, call, above.module)
        places.push(frame)
        output = None
        try:
            output = self.attention(*args, **kwargs)
        finally:
            places.pop()
            # Checkpointing ends a recomputation once everything saved exists again: on the math path in the middle of
            # attention, on a fused path after it. Attention is one operation, so it counts as a whole.
            if output is not None or recompute:
                describe_attention(call, {**dict(zip(_ATTENTION, args, strict=False)), **kwargs}, output)
                watch.note_call(frame, call)
        return output

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.watch.busy = True
        if self.watch.live is not None and self.watch.model is not None:
            self.watch.live.mark_gradients(self.watch.model)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.watch.busy = False
        op = f"optim.{type(optimizer).__name__}"
        for group in optimizer.param_groups:
            settings = tuple(
                (name, value)
                for name, value in sorted(group.items())
                if name in ("momentum", "weight_decay", "nesterov", "amsgrad", "centered", "dampening")
                and isinstance(value, (bool, int, float))
            )
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self.watch.note_update(self.watch.names.holder(tensor) or "", op, tensor, settings)
