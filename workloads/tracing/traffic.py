"""What a step reads of the tensors that were there before it: weights and the cache of keys and
values. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from perfctl.records.paper import LayerTraffic
from perfctl.workloads.tracing.gradients import iterate_tensors
from perfctl.workloads.tracing.memory import get_storage_or_none
from perfctl.workloads.tracing.operations import OperatorPlan
from perfctl.workloads.tracing.versions import Kwargs

_GATHERS = frozenset(
    {"aten.embedding", "aten.index_select", "aten.index", "aten.gather", "aten.take"}
)
"""Read as many values of their first tensor as they give."""

_OVERWRITES = frozenset(
    {
        "aten.copy_",
        "aten.fill_",
        "aten.zero_",
        "aten.index_copy_",
        "aten.index_put_",
        "aten.scatter_",
    }
)
"""Write their first tensor without reading it."""


@dataclass(slots=True)
class _WatchedStorage:
    """A storage that is watched. The tensor is kept, so that no other storage gets its address."""

    tensor: Tensor
    values: int
    cache: bool


@dataclass(slots=True)
class ReadTrafficCounter:
    """Counts, for each layer, the values that it reads of parameters and of the cache; in one step
    each counts once.

    A layer that reads a part (a row of a table, a view) reads that part. Views and allocations
    read nothing.
    """

    _known: dict[int, _WatchedStorage] = field(default_factory=dict)
    _reads: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    """(Layer, storage) -> offset in the storage -> values read from there."""
    _first: dict[int, str] = field(default_factory=dict)

    def watch_tensors(self, tensors: Iterable[Tensor], is_cache: bool) -> None:
        for tensor in tensors:
            storage = get_storage_or_none(tensor)
            if storage is None or not tensor.numel():
                continue
            entry = self._known.get(storage._cdata)
            if entry is None:
                self._known[storage._cdata] = _WatchedStorage(tensor, tensor.numel(), is_cache)
            elif entry.tensor is not tensor:
                entry.values += tensor.numel()

    def count_operator_reads(
        self, plan: OperatorPlan, args: Any, kwargs: Kwargs, result: Any, layer: str
    ) -> None:
        """After an operator ran in ``layer``."""
        if plan.free and plan.name != "aten.clone":
            return
        for index, tensor in enumerate(iterate_tensors((*args, *kwargs.values()))):
            storage = get_storage_or_none(tensor)
            entry = self._known.get(storage._cdata) if storage is not None else None
            if entry is None or storage is None or (index == 0 and plan.name in _OVERWRITES):
                continue
            values = tensor.numel()
            if plan.name in _GATHERS and index == 0:
                values = result.numel()
            elif plan.name == "aten._grouped_mm" and index == 1 and tensor.dim() == 3:
                values = values // tensor.shape[0] * min(tensor.shape[0], args[0].shape[0])
            parts = self._reads.setdefault((layer, storage._cdata), {})
            offset = int(tensor.storage_offset())
            parts[offset] = max(parts.get(offset, 0), min(values, entry.values))
            self._first.setdefault(storage._cdata, layer)

    def get_first_reading_layer(self, tensor: Tensor) -> str | None:
        """Return the layer that read the tensor first."""
        storage = get_storage_or_none(tensor)
        return self._first.get(storage._cdata) if storage is not None else None

    @property
    def traffic_by_layer(self) -> tuple[LayerTraffic, ...]:
        """A row for every layer that read something, in order."""
        sums: dict[str, list[int]] = {}
        for (layer, key), parts in self._reads.items():
            entry, row = self._known[key], sums.setdefault(layer, [0, 0, 0])
            values = min(sum(parts.values()), entry.values)
            size = values * entry.tensor.element_size()
            if entry.cache:
                row[1] += values
                row[2] += size
            else:
                row[0] += size
        return tuple(LayerTraffic(layer, *row) for layer, row in sums.items())
