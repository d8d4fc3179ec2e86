"""A model to trace, built without data; and why one cannot be built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from perfctl.workloads.spec import first_line

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


@dataclass(frozen=True, slots=True)
class Source:
    """A model to trace, and the known facts about its inputs."""

    model: torch.nn.Module
    name: str
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the inputs without the batch dimension; empty when only the user knows them."""
    dtypes: tuple[str, ...] = ()
    loss: Callable[[Any, Any], Any] | None = None
    """(output, target) -> loss, for a built-in workload; None: backward starts at the output."""
    target: tuple[tuple[int, ...], str] | None = None
    """Shape (without the batch dimension) and dtype of the loss's target."""
    optimizer: tuple[str, dict[str, Any]] | None = None
    """Class name and settings, for a built-in workload."""
    notes: tuple[str, ...] = ()
    """What was taken where the name leaves a choice: the config, the size of the inputs."""
    sequence: int | None = None
    """The sequence length in ``shapes``; None where there is none."""
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
                with parameters_on_meta():
                    model = factory()
    except MODEL_ERRORS as error:
        text = f"{type(error).__name__}: {first_line(error)}"
        if isinstance(error, URLError):
            remedy = "Do not download weights in the factory (weights=None): they are not needed"
        raise ModelError(f"{name} raised {text}", remedy, True) from error
    if not isinstance(model, torch.nn.Module):
        text = f"{name} returned a {type(model).__name__}, not a torch.nn.Module"
        raise ModelError(text, "Use a factory or class of a model")
    on_meta = all(
        tensor.device.type == "meta" for tensor in (*model.parameters(), *model.buffers())
    )
    return model if device == "meta" and on_meta else model.to(device)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """During the block, modules move their parameters and buffers to meta; other tensors
    stay real."""
    import torch

    parameter, buffer = torch.nn.Module.register_parameter, torch.nn.Module.register_buffer

    def take_parameter(module: Any, name: str, value: Any) -> None:
        parameter(module, name, value)
        if value is not None and value.device.type != "meta":
            made = torch.nn.Parameter(value.detach().to("meta"), requires_grad=value.requires_grad)
            module._parameters[name] = made

    def take_buffer(module: Any, name: str, value: Any, persistent: bool = True) -> None:
        buffer(module, name, value if value is None else value.to("meta"), persistent)

    torch.nn.Module.register_parameter = take_parameter  # type: ignore[method-assign, assignment]
    torch.nn.Module.register_buffer = take_buffer  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = parameter  # type: ignore[method-assign]
        torch.nn.Module.register_buffer = buffer  # type: ignore[method-assign]
