"""Name each module by its dotted path, for ranges and recorded shapes. Imports torch.

A workload passes its model, and paths start below it ("conv1"). In a user's script, every module
called outside of other modules is a root, and its name comes first: "model.layer2.0.conv1",
"netD.main.0".
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate, islice
from types import FrameType
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from perfctl.workloads.tracing.composites import (
    CompositeCall,
    get_layer_class_name,
    is_recurrent,
    unpack_quantized_parameters,
)
from perfctl.workloads.tracing.gradients import LEAF
from perfctl.workloads.tracing.versions import current_task, next_number

_CALLED = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*|\[\d+\])*)\s*\(")
_GENERIC = frozenset({"fn", "func", "function", "f", "callable", "forward"})
"""Parameter names that say nothing about the module."""
_BETWEEN = (
    "torch.nn.modules.module",
    "torch._dynamo",
    "torch.utils._contextlib",
    "perfctl.workloads",
)
"""Modules with frames between the script and the hook."""

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Path elements of wrappers (torch.compile, activation checkpointing, FSDP), which are
not layers."""
Listener = Callable[[str, nn.Module], None]

# torch 2.1 and later; recording needs it
current_node: Any = getattr(torch._C, "_current_autograd_node", None)


def find_variable_name_in_caller(module: object) -> str | None:
    """Dotted name, without ``self``, of ``module`` in the calling frame; None when it cannot
    be determined."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None:
        return None
    if sys.version_info < (3, 11):
        parts = _find_name_in_line(frame, module)
    else:
        match = _CALLED.match(_read_call_source(frame))
        parts = _split_dotted_name(match[1]) if match is not None else []
        code = frame.f_code
        is_local = parts[:1] and parts[0] in (
            *code.co_varnames,
            *code.co_cellvars,
            *code.co_freevars,
        )
        if parts and not is_local and _resolve_dotted_name(frame.f_globals, parts) is not module:
            return None
    if not parts:
        return None
    parts = parts[:-1] if parts[-1] in ("__call__", "forward") else parts
    name = ".".join(parts[1:] if parts and parts[0] in ("self", "cls") else parts)
    return None if not name or name in _GENERIC else name


def _split_dotted_name(name: str) -> list[str]:
    return name.replace("[", ".").replace("]", "").split(".")


def _find_name_in_line(frame: FrameType, module: object) -> list[str]:
    """Return the name by which the running line calls ``module``. Before Python 3.11 a frame tells
    its line, but not its column."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    for match in _CALLED.finditer(line):
        parts = _split_dotted_name(match[1])
        scope = frame.f_locals if parts[0] in frame.f_locals else frame.f_globals
        if _resolve_dotted_name(scope, parts) is module:
            return parts
    return []


def _read_call_source(frame: FrameType) -> str:
    """Return the source line, from the start of the running call; "" without source."""
    position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if position is None or position[0] is None or position[2] is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, position[0], frame.f_globals)
    return line.encode()[position[2] :].decode(errors="replace")


def _resolve_dotted_name(scope: dict[str, Any], parts: list[str]) -> object:
    """Return the object with a dotted global name, found without running code of the script."""
    value: Any = scope.get(parts[0])
    for part in parts[1:]:
        attributes = getattr(value, "__dict__", {})
        value = (
            attributes[part] if part in attributes else (attributes.get("_modules") or {}).get(part)
        )
    return value


class _NamedModule(NamedTuple):
    module: weakref.ref[nn.Module]
    """A weak reference, to keep nothing alive and to notice a reused id."""
    name: str
    below: str


class ModuleNames:
    """Names of modules, and of the layers that hold parameters. One instance per process is shared.

    The first name stays: a layer shared by two models has the name from the model called first.
    """

    def __init__(self, root: nn.Module | None = None, root_name: str | None = None) -> None:
        """``root``: the model, if known; its name is ``root_name``, else its class."""
        self._known: dict[int, _NamedModule] = {}
        self._holders: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}
        self._replicated: dict[int, str] = {}
        self._roots: dict[str, object] = {}
        self._listeners: list[Listener] = []
        self.parameters: dict[str, int] = {}
        """Elements of each layer's own parameters; a shared parameter counts once."""
        self._lock = threading.RLock()
        if root is not None:
            name = type(root).__name__ if root_name is None else root_name
            self._roots[name] = root
            self._name_submodules(root, name, "")

    def add_naming_listener(self, listener: Listener) -> None:
        """Call ``listener(name, module)`` for every named module, now and later."""
        with self._lock:
            for entry in list(self._known.values()):
                if (module := entry.module()) is not None:
                    listener(entry.name, module)
            self._listeners.append(listener)

    def remove_naming_listener(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def find_or_assign_name(
        self, module: nn.Module, enclosing: nn.Module | None, may_become_root: bool = True
    ) -> str | None:
        """Name of a module that is being called; ``enclosing``: the innermost running module with
        a name.

        None for a module that is not registered below ``enclosing``: its work counts for
        ``enclosing``. ``may_become_root``: whether a module outside of others becomes a root (not
        during backward)."""
        name_before = self.get_registered_name(module)
        if name_before is not None:
            return name_before
        # DataParallel: shares its hooks' dictionary with the original
        if "_is_replica" in module.__dict__:
            name = self._replicated.get(id(module.__dict__.get("_forward_hooks")))
            if name is not None:
                return name
        if enclosing is None and not may_become_root:
            return None
        with self._lock:
            name = (
                self._choose_root_name(module)
                if enclosing is None
                else self._find_late_module_name(module, enclosing)
            )
            if name is not None:
                self._name_submodules(module, name, f"{name}.")
            return name

    def get_registered_name(self, module: nn.Module) -> str | None:
        entry = self._known.get(id(module))
        return entry.name if entry is not None and entry.module() is module else None

    def is_part_of_model(self, module: nn.Module) -> bool:
        """Return whether it has a name, and belongs to a larger model."""
        name = self.get_registered_name(module)
        return name is not None and name not in self._roots

    def find_layer_of_parameter(self, parameter: Tensor) -> str | None:
        entry = self._holders.get(id(parameter))
        if entry is None:
            return None
        module = entry[0]()
        if module is None:
            return None
        # faster than getattr; a scripted module has no dictionary
        parameters = module.__dict__.get("_parameters")
        current = (
            parameters.get(entry[1])
            if type(parameters) is dict
            else getattr(module, entry[1], None)
        )
        return entry[2] if current is parameter else None

    def _choose_root_name(self, module: nn.Module) -> str:
        """Return the name in the script, else the class; numbered when another model has it.

        Modules without parameters (losses) share the name of their class: some scripts create one
        per step.
        """
        weightless = next(module.parameters(), None) is None
        own_torch = (
            type(module).__module__.startswith("torch.nn.modules.")
            and next(module.children(), None) is None
        )
        name_wanted = (
            None if weightless and own_torch else find_variable_name_in_caller(module)
        ) or type(_unwrap_model(module)).__name__
        token: object = type(module) if weightless else object()
        name, number = name_wanted, 1
        while self._roots.setdefault(name, token) is not token:
            number += 1
            name = f"{name_wanted}-{number}"
        return name

    def _find_late_module_name(self, module: nn.Module, enclosing: nn.Module) -> str | None:
        """Return the name of a module that was registered after its root got its name."""
        above = self._known.get(id(enclosing))
        path = (
            next((path for path, below in enclosing.named_modules() if below is module), None)
            if above
            else None
        )
        return (
            above.below + escape_layer_path(_drop_wrapper_elements(path))
            if above and path
            else None
        )

    def _name_submodules(self, top: nn.Module, top_name: str, child_prefix: str) -> None:
        """Name ``top`` and everything below it."""
        parallel: set[str] = set()
        for path, module in top.named_modules():
            if is_data_parallel_wrapper(module):
                parallel.add(f"{path}.module" if path else "module")
            inner = escape_layer_path(_drop_wrapper_elements(path, parallel))
            name = child_prefix + inner if inner else top_name
            if self.get_registered_name(module) is not None:
                continue
            self._known[id(module)] = _NamedModule(
                weakref.ref(module), name, f"{name}." if inner else child_prefix
            )
            self._replicated[id(getattr(module, "_forward_hooks", None))] = name
            for key, parameter in module.named_parameters(recurse=False):
                if self.find_layer_of_parameter(parameter) is None:
                    self._holders[id(parameter)] = weakref.ref(module), key, name
                    if not isinstance(parameter, UninitializedParameter):
                        count = self.parameters.get(name, 0)
                        self.parameters[name] = count + parameter.numel()
            if packed := sum(tensor.numel() for tensor in unpack_quantized_parameters(module)):
                self.parameters[name] = self.parameters.get(name, 0) + packed
            for listener in self._listeners:
                listener(name, module)


def _unwrap_model(module: nn.Module) -> nn.Module:
    """Return the model inside torch.compile's or a multi-device wrapper."""
    while (
        inner := module.__dict__.get("_modules", {}).get(
            "module" if is_data_parallel_wrapper(module) else "_orig_mod"
        )
    ) is not None:
        module = inner
    return module


def escape_layer_path(path: str) -> str:
    """Return a path that every profiler records unchanged; other characters become their number
    (U+00E9).

    The traces of torch 2.15 omit ranges with non-ASCII characters, drop line ends, and change
    double quotes to single.
    """
    return re.sub(r'[^ -~]|["\\]', lambda match: f"U+{ord(match[0]):04X}", path)


def is_data_parallel_wrapper(module: nn.Module) -> bool:
    """Return whether it is DataParallel or DistributedDataParallel, which hold the model as
    ``module``."""
    return isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))


def _drop_wrapper_elements(path: str, parallel_paths: Collection[str] = ()) -> str:
    """``path`` without elements of wrappers. ``parallel_paths``: paths that end in a parallel
    wrapper's ``module``."""
    parts = path.split(".")
    above = accumulate(parts, "{}.{}".format)
    both = zip(parts, above)
    return ".".join(
        part for part, so_far in both if part not in WRAPPERS and so_far not in parallel_paths
    )


@dataclass(slots=True, eq=False)
class LayerFrame:
    """One running module, or one composite call inside it."""

    layer: str
    kind: str
    leaf: bool
    """The module is a single layer of torch, without layers inside."""
    recompute: bool = False
    """The call runs during backward, repeated by activation checkpointing."""
    call: CompositeCall | None = None
    module: nn.Module | None = None
    """The innermost running module with a name."""


class LayerStack:
    """The stack of running modules, and the autograd nodes that each of them created."""

    def __init__(self, names: ModuleNames, roots: bool) -> None:
        """``roots``: whether a module called outside of others gets a name."""
        self.names = names
        self.roots = roots
        self.recurrent: set[str] = set()
        self.frames_of: dict[str, LayerFrame] = {}
        self.outside = LayerFrame("", "", False)
        self.stack: list[LayerFrame] = [self.outside]
        self.starts: list[int] = [0]
        self.made_by: list[LayerFrame] = [self.outside]

    def register_layer(self, name: str, module: nn.Module) -> None:
        self.frames_of.setdefault(name, _make_layer_frame(name, module))
        if is_recurrent(module):
            self.recurrent.add(name)

    @property
    def top(self) -> LayerFrame:
        return self.stack[-1]

    def set_next_autograd_nodes_creator(self, frame: LayerFrame) -> None:
        now = next_number()
        if now == self.starts[-1]:
            self.made_by[-1] = frame
        elif now > self.starts[-1]:
            self.starts.append(now)
            self.made_by.append(frame)

    def push(self, frame: LayerFrame) -> None:
        self.stack.append(frame)
        self.set_next_autograd_nodes_creator(frame)

    def pop(self) -> LayerFrame:
        frame = self.stack.pop()
        self.set_next_autograd_nodes_creator(self.stack[-1])
        return frame

    def make_frame(self, module: nn.Module) -> LayerFrame:
        above = self.top
        if above.call is not None:
            return above
        recompute = current_task() != -1
        name = self.names.find_or_assign_name(
            module, above.module, self.roots and above is self.outside and not recompute
        )
        if name is None:
            kind = type(module).__name__ if above is self.outside else above.kind
            frame = LayerFrame(
                above.layer,
                kind,
                above.leaf or above is self.outside,
                recompute,
                None,
                above.module,
            )
        elif above.leaf and above is not self.outside:
            frame = LayerFrame(above.layer, above.kind, True, recompute, None, above.module)
        else:
            frame = _make_layer_frame(name, module, recompute)
        if is_recurrent(module):
            frame.call = CompositeCall()
        return frame

    def find_running_frame_and_direction(self) -> tuple[LayerFrame, str, int | None]:
        """Return (frame, direction, sequence number of the running node or None outside of
        backward)."""
        node: Any = current_node()
        if node is None or self.top.recompute:
            return self.top, "forward", None
        number = node._sequence_nr()
        if number == LEAF:
            layer = self.names.find_layer_of_parameter(node.variable) or ""
            return self.frames_of.get(layer, self.outside), "backward", None
        return self.made_by[bisect_right(self.starts, number) - 1], "backward", number


def _make_layer_frame(name: str, module: nn.Module, recompute: bool = False) -> LayerFrame:
    return LayerFrame(
        name, get_layer_class_name(module), is_torch_leaf_layer(module), recompute, None, module
    )


def is_torch_leaf_layer(module: nn.Module) -> bool:
    """Return whether it is a single layer: torch's own forward, without submodules (attention may
    have its projections)."""
    if isinstance(module, torch.jit.ScriptModule):  # its class has no forward to ask for
        return False
    forward = getattr(type(module).forward, "__module__", "") or ""
    if not forward.startswith("torch.nn.modules."):
        return False
    return isinstance(module, nn.MultiheadAttention) or next(module.children(), None) is None
