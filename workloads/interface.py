"""The interface of a workload, and what it builds. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from perfctl.workloads.spec import WorkloadOptions

if TYPE_CHECKING:
    import torch

    from perfctl.workloads.data.images import ImageFeed


@dataclass(frozen=True, slots=True)
class WorkloadParts:
    """What a workload builds for the loop."""

    model: torch.nn.Module
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer | None
    """None when nothing is trained."""
    train_data: torch.utils.data.Dataset[Any]
    test_data: torch.utils.data.Dataset[Any]
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    feed: ImageFeed | None = None
    """For measured steps that are one pass over a data set, loaded meanwhile; None: batches are
    made beforehand."""
    overlap: int = 0
    """Number of classes of a pixel, to compute Dice in the test pass; 0 when outputs are
    not masks."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """More facts for the record ("weights": which were loaded); the store keeps those that
    ``redact.FACTS`` names."""


class Workload(Protocol):
    """One module of this package. Only ``build`` imports torch."""

    NAME: str
    ABOUT: str

    @property
    def Own(self) -> type[Any]:
        """A dataclass of the workload's own options (mnist_cnn: --conv2)."""
        ...

    def check(self, options: WorkloadOptions, model_options: Any) -> WorkloadOptions:
        """Return the options that the workload will run with. Raises SpecError for unsupported
        ones."""
        ...

    def build(self, options: WorkloadOptions, model_options: Any) -> WorkloadParts:
        """Model, loss, optimizer and data, on the CPU; the loop moves them."""
        ...
