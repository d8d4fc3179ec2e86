"""Name each module by its dotted path, for ranges and recorded shapes. Imports torch.

A workload passes its model, and paths start below it ("conv1"). In a user's script, every module called outside of other
modules is a root, and its name comes first: "model.layer2.0.conv1", "netD.main.0".
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import nn

from perfctl.workloads.called_as import called_as

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Path elements of wrappers (torch.compile, activation checkpointing, FSDP), which are not layers."""
Listener = Callable[[str, nn.Module], None]


class _Known(NamedTuple):
    module: weakref.ref[nn.Module]
    """A weak reference, to keep nothing alive and to notice a reused id."""
    name: str
    below: str
    """Prefix of the names of modules below."""


class Names:
    """Names of modules, and of the layers that hold parameters. One instance per process is shared.

    The first name stays: a layer shared by two models has the name from the model called first.
    """

    def __init__(self, root: nn.Module | None = None, own: str | None = None) -> None:
        """``root``: the model, if known; its name is ``own``, else its class."""
        self._known: dict[int, _Known] = {}
        self._holders: dict[int, tuple[weakref.ref[nn.Module], str, str]] = {}
        self._replicated: dict[int, str] = {}
        self._roots: dict[str, object] = {}
        self._listeners: list[Listener] = []
        self._lock = threading.RLock()
        if root is not None:
            name = type(root).__name__ if own is None else own
            self._roots[name] = root
            self._learn(root, name, "")

    def follow(self, listener: Listener) -> None:
        """Call ``listener(name, module)`` for every named module, now and later."""
        with self._lock:
            for known in list(self._known.values()):
                module = known.module()
                if module is not None:
                    listener(known.name, module)
            self._listeners.append(listener)

    def unfollow(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        self._listeners.remove(listener)

    def find(self, module: nn.Module, around: nn.Module | None, roots: bool = True) -> str | None:
        """Name of a module that is being called; ``around``: the innermost running module with a name.

        None for a module that is not registered below ``around``: its work counts for ``around``. ``roots``: whether a
        module outside of others becomes a root (not during backward).
        """
        known = self._known.get(id(module))
        if known is not None and known.module() is module:
            return known.name
        if "_is_replica" in module.__dict__:  # DataParallel: shares its hooks' dictionary with the original
            name = self._replicated.get(id(module.__dict__.get("_forward_hooks")))
            if name is not None:
                return name
        if around is None and not roots:
            return None
        with self._lock:
            return self._add_root(module) if around is None else self._add_late(module, around)

    def known(self, module: nn.Module) -> str | None:
        """The module's name; None when it has none yet."""
        known = self._known.get(id(module))
        return known.name if known is not None and known.module() is module else None

    def holder(self, parameter: torch.Tensor) -> str | None:
        """Name of the first layer that holds the parameter."""
        found = self._holders.get(id(parameter))
        if found is None:
            return None
        module = found[0]()
        if module is None:
            return None
        own = module.__dict__.get("_parameters")  # faster than getattr; a scripted module has no dictionary
        held = own.get(found[1]) if type(own) is dict else getattr(module, found[1], None)
        return found[2] if held is parameter else None

    def _add_root(self, module: nn.Module) -> str:
        name = self._free_name(module)
        self._learn(module, name, f"{name}.")
        return name

    def _free_name(self, module: nn.Module) -> str:
        """The name in the script, else the class; numbered when another model has it.

        Modules without parameters (losses) share the name of their class: some scripts create one per step.
        """
        weightless = next(module.parameters(), None) is None
        own_torch = type(module).__module__.startswith("torch.nn.modules.") and next(module.children(), None) is None
        wanted = (None if weightless and own_torch else called_as(module)) or type(_unwrapped(module)).__name__
        token: object = type(module) if weightless else object()
        name, number = wanted, 1
        while self._roots.setdefault(name, token) is not token:
            number += 1
            name = f"{wanted}-{number}"
        return name

    def _add_late(self, module: nn.Module, around: nn.Module) -> str | None:
        """Name a module that was registered after its root got its name."""
        above = self._known.get(id(around))
        if above is None:
            return None
        path = next((path for path, below in around.named_modules() if below is module), None)
        if not path:
            return None
        name = above.below + printable(_without_wrappers(path))
        self._learn(module, name, f"{name}.")
        return name

    def _learn(self, top: nn.Module, own: str, below: str) -> None:
        """Name ``top`` and everything below it."""
        parallel: set[str] = set()
        for path, module in top.named_modules():
            if is_parallel(module):
                parallel.add(f"{path}.module" if path else "module")
            inner = printable(_without_wrappers(path, parallel))
            name = below + inner if inner else own
            known = self._known.get(id(module))
            if known is not None and known.module() is module:
                continue
            self._known[id(module)] = _Known(weakref.ref(module), name, f"{name}." if inner else below)
            self._replicated[id(getattr(module, "_forward_hooks", None))] = name
            for key, parameter in module.named_parameters(recurse=False):
                if self.holder(parameter) is None:
                    self._holders[id(parameter)] = weakref.ref(module), key, name
            for listener in self._listeners:
                listener(name, module)


def _unwrapped(module: nn.Module) -> nn.Module:
    """The model inside torch.compile's or a multi-device wrapper."""
    while (
        inner := module.__dict__.get("_modules", {}).get("module" if is_parallel(module) else "_orig_mod")
    ) is not None:
        module = inner
    return module


def printable(path: str) -> str:
    """A path that every profiler records unchanged; other characters become their number (U+00E9).

    The traces of torch 2.15 omit ranges with non-ASCII characters, drop line ends, and change double quotes to single.
    """
    if path.isascii() and path.isprintable() and '"' not in path and "\\" not in path:
        return path
    return "".join(
        char if char.isascii() and char.isprintable() and char not in '"\\' else f"U+{ord(char):04X}" for char in path
    )


def is_parallel(module: nn.Module) -> bool:
    """Whether it is DataParallel or DistributedDataParallel, which hold the model as ``module``."""
    return isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))


def _without_wrappers(path: str, parallel: Collection[str] = ()) -> str:
    """``path`` without elements of wrappers. ``parallel``: paths that end in a parallel wrapper's ``module``."""
    parts = path.split(".")
    return ".".join(
        part
        for number, part in enumerate(parts, start=1)
        if part not in WRAPPERS and ".".join(parts[:number]) not in parallel
    )
