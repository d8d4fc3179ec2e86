"""Train one workload on several devices and precisions, and say how many times faster each is than
the first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator import evidence
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.launch.sweep.options import SweepOptions, resolve_device

if TYPE_CHECKING:
    from perfctl.orchestrator.actions.sweep.sweep import Listening
    from perfctl.orchestrator.compare.speedup import Arm, Speedup
    from perfctl.orchestrator.launch.sweep.request import SweepRequest
    from perfctl.orchestrator.ledger.arm_figures import ArmFacts
    from perfctl.records.run import Run

ALLOWED = (
    "precision",
    "seed",
    "data",
    "batch",
    "mode",
    "variant",
    "workload",
    "compile",
    "samples",
    "length",
)
"""Facts that may be allowed to differ."""
ASKED = frozenset({"precision", "compile"})
"""What differs because the list of devices asks for it."""
_WITH = {"cpu": ("bf16", "compile"), "cuda": ("tf32", "bf16", "fp16", "compile")}
EVERY_WAY = tuple(
    f"{device}{also}"
    for device, more in _WITH.items()
    for also in ("", *(f":{one}" for one in more))
)
"""Every entry that a list of devices may have."""
COLUMN_MM = 84
"""Width of a chart for a paper: one column."""
Study = Mapping[int | None, "Sequence[Arm]"]
"""Batch size -> arms; the others are compared with the first."""


@dataclass(frozen=True, slots=True)
class Way:
    """One entry of a list of devices."""

    device: str
    """cpu or cuda."""
    also: str | None = None
    """tf32, bf16, fp16, compile, or None for plain fp32."""

    @property
    def label(self) -> str:
        return f"{self.device}:{self.also}" if self.also else self.device

    @property
    def precision(self) -> str:
        return self.also if self.also and self.also != "compile" else "fp32"


@dataclass(frozen=True, slots=True)
class SpeedupResult:
    """What a study came to."""

    studies: tuple[Speedup, ...]
    """One for each batch size with two devices or more."""

    def check(self) -> None:
        """Raises PartlyDone when a device failed, PerfctlError when a comparison was refused."""
        failed = [f"{label}: {why}" for one in self.studies for label, why in one.failed]
        refused = [
            f"{one.label}: {why}"
            for study in self.studies
            for one in study.against
            for why in one.refused
        ]
        if failed:
            raise PartlyDone(f"{len(failed)} of the devices failed: {failed[0]}")
        if refused:
            raise PerfctlError(
                f"no speed-up: {refused[0]}", "`allow` NAME compares all the same, and says so"
            )


def speedup(
    devices: str,
    options: SweepOptions,
    *,
    arguments: Sequence[str] = (),
    epochs: int = 5,
    allow: Iterable[str] = (),
    peaks: str = "published",
    listening: Listening | None = None,
    messages: Messages = SILENT,
) -> SpeedupResult:
    """Train ``options.workload`` on each device, a process each, and compare the others with
    the first.

    devices: "cpu,cuda:bf16", or "auto": cpu and cuda, without a GPU the CPU in several ways.
    arguments: words for the workload. epochs: whole epochs after the measured steps.
    allow: facts that may differ beside precision and compile, of ``ALLOWED``. peaks: as in
    :func:`report`.

    Everything is checked before anything runs; a device that fails does not stop the others, and
    :meth:`SpeedupResult.check` raises for it. Raises UsageError, ToolMissing, Interrupted when
    asked to stop, and PerfctlError when no batch size ran on two devices.
    """
    store = store_of(options)
    allowed = allowed_facts(allow) | ASKED
    ways = default_ways(messages) if devices == "auto" else ways_of(devices)
    options = replace(options, workload=options.workload or "unet")
    requests = [(way, request_of(way, epochs, options, tuple(arguments))) for way in ways]
    for way, request in requests:
        check(way, request)
    for way, request in requests:
        messages.note(f"{way.label}:")
        run_way(request, store, listening)
    return compare_arms(
        arms_of(requests, store), store, allowed=allowed, peaks=peaks, messages=messages
    )


def speedup_of(
    names: Sequence[str],
    *,
    store: Path,
    allow: Iterable[str] = (),
    peaks: str = "published",
    messages: Messages = SILENT,
) -> SpeedupResult:
    """Compare sweeps, runs or reports that exist with the first of them; names are those of
    ``perfctl compare``.

    Raises UsageError for fewer than two, PerfctlError when no batch size ran on two of them.
    """
    allowed = allowed_facts(allow)
    return compare_arms(
        named_arms(names, store, messages), store, allowed=allowed, peaks=peaks, messages=messages
    )


def compare_arms(
    study: Study,
    store: Path,
    *,
    allowed: frozenset[str],
    peaks: str = "published",
    messages: Messages = SILENT,
) -> SpeedupResult:
    """The speed-ups of each batch size, with the estimated memory of each arm. Raises PerfctlError
    when there is none."""
    from perfctl.orchestrator.compare import speedup as analysis

    found: list[Speedup] = []
    for batch, arms in study.items():
        roofs = roofs_of(arms, store, peaks, messages)
        try:
            found.append(with_paper(analysis.speedup(arms, allowed=allowed, peaks=roofs), arms))
        except ValueError as error:
            messages.warning(f"batch {batch}: nothing to compare: {error}")
    if not found:
        raise PerfctlError(
            "no batch size ran on two devices", "The reasons are above; logs are in the run folders"
        )
    return SpeedupResult(tuple(found))


def roofs_of(arms: Sequence[Arm], store: Path, peaks: str, messages: Messages) -> list[Any]:
    """Peaks of all devices of the arms."""
    return [roof for arm in arms for roof in evidence.roofs(peaks, store, arm.runs, messages.note)]


def write_speedup(
    result: SpeedupResult, page: Path | None = None, charts: Path | None = None
) -> list[Path]:
    """Write the page, and the page's charts as PDF into the folder ``charts``; what was written,
    charts first."""
    from perfctl.orchestrator.files import write_text
    from perfctl.orchestrator.report.charts import files as charts_files
    from perfctl.orchestrator.report.page.page import render_speedup

    written = []
    with charts_files.drawn() as drawings:
        text = render_speedup(result.studies) if page or charts else ""
    if charts is not None:
        charts.mkdir(parents=True, exist_ok=True)
        for drawing in drawings:
            charts_files.save(drawing, charts / f"{drawing.name}.pdf", "pdf", COLUMN_MM)
        written.append(charts)
    if page is not None:
        write_text(page, text)
        written.append(page)
    return written


def store_of(options: SweepOptions) -> Path:
    """The store of a study: the one that was named, else perfctl.db beside ``out``, as of
    every sweep."""
    return options.store or options.out.parent / DEFAULT


def allowed_facts(names: Iterable[str]) -> frozenset[str]:
    """Facts that may differ. Raises UsageError for one that is not known."""
    found = frozenset(names)
    for name in sorted(found - set(ALLOWED)):
        raise UsageError(f"`allow`: '{name}' is not known", f"Use {', '.join(ALLOWED)}")
    return found


def ways_of(text: str) -> tuple[Way, ...]:
    """ "cpu,cuda:bf16" read. Raises UsageError naming what makes no sense."""
    found = []
    for piece in (piece.strip() for piece in text.split(",")):
        device, _, also = piece.partition(":")
        if device not in _WITH or (":" in piece and also not in _WITH[device]):
            known = ", ".join(f"{one}[:{'|'.join(more)}]" for one, more in _WITH.items())
            raise UsageError(f"`devices`: '{piece}' is not known", f"Use {known}")
        found.append(Way(device, also or None))
    if len(found) < 2:
        problem = "`devices` needs two or more: the others are compared with the first"
        raise UsageError(problem, "Use for instance `devices` cpu,cuda")
    if len(set(found)) < len(found):
        raise UsageError(
            f"`devices`: {text} names a device twice",
            "Name each once; `repeat` runs each several times",
        )
    return tuple(found)


def default_ways(messages: Messages = SILENT) -> tuple[Way, ...]:
    """CPU and GPU; without a GPU the CPU in several ways, with a note that says so."""
    if resolve_device("auto") == "cuda":
        return (Way("cpu"), Way("cuda"))
    if _has_compiler():
        messages.note("no GPU here: comparing cpu with cpu:bf16 and cpu:compile")
        return (Way("cpu"), Way("cpu", "bf16"), Way("cpu", "compile"))
    messages.note(
        "no GPU and no C++ compiler (which cpu:compile needs) here: comparing cpu with cpu:bf16"
    )
    return (Way("cpu"), Way("cpu", "bf16"))


def _has_compiler() -> bool:
    """Whether torch.compile finds a C++ compiler."""
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))


def request_of(way: Way, epochs: int, asked: SweepOptions, rest: tuple[str, ...]) -> SweepRequest:
    """The sweep of one way, called WORKLOAD_DEVICE[_PRECISION]. Raises UsageError."""
    from perfctl.orchestrator.actions.sweep.request import sweep_request
    from perfctl.orchestrator.launch.profilers.torch import TorchProfiler

    name = f"{asked.workload}_{way.label.replace(':', '_')}"
    own = replace(asked, device=way.device, precision=way.precision, mode="train", sweep_name=name)
    words = ("--epochs", str(epochs), *(("--compile",) if way.also == "compile" else ()), *rest)
    return sweep_request(TorchProfiler(), own, words, None)


def check(way: Way, request: SweepRequest) -> None:
    """Raises UsageError for what cannot run here, and for a folder that holds runs of
    another request."""
    from perfctl.orchestrator.actions.sweep.request import check_ready
    from perfctl.orchestrator.launch.sweep.folders import read_json

    if way.device == "cuda" and resolve_device("auto") != "cuda":
        remedy = "Leave it out, or run it on a machine that has one and name both with `runs`"
        raise UsageError(f"{way.label}: there is no NVIDIA GPU here", remedy)
    if way.label == "cpu:compile" and not _has_compiler():
        problem = "cpu:compile needs a C++ compiler, and neither g++ nor clang++ is on PATH"
        raise UsageError(problem, "Install one (Debian: apt-get install g++), or leave it out")
    if find_spec("torch") is None:
        check_ready(request)
    there = read_json(request.folder / "request.json")
    if there is not None and there.get("request") != _identity(request):
        problem = f"{request.folder} holds runs of another request ({there.get('command')})"
        raise UsageError(problem, "Choose another `out`, or remove that folder")


def _identity(request: SweepRequest) -> str:
    return request.with_options(sweep_name=None).name


def run_way(request: SweepRequest, store: Path, listening: Listening | None) -> None:
    """Run one sweep into its folder and the store, and write results.json beside the runs."""
    from perfctl.orchestrator.actions.sweep.sweep import run_request, unheard
    from perfctl.orchestrator.launch.sweep.folders import write_json

    request.folder.mkdir(parents=True, exist_ok=True)
    write_json(
        request.folder / "request.json",
        {"request": _identity(request), "command": request.options.command_line},
    )
    run_request(request, store, listening or unheard)
    write_json(request.folder / "results.json", results(request, runs_of(request, store)))


def runs_of(request: SweepRequest, store: Path) -> list[Run]:
    """The request's runs in the store, oldest first; of each batch size only the newest ``repeat``
    whole ones."""
    from perfctl.orchestrator.actions.sweep.sweep import stored_runs

    runs = stored_runs(store, [request.name], latest_of_each=False)
    kept: list[Run] = []
    for batch in request.options.batches:
        mine = [run for run in runs if run.batch_size == batch]
        whole = [run for run in mine if run.status == "ok"]
        kept += whole[-request.options.repeat :] or mine[-1:]
    return kept


def results(request: SweepRequest, runs: Sequence[Run]) -> dict[str, Any]:
    """results.json: each run's figures, with units in their names."""
    from perfctl.orchestrator.ledger.arm_figures import facts_of
    from perfctl.orchestrator.outputs import to_json

    rows = []
    for run in runs:
        figures = to_json(facts_of(request.name, (run,))) if run.status == "ok" else {}
        rows.append(
            {
                "batch_size": run.batch_size,
                "status": run.status,
                "reason": run.reason,
                "trace": run.artifact,
            }
            # the page has these
            | {key: value for key, value in figures.items() if not key.startswith("paper_")}
        )
    return {"perfctl_results": 1, "name": request.name, "workload": request.workload, "runs": rows}


def arms_of(
    requests: Sequence[tuple[Way, SweepRequest]], store: Path
) -> dict[int | None, list[Arm]]:
    """Batch size -> arms, in the order of the list of devices."""
    from perfctl.orchestrator.compare.speedup import Arm

    found = {way: runs_of(request, store) for way, request in requests}
    return {
        batch: [
            Arm(way.label, tuple(run for run in runs if run.batch_size == batch))
            for way, runs in found.items()
        ]
        for batch in requests[0][1].options.batches
    }


def named_arms(
    names: Sequence[str], store: Path, messages: Messages = SILENT
) -> dict[int | None, list[Arm]]:
    """Batch size -> arms, of sweeps, runs and reports that exist. Raises UsageError for fewer
    than two."""
    from perfctl.orchestrator.actions.sides import side
    from perfctl.orchestrator.compare.speedup import Arm

    if len(names) < 2:
        raise UsageError("`runs` needs two or more", "Use for instance `runs` unet_cpu,unet_cuda")
    sides = [side(name, store, messages) for name in names]
    labels = distinct_labels([one.label for one in sides], names)
    batches = dict.fromkeys(run.batch_size for run in sides[0].runs)
    alone = len(batches) == 1
    return {
        batch: [
            Arm(label, _of_batch(one.runs, batch, alone=alone))
            for label, one in zip(labels, sides, strict=True)
        ]
        for batch in batches
    }


def _of_batch(runs: Sequence[Run], batch: int | None, *, alone: bool) -> tuple[Run, ...]:
    """Runs of the batch size. With ``alone`` a side that has one other size gives all; that it
    differs is reported."""
    found = tuple(run for run in runs if run.batch_size == batch)
    other = alone and len({run.batch_size for run in runs}) == 1
    return found or (tuple(runs) if other else ())


def distinct_labels(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """The labels; where two are equal (b16 of two folders) the names as typed, and numbered where
    these are equal too."""
    found = [
        name if labels.count(label) > 1 else label
        for label, name in zip(labels, names, strict=True)
    ]
    return [
        f"{one} ({found[: place + 1].count(one)})" if found.count(one) > 1 else one
        for place, one in enumerate(found)
    ]


def with_paper(study: Speedup, arms: Sequence[Arm]) -> Speedup:
    """The study with the estimated memory of a step (``paper_memory``) on each of its devices."""
    newest = {arm.label: run for arm in arms for run in arm.runs if run.status == "ok"}
    return replace(
        study, arms=tuple(_with_memory(facts, newest[facts.label]) for facts in study.arms)
    )


def _with_memory(facts: ArmFacts, run: Run) -> ArmFacts:
    memory, reason = None, _impossible(run)
    if reason is None:
        memory, reason = _worked_out(run)
    return replace(facts, paper_memory=memory, paper_memory_reason=reason)


def _impossible(run: Run) -> str | None:
    from perfctl.workloads import WORKLOADS

    if run.workload not in WORKLOADS or not run.batch_size:
        return "known for built-in workloads only; perfctl estimate works out others"
    if run.mode != "train":
        return "known for training only"
    if run.precision not in ("fp32", "tf32"):
        return f"{run.precision}: autocast keeps copies that an estimate does not have"
    if run.report.environment.get("option:compile") == "True":
        return "compiled: the compiler chooses which tensors are kept"
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


def _worked_out(run: Run) -> tuple[int | None, str | None]:
    """(bytes, why they are not known)"""
    from perfctl.orchestrator.estimate.request import Request
    from perfctl.orchestrator.estimate.session import estimate_at

    assert run.workload is not None and run.batch_size is not None
    try:
        found = estimate_at(
            Request(run.workload, memory=True, own=own_options(run)), run.batch_size
        )
    except PerfctlError as error:
        return None, str(error)
    if found.memory is None or found.problem is not None:
        return None, found.problem or "no memory was followed"
    return found.memory.rounded_peak, None
