"""What differs between versions of torch, under one name each: torch 1.8 (with Python 3.8) and
later. Imports torch."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Dict, Tuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

Args = Tuple[Any, ...]
Kwargs = Dict[str, Any]
"""Arguments of a call by name; by position they are Args."""

_autograd: Any = torch._C._autograd
HAS_ALWAYS = (
    "with_kwargs" in inspect.signature(module_hooks.register_module_forward_hook).parameters
)
"""Whether torch can call global hooks after a forward that raised, and with keyword arguments."""

HIDDEN: dict[int, list[Any]] = {}
"""Hooks that are hidden while the module with this id runs."""


def _return_false() -> bool:
    return False


class _BackwardDepth(threading.local):
    depth = 0


_passes = _BackwardDepth()


def _get_backward_nesting_level() -> int:
    return _passes.depth - 1


def _return_zero() -> int:
    return 0


is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", _return_false
)
"""Whether torch.compile is tracing the caller (torch 2.1 and later can tell)."""
current_task: Callable[[], int] = getattr(
    torch._C, "_current_graph_task_id", _get_backward_nesting_level
)
"""Number of this thread's current backward pass; -1 outside of backward. Before torch 2.0: see
``track_backward_passes``."""
next_number: Callable[[], int] = getattr(_autograd, "_get_sequence_nr", _return_zero)
"""The sequence number of this thread's next autograd node; always 0 before torch 2.1."""
HAS_NUMBERS = next_number is not _return_zero
"""Whether autograd nodes tell their sequence numbers."""


def track_backward_passes() -> Callable[[], None]:
    """Before torch 2.0, let ``current_task`` know when a thread is inside a backward pass. The
    returned function undoes it.

    Autograd's own threads for GPUs are not known.
    """
    if current_task is not _get_backward_nesting_level:
        return lambda: None

    def wrap_backward(function: Any) -> Any:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            _passes.depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                _passes.depth -= 1

        return watched

    undo = ExitStack()
    for name in ("backward", "grad"):
        watched = wrap_backward(getattr(torch.autograd, name))
        undo.callback(replace_attribute(torch.autograd, name, watched))
    return undo.close


def replace_attribute(owner: Any, name: str, function: Any) -> Callable[[], None]:
    """Set an attribute of a class or module. The returned function undoes it, unless it was
    replaced again."""
    before = vars(owner).get(name)

    def undo() -> None:
        if vars(owner).get(name) is function and before is None:
            delattr(owner, name)
        elif vars(owner).get(name) is function:
            setattr(owner, name, before)

    setattr(owner, name, function)
    return undo


def patch_to_call_after(
    owner: Any, name: str, callback: Callable[..., object]
) -> Callable[[], None]:
    """Call ``callback`` with the same arguments after every call of a function. The returned
    function undoes it."""
    before = getattr(owner, name)

    @functools.wraps(before)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = before(*args, **kwargs)
        callback(*args)
        return result

    return replace_attribute(owner, name, wrapped)


def register_prehook(node: Any, hook: Callable[[Any], None]) -> None:
    """Call ``hook`` with the incoming gradients before an autograd node runs, on its thread."""
    if hasattr(node, "register_prehook"):  # torch 1.13 and later
        node.register_prehook(hook)
        return
    # A tensor's hooks are hooks of the node that made it; these belong to a tensor that no
    # node made.
    carrier: Any = torch.empty(0)
    carrier._backward_hooks = OrderedDict([(0, hook)])
    node._register_hook_dict(carrier)


def get_autocast_dtype(device: str) -> Any:
    """Return the dtype of autocast on a kind of device; None when autocast is off there."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4 and later
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        on = torch.is_autocast_enabled()
        return getattr(torch, "get_autocast_gpu_dtype", lambda: torch.float16)() if on else None
    on = getattr(torch, "is_autocast_cpu_enabled", _return_false)()
    return torch.get_autocast_cpu_dtype() if on and device == "cpu" else None


def is_capturing_cuda_graph() -> bool:
    """Return whether a CUDA graph is being captured, when waiting and measuring are impossible."""
    return (
        torch.cuda.is_initialized()
        and getattr(torch.cuda, "is_current_stream_capturing", _return_false)()
    )


def read_free_total_gpu_bytes() -> tuple[int | None, int | None]:
    """Return bytes of the current GPU that are free, and all of them; None where torch cannot tell
    (before 1.11)."""
    return torch.cuda.mem_get_info() if hasattr(torch.cuda, "mem_get_info") else (None, None)


def get_profiler_range_functions() -> tuple[Callable[[str], Any], Callable[[Any], None]]:
    """Functions that begin and end a range of torch.profiler. Newer versions have some that bypass
    the dispatcher."""
    if hasattr(_autograd, "_record_function_with_args_enter"):
        return _autograd._record_function_with_args_enter, _autograd._record_function_with_args_exit
    return torch.ops.profiler._record_function_enter, torch.ops.profiler._record_function_exit


class ModuleCallPatch:
    """Calls ``before`` and ``after`` around every ``nn.Module.__call__``, for versions without
    ``HAS_ALWAYS``."""

    def __init__(self, hooks: Callable[[], list[Any]]) -> None:
        """``hooks``: those installed now, the outermost first; each has ``before``, ``after`` and
        ``with_kwargs``."""
        self._hooks = hooks
        self._inner: Any = None
        self._made: Any = None

    def patch_while_hooked(self) -> None:
        """Patch the class while there are hooks; undo it when there are none."""
        if self._hooks() and self._inner is None:
            inner = nn.Module.__call__
            self._inner, self._made = inner, self._make_module_call(inner)
            nn.Module.__call__ = self._made  # type: ignore[method-assign]
        elif not self._hooks() and self._inner is not None and nn.Module.__call__ is self._made:
            nn.Module.__call__, self._inner = self._inner, None  # type: ignore[method-assign]

    def _make_module_call(self, inner: Any) -> Any:
        hooks = self._hooks

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return inner(module, *args, **kwargs)
            for item in hooks():
                item.before(module, args)
            hook_arguments: Args = (None,)
            try:
                result = inner(module, *args, **kwargs)
                hook_arguments = kwargs, result
                return result
            finally:
                # Hooks that were hidden for this call are back before those after it are called.
                for item in HIDDEN.pop(id(module), ()):
                    item.restore_hidden_hooks()
                for item in reversed(hooks()):
                    item.after(
                        module, args, *(hook_arguments if item.with_kwargs else hook_arguments[-1:])
                    )

        return __call__
