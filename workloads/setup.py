"""Prepare a run: check the machine, set seeds and switches, build the model on its device."""

from __future__ import annotations

import argparse
import random
import warnings
from dataclasses import dataclass

import torch
from torch import nn

from perfctl.workloads import machine
from perfctl.workloads.clock import Clock, make_clock
from perfctl.workloads.memory import MemoryWatch
from perfctl.workloads.precision import make_scaler, precision_gaps, set_tf32
from perfctl.workloads.ranges import Backend, make_backend
from perfctl.workloads.record import Record
from perfctl.workloads.spec import Options, Parts, Workload
from perfctl.workloads.window import window_gaps


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a step needs, on its device."""

    options: Options
    parts: Parts
    scaler: torch.amp.GradScaler
    clock: Clock
    ranges: Backend
    memory: MemoryWatch


def prepare(workload: Workload, options: Options, own: argparse.Namespace, record: Record) -> Setup:
    """Check the machine, set seeds and switches, build the workload on its device, and fill in the record."""
    machine.require(options.device)
    if options.compile:
        machine.require_compiler(options.device)
    if options.device == "cpu":
        # A CUDA build with an unsuitable driver warns at the first backward pass; irrelevant on the CPU.
        warnings.filterwarnings("ignore", message="CUDA initialization")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    set_tf32(options.precision)
    torch.backends.cudnn.benchmark = False
    seed_everything(options.seed)
    ranges = make_backend(options.annotate)
    record.environment = machine.environment()
    record.device = machine.describe_device(options.device)
    parts = workload.build(options, own)
    parts.model.to(options.device).train(options.mode == "train")
    record.environment |= parts.facts
    record.parameters = count_parameters(parts.model)
    setup = Setup(
        options=options,
        parts=parts,
        scaler=make_scaler(options.precision, options.device),
        clock=make_clock(options.device),
        ranges=ranges,
        memory=MemoryWatch(options.device),
    )
    setup.memory.take("before")
    record.clock = setup.clock.kind
    record.gaps += window_gaps(options) + precision_gaps(options.precision, record.device)
    return setup


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Elements of each module's own parameters by dotted path; a shared parameter counts at its first module."""
    counted: dict[str, int] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                counted[path] = counted.get(path, 0) + parameter.numel()
    return counted
