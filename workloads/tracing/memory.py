"""Trace the lifetimes of tensor storages during one step, for memory estimates. Imports torch.

A storage is born when an operation first returns a tensor of it, and dies when Python and autograd
release it, as noticed by a weak reference. A caching allocator sees the same.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from perfctl.records.paper import MemoryTrace, TensorAllocation


def get_storage_or_none(tensor: Tensor) -> Any:
    """Return the tensor's storage; None for a sparse or wrapping tensor, which has none of its
    own."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


@dataclass(slots=True, eq=False)
class StorageSlot:
    """One storage; its fields are those of a TensorAllocation, and its watcher."""

    size: int
    category: str
    born: int
    layer: str = ""
    direction: str = ""
    op: str = ""
    died: int | None = None
    watcher: Any = None
    """Weak reference that ends the slot with its storage; it does so only while it is kept."""


class LiveStorages:
    """Follows the storages of one device. ``start_measured_step`` starts a step: storages alive
    then existed before it."""

    def __init__(self, device: str) -> None:
        """``device``: its type. Storages of other devices are ignored (Adam counts its steps on
        the CPU)."""
        self.device = device
        self.clock = 0
        self.slots: list[StorageSlot] = []
        self.first: tuple[TensorAllocation, ...] = ()
        """The storages until ``start_measured_step``."""
        self.alive: dict[int, StorageSlot] = {}
        self.last_sum: tuple[int, int] | None = None
        """Keys of the first gradient and of the sum, if the last operation was autograd's sum."""
        self.node = self.node_began = 0
        """The running autograd node, and the clock at its begin."""
        self.forward_ends = 0
        self.backward_ends = 0

    def add_existing_tensor(self, tensor: Tensor, category: str) -> None:
        """Add a tensor that exists before anything runs: parameter, buffer, input, optimizer."""
        self._track_tensor(tensor, category, 0)

    def add_packed_parameters(self, parameters: list[Tensor]) -> None:
        """Add parameters that a module packed where no tensor shows them; they stay."""
        for tensor in parameters:
            size = tensor.numel() * tensor.element_size()
            self.slots.append(StorageSlot(size, "parameter", 0))
            self.alive[-len(self.slots)] = self.slots[-1]

    def track_result_storages(self, result: Any, layer: str, direction: str, op: str) -> None:
        self.last_sum = None
        if isinstance(result, Tensor):
            self._track_tensor(result, "temporary", self.clock + 1, layer, direction, op)
        elif isinstance(result, (tuple, list)):
            for item in result:
                self.track_result_storages(item, layer, direction, op)

    def enter_node(self, number: int) -> None:
        """Note that the autograd node of this sequence number runs."""
        if number != self.node:
            self.node, self.node_began = number, self.clock

    def note_gradient_sum(self, first: Tensor, other: Any, total: Tensor) -> None:
        """Call after an addition in backward. If an earlier node made ``first``, autograd added
        the running node's gradient to it.

        Autograd adds in place if no other tensor holds ``first``, as a view's base does, but never
        in a dispatch mode (torch/csrc/autograd/input_buffer.cpp). ``first`` then dies before the
        next operation.
        """
        storage, of_total = get_storage_or_none(first), get_storage_or_none(total)
        slot = self.alive.get(storage._cdata) if storage is not None else None
        if (
            slot is not None
            and slot.born <= self.node_began
            and not first._is_view()
            and other is not first
            and torch.ops.aten.is_non_overlapping_and_dense.default(first)
        ):
            self.last_sum = storage._cdata, of_total._cdata

    def record_scratch_allocation(self, size: int, layer: str, direction: str, op: str) -> None:
        """``size`` bytes that the operation took beside its results and gave back at its end."""
        if size:
            self.clock += 2
            self.slots.append(
                StorageSlot(
                    size, "temporary", self.clock - 1, layer, direction, op, died=self.clock
                )
            )

    def _track_tensor(
        self,
        tensor: Tensor,
        category: str,
        moment: int,
        layer: str = "",
        direction: str = "",
        op: str = "",
    ) -> None:
        if tensor.device.type != self.device:
            return
        storage = get_storage_or_none(tensor)
        if storage is None:
            return
        key = storage._cdata
        if key in self.alive:
            return
        self.clock = max(self.clock, moment)
        slot = StorageSlot(storage.nbytes(), category, moment, layer, direction, op)
        slot.watcher = weakref.ref(storage, partial(self._mark_storage_freed, key))
        self.alive[key] = slot
        self.slots.append(slot)

    def _mark_storage_freed(self, key: int, _: Any) -> None:
        slot = self.alive.pop(key, None)
        if slot is None:
            return
        if self.last_sum is not None and self.last_sum[0] == key:  # the sum is in its storage
            total = self.alive[self.last_sum[1]]
            self.slots.remove(total)
            self.alive[self.last_sum[1]], slot.watcher = slot, total.watcher
            return
        self.clock += 1
        slot.died = self.clock

    def start_measured_step(self) -> None:
        self.first = tuple(map(_make_allocation, self.slots))
        self.slots = list(self.alive.values())
        for slot in self.slots:
            slot.born = 0
            if slot.category == "temporary" and slot.direction == "optimizer":
                slot.category = "optimizer"
        self.clock = self.forward_ends = self.backward_ends = self.node_began = 0

    def mark_forward_end(self) -> None:
        """End of the forward: its temporaries that are still alive are activations for backward."""
        self.forward_ends = self.clock
        for slot in self.alive.values():
            if slot.category == "temporary" and slot.direction == "forward":
                slot.category = "activation"

    def mark_backward_end(self) -> None:
        self.backward_ends = self.clock

    def mark_gradient_storages(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            storage = get_storage_or_none(parameter.grad) if parameter.grad is not None else None
            if storage is not None and (slot := self.alive.get(storage._cdata)):
                slot.category = "gradient"

    def build_memory_trace(
        self, is_complete: bool = True, on_gpu: bool = False, assumed: tuple[str, ...] = ()
    ) -> MemoryTrace:
        allocations = tuple(map(_make_allocation, self.slots))
        forward_ends, backward_ends = (
            self.forward_ends or self.clock,
            self.backward_ends or self.clock,
        )
        return MemoryTrace(
            allocations,
            forward_ends,
            backward_ends,
            self.clock,
            is_complete,
            on_gpu,
            assumed,
            self.first,
        )


def _make_allocation(slot: StorageSlot) -> TensorAllocation:
    return TensorAllocation(
        slot.size, slot.category, slot.born, slot.died, slot.layer, slot.direction, slot.op
    )
