"""What autograd itself says of a step: which module made each node, told without the code
under test."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from perfctl.records.ranges import parse_range_name

LEAF = 2**64 - 1


class Seen:
    """A backend that keeps what it is told, as ">name" and "<name"."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.open: list[str] = []
        self.paths: list[str] = []
        """Each range with those around it."""

    def push(self, name: str) -> None:
        self.open.append(name)
        self.paths.append(" / ".join(self.open))
        self.events.append(">" + name)

    def pop(self) -> None:
        self.events.append("<" + self.open.pop())

    def count(self) -> Counter[str]:
        return Counter(event[1:] for event in self.events if event[0] == ">")

    def layer(self) -> str | None:
        """Layer of the innermost range that is open."""
        return parse_range_name(self.open[-1]).layer if self.open else None


class Made(nn.Module):
    """Runs a function over itself and its input; ``parts`` are its attributes."""

    def __init__(self, run: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


class Truth:
    """Wraps the forward of every module of some models and notes the numbers of the nodes
    made meanwhile."""

    def __init__(self, models: dict[str, nn.Module]) -> None:
        """``models``: prefix -> model; "" for a model whose layers go by their paths alone."""
        self.spans: list[tuple[int, int, int, str]] = []
        """(first number, number after the last, depth, layer)."""
        self.holders: dict[int, str] = {}
        self.depth = 0
        self.modules: dict[nn.Module, str] = {}
        for prefix, model in models.items():
            for path, module in model.named_modules():
                name = ".".join(part for part in (prefix, path) if part) or type(model).__name__
                if self.modules.setdefault(module, name) == name:
                    for parameter in module.parameters(recurse=False):
                        self.holders.setdefault(id(parameter), name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        for module, name in self.modules.items():
            module.__dict__["forward"] = self._wrapped(module.forward, name)
        try:
            yield
        finally:
            for module in self.modules:
                module.__dict__.pop("forward", None)

    def _wrapped(self, forward: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            first = torch._C._autograd._get_sequence_nr()
            self.depth += 1
            try:
                return forward(*args, **kwargs)
            finally:
                self.depth -= 1
                self.spans.append((first, torch._C._autograd._get_sequence_nr(), self.depth, name))

        return run

    def maker(self, node: Any) -> str | None:
        """The layer whose forward made the node, or which holds the parameter that it adds to;
        None: no layer."""
        number = node._sequence_nr()
        if number == LEAF:
            return self.holders.get(id(node.variable))
        return self._innermost(number)

    def makers(self) -> set[str | None]:
        """Layers that made at least one node themselves."""
        return {
            self._innermost(number) for span in self.spans for number in range(span[0], span[1])
        }

    def _innermost(self, number: int) -> str | None:
        """The deepest layer in whose forward a node got this number."""
        around = [span for span in self.spans if span[0] <= number < span[1]]
        return max(around, key=lambda span: span[2])[3] if around else None


def nodes_below(loss: Tensor) -> list[Any]:
    """Every node that backward from ``loss`` runs."""
    found: dict[Any, None] = {}
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting.extend(edge[0] for edge in node.next_functions)
    return list(found)


def backward_places(
    loss: Tensor, seen: Seen, truth: Truth
) -> list[tuple[str, str | None, str | None]]:
    """Run backward: (node, layer that made it, layer of the range it ran in) for each node."""
    rows: list[tuple[str, str | None, str | None]] = []
    nodes = nodes_below(loss)

    def note(node: Any) -> Callable[[Any], None]:
        name, maker = node.name(), truth.maker(node)
        return lambda _: rows.append((name, maker, seen.layer()))

    handles = [node.register_prehook(note(node)) for node in nodes]
    loss.backward()
    for handle in handles:
        handle.remove()
    return rows
