"""What a step's tensors take on paper, beside the peak that each run measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from perfctl.orchestrator.errors import PerfctlError

if TYPE_CHECKING:
    from perfctl.orchestrator.analyse.speedup_records import Arm, ArmFacts, Speedup
    from perfctl.parsers.stored import Run

FULL = ("fp32", "tf32")
"""Precisions in which a tensor takes what the model says; autocast keeps copies that no trace on paper has."""
Found = tuple[int | None, str | None]
"""Bytes, or why they are not known."""


def with_paper(study: Speedup, arms: Sequence[Arm]) -> Speedup:
    """The study with ``paper_memory`` of each of its devices."""
    newest = {arm.label: next(run for run in reversed(arm.runs) if run.status == "ok")
              for arm in arms if any(run.status == "ok" for run in arm.runs)}  # fmt: skip
    known: dict[tuple[str, ...], Found] = {}
    return replace(study, arms=tuple(_with(facts, newest[facts.label], known) for facts in study.arms))


def _with(facts: ArmFacts, run: Run, known: dict[tuple[str, ...], Found]) -> ArmFacts:
    reason = _impossible(run)
    if reason is None:
        own = own_options(run)
        key = (run.workload or "", str(run.batch_size), *own)
        if key not in known:
            known[key] = _worked_out(run, own)
        found, reason = known[key]
        return replace(facts, paper_memory=found, paper_memory_reason=reason)
    return replace(facts, paper_memory_reason=reason)


def _impossible(run: Run) -> str | None:
    from perfctl.workloads import WORKLOADS

    if run.workload not in WORKLOADS or not run.batch_size:
        return "only of built-in workloads: perfctl estimate works out others"
    if run.mode != "train":
        return "only of training"
    if run.precision not in FULL:
        return f"{run.precision}: autocast keeps copies that are not on paper"
    if run.report.environment.get("option:compile") == "True":
        return "compiled: which tensors are kept is the compiler's choice"
    return None if find_spec("torch") is not None else "needs torch, which is not installed here"


def own_options(run: Run) -> tuple[str, ...]:
    """The workload's own options as the run recorded them, as words of a command line."""
    import argparse

    from perfctl.workloads import WORKLOADS

    parser = argparse.ArgumentParser(add_help=False)
    WORKLOADS[run.workload or ""].add_options(parser)
    words: list[str] = []
    for name, default in vars(parser.parse_args([])).items():
        said = run.report.environment.get(f"option:{name}")
        if said is not None and default is not None:
            words.append(f"--{name.replace('_', '-')}={said.strip('[]()').replace(' ', '')}")
    return tuple(words)


def _worked_out(run: Run, own: tuple[str, ...]) -> Found:
    import warnings

    from perfctl.estimation import Request, Session
    from perfctl.workloads.models import ModelError

    assert run.workload is not None and run.batch_size is not None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="CUDA initialization", category=UserWarning)
        try:
            found = Session(Request(run.workload, memory=True, own=own)).at(run.batch_size)
        except (ModelError, PerfctlError) as error:
            return None, str(error)
    if found.memory is None or found.problem is not None:
        return None, found.problem or "no memory was followed"
    return found.memory.rounded_peak, None
