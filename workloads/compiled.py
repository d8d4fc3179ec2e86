"""What torch.compile and torch.jit make of a model: one region, inside which no layer can be told from another. Imports torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

COMPILED = (
    "torch.compile or torch.jit runs it as one region; layers inside have no ranges. Run without compiling to see them"
)


def is_compiled(module: nn.Module) -> bool:
    """Whether the module's forward runs as one region: a torch.compile wrapper or a scripted module."""
    return isinstance(module, torch.jit.ScriptModule) or is_wrapper(module)


def is_wrapper(module: nn.Module) -> bool:
    """Whether it is what ``torch.compile(model)`` gave."""
    return "_orig_mod" in module.__dict__.get("_modules", ())


class ModuleHooks:
    """Global hooks before and after every module's forward, out of sight while a torch.compile wrapper runs.

    torch.compile would build hooks that it sees into the compiled code, and compile again once they are gone.
    """

    def __init__(self, before: Callable[..., None], after: Callable[..., None], with_kwargs: bool = False) -> None:
        self._before, self._after, self._with_kwargs = before, after, with_kwargs
        self._handles: list[RemovableHandle] = []
        self._end: RemovableHandle | None = None

    def install(self) -> None:
        """From here on they are called."""
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._before),
            module_hooks.register_module_forward_hook(self._after, with_kwargs=self._with_kwargs, always_call=True),
        ]

    def remove(self) -> None:
        """They are gone, from a wrapper that is still running too."""
        for handle in (*self._handles, *([self._end] if self._end is not None else [])):
            handle.remove()
            # torch 2.15 forgets this entry of a global hook, and would go on warning of global hooks.
            module_hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)
        self._handles, self._end = [], None

    def hide(self, wrapper: nn.Module) -> None:
        """Take them away until the wrapper's forward, which is about to begin, has ended; its end is still told."""
        self.remove()
        self._end = wrapper.register_forward_hook(self._come_back, with_kwargs=self._with_kwargs, always_call=True)

    def _come_back(self, module: nn.Module, *rest: Any) -> None:
        self.remove()
        self.install()
        self._after(module, *rest)


def prepare_for_compiled(*hooks: Callable[..., Any]) -> None:
    """Keep torch.compile from compiling hooks that a compiled module's wrapper calls, and from warning of them."""
    # It says that global hooks run once more for the wrapper, which is what is wanted here.
    warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
    skip = getattr(torch._C._dynamo.eval_frame, "skip_code", None)
    for hook in hooks:
        if skip is not None:
            skip(hook.__code__)
