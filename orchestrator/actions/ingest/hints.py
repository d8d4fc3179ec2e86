"""What the user says about reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UserHints:
    """What the user says about reports that do not say it themselves; None where nothing
    was said."""

    batch_size: int | None = None
    workload: str | None = None
    """Name of a workload or model, as ``perfctl.estimate`` takes it."""
    device_name: str | None = None
    """Of the GPU or CPU, as its driver writes it: "NVIDIA A100-SXM4-40GB"."""
    mode: str | None = None
    """train or infer."""
    precision: str | None = None
    """fp32, tf32, bf16 or fp16."""
    source: bool = False
    """Store what each machine instruction did, too, where the report holds it (.ncu-rep)."""
    guess_layers: bool = False
    """Where a report has no ranges, guess which layer of ``workload`` launched what, by order and
    shape. Needs torch."""
    batch_pattern: str | None = None
    """A regular expression whose first group is the batch size in a report's file name, else in
    its folder's."""
    op_calls: bool = True
    """Take in each operator of a trace by itself, which takes 15 % more time; the sums
    stay without."""
    capture: str | None = None
    """Path of the Kineto trace in which the graphs were captured that the reports launch."""


NO_HINTS = UserHints()
