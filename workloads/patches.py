"""What is hooked into torch while a Recorder is open, and taken out again. Imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

from perfctl.workloads.composites import Call, describe_attention
from perfctl.workloads.places import Frame

if TYPE_CHECKING:
    from perfctl.workloads.watch import Watch

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


class Patches:
    """Global module hooks, optimizer hooks, attention as one call, and no fused encoder fast path."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.handles: list[Any] = []
        self.attention: Any = None
        self.fast_path = True

    def apply(self) -> None:
        watch = self.watch
        self.handles = [
            hooks.register_module_forward_pre_hook(watch.enter),
            hooks.register_module_forward_hook(watch.leave, with_kwargs=True, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        # The fused encoder path exists on CPU and GPU only, and in eval only: off, so that all see the same operators.
        self.fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        self.attention = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = self._attend

    def undo(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []
        torch.backends.mha.set_fastpath_enabled(self.fast_path)
        torch.nn.functional.scaled_dot_product_attention = self.attention

    def _attend(self, *args: Any, **kwargs: Any) -> Any:
        watch, places = self.watch, self.watch.places
        above = places.top
        if above.call is not None:
            return self.attention(*args, **kwargs)
        call = Call()
        recompute = above.recompute or torch._C._current_graph_task_id() != -1
        frame = Frame(above.layer, above.kind, above.leaf, recompute, call)
        places.push(frame)
        output = None
        try:
            output = self.attention(*args, **kwargs)
        finally:
            places.pop()
            # Checkpointing ends a recomputation as soon as all that was saved is there again, on the math path in
            # the middle of attention, on a fused one after it: attention is one operation, so it counts whole.
            if output is not None or recompute:
                describe_attention(call, {**dict(zip(_ATTENTION, args, strict=False)), **kwargs}, output)
                watch.note_call(frame, call)
        return output

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.watch.busy = True
        if self.watch.live is not None:
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
                    self.watch.note_update(self.watch.places.owners.get(id(tensor), ""), op, tensor, settings)
