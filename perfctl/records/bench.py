"""Measurements of a bench, one per network and batch size, and the file that holds them
(``perfctl bench export``).

::

    {"perfctl_bench": 1,
     "machines": [{"device": "AMD EPYC", "kind": "cpu", "threads": 1, "torch": "2.9.0"}],
     "layers": {"mlp": ["flatten", "fc1", "act1", "fc2", ...]},
     "points": [{"model": "mlp", "batch": 64, "mode": "train", "precision": "fp32", "machine": 0,
                 "steps": 30, "step_ns": [median, first quartile, third quartile],
                 "fastest_ns": shortest,
                 "phase_ns": {"forward": median, "backward": median, "optimizer": median},
                 "memory_bytes": {"before": b, "peak": p},
                 "forward_us": [median of each of the model's layers],
                 "backward_us": [likewise, all directions of it],
                 "features": {"flops:forward": ..., ...}}, ...]}

A layer without work in a direction is null; times of layers are microseconds, to a tenth. 1
multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WORKLOAD = "families"
"""Of the runs that measure the networks of a bench."""


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """The machine and software of a measurement."""

    JSON_KEYS = ("device", "threads")

    device: str
    kind: str
    """cpu or gpu."""
    threads: int | None
    """Threads of a CPU run; None for a GPU."""
    torch: str | None


@dataclass(frozen=True, slots=True)
class BenchPoint:
    """One network at one batch size. Times are nanoseconds of one step."""

    JSON_KEYS = (
        "model",
        "family",
        "batch",
        "mode",
        "precision",
        "machine",
        "steps",
        "step_ns",
        "phase_ns",
        "memory_bytes",
    )
    JSON_INLINED = ("machine",)

    model: str
    """Full specification, from which ``perfctl.workloads.models.plan.plan_model`` makes the
    layers."""
    batch: int
    mode: str
    """train or infer."""
    precision: str
    machine: BenchMachine
    steps: int
    """Measured steps, after the warm-up; layers were timed in separate steps after these."""
    step_ns: tuple[int, int, int]
    """Median, first and third quartile, without data loading and copies."""
    fastest_ns: int | None = None
    """The fastest measured step, the one least disturbed. None: the file does not have it."""
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    """Median of each phase: forward, backward, optimizer; inference."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """ "peak" in the measured steps and "before" them: on a GPU allocated, on a CPU resident in the
    whole process."""
    forward_ns: Mapping[str, int] = field(default_factory=dict)
    """Median of each layer that ran, by dotted path; empty where layers were not timed."""
    backward_ns: Mapping[str, int] = field(default_factory=dict)
    features: Mapping[str, float] = field(default_factory=dict)
    """Figures of the step calculated from shapes."""

    @property
    def interquartile_over_median(self) -> float:
        """Interquartile range divided by the median: 0 where all steps took equally long."""
        median, low, high = self.step_ns
        return (high - low) / median if median else 0.0

    @property
    def family(self) -> str:
        return self.model.partition(":")[0]
