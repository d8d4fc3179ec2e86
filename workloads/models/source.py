"""A model to trace, built without data; and why one cannot be built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.error import URLError

from perfctl.workloads.spec import get_first_error_line

if TYPE_CHECKING:
    import torch

MODEL_ERRORS = (Exception, SystemExit)
"""What a user's model or factory may raise: anything. Each is reported in one line."""


class ModelError(Exception):
    """A model cannot be built. ``remedy``: what the user can do; ``raised``: the model's own
    code raised."""

    def __init__(self, message: str, remedy: str, raised: bool = False) -> None:
        super().__init__(message)
        self.message, self.remedy, self.raised = message, remedy, raised


@dataclass(slots=True)
class ModelInputs:
    """What a model takes. Shapes are without the batch dimension."""

    tensors: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Parameter of ``forward`` ("0", "1", ... by position) -> shape and dtype; empty when only the
    user knows them."""
    sequence: int | None = None
    """The sequence length among them; None where there is none."""
    note: str = ""
    """What was assumed, for the reader."""

    @classmethod
    def from_positional_shapes(
        cls, shapes: Iterable[tuple[int, ...]], dtype: str = "float32", **facts: Any
    ) -> ModelInputs:
        return cls({str(index): (shape, dtype) for index, shape in enumerate(shapes)}, **facts)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(shape for shape, _ in self.tensors.values())

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for _, dtype in self.tensors.values())

    def add_tensor(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.tensors[name] = shape, dtype

    def add_sequence_input(self, name: str, length: int, *sizes: int, dtype: str = "int64") -> None:
        self.sequence = length
        self.add_tensor(name, (length, *sizes), dtype)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to trace, and the known facts about its inputs."""

    model: torch.nn.Module
    name: str
    inputs: ModelInputs = field(default_factory=ModelInputs)
    loss: Callable[[Any, Any], Any] | None = None
    """(output, target) -> loss, for a built-in workload; None: backward starts at the output."""
    target: tuple[tuple[int, ...], str] | None = None
    """Shape (without the batch dimension) and dtype of the loss's target."""
    optimizer: tuple[str, dict[str, Any]] | None = None
    """Class name and settings, for a built-in workload."""
    notes: tuple[str, ...] = ()
    """What was assumed where the name leaves a choice: the config, parts switched off."""
    files: tuple[Path, ...] | None = ()
    """Files that a library's model was made from; None where something of it came over
    the network."""


FACTORY = "A factory must take no arguments and return the model"


def build_model(
    factory: Callable[[], Any], name: str, device: str, remedy: str = FACTORY
) -> torch.nn.Module:
    """Call the factory. On meta, parameters take no memory; a factory that needs real tensors
    gets them."""
    import torch

    try:
        if device != "meta":
            model = factory()
        else:
            try:
                with torch.device("meta"):
                    model = factory()
            except (NotImplementedError, RuntimeError):
                with create_parameters_on_meta():
                    model = factory()
    except MODEL_ERRORS as error:
        text = f"{type(error).__name__}: {get_first_error_line(error)}"
        if device == "meta" and "meta tensor" in text:
            remedy = "Set `device` to cpu: the factory needs actual data"
        if isinstance(error, URLError):
            remedy = "Do not download weights in the factory (weights=None): they are not needed"
        raise ModelError(f"{name} raised {text}", remedy, True) from error
    if not isinstance(model, torch.nn.Module):
        text = f"{name} returned {type(model).__name__}, not a torch.nn.Module"
        raise ModelError(text, "Use a factory or class of a model")
    if device == "meta":
        _move_lazy_tensors_to_meta(model)
    on_meta = all(
        tensor.device.type == "meta" for tensor in (*model.parameters(), *model.buffers())
    )
    return model if device == "meta" and on_meta else model.to(device)


def _move_lazy_tensors_to_meta(model: torch.nn.Module) -> None:
    """Move parameters and buffers of lazy modules to meta; ``to`` would give them a shape."""
    from torch.nn.parameter import is_lazy

    tables: list[dict[str, Any]] = []
    for module in model.modules():
        tables += [module._parameters, module._buffers]
    for table in tables:
        for name, tensor in table.items():
            kind: Any = type(tensor)
            if is_lazy(tensor):
                table[name] = kind(tensor.requires_grad, "meta", tensor.dtype)


@contextmanager
def create_parameters_on_meta() -> Iterator[None]:
    """During the block, modules move their parameters and buffers to meta; other tensors
    stay real."""
    import torch
    from torch.nn.parameter import is_lazy

    module = torch.nn.Module
    register_parameter, register_buffer = module.register_parameter, module.register_buffer

    def register_parameter_on_meta(owner: Any, name: str, value: Any) -> None:
        register_parameter(owner, name, value)
        if value is not None and value.device.type != "meta" and not is_lazy(value):
            owner._parameters[name] = torch.nn.Parameter(
                value.detach().to("meta"), requires_grad=value.requires_grad
            )

    def register_buffer_on_meta(owner: Any, name: str, value: Any, persistent: bool = True) -> None:
        register_buffer(owner, name, value if value is None else value.to("meta"), persistent)

    with (
        patch.object(module, "register_parameter", register_parameter_on_meta),
        patch.object(module, "register_buffer", register_buffer_on_meta),
    ):
        yield
