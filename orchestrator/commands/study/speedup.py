"""The speed-up study: two networks trained on each device, or runs of them that are recorded, in
one folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.commands import speedup
from perfctl.orchestrator.commands.study.folder import StudyFolder, StudyParts, claim
from perfctl.orchestrator.compare.speedup import ASKED, allowed_facts
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.launch.sweep import ways
from perfctl.orchestrator.launch.sweep.options import DEFAULTS, SweepOptions, resolve_device
from perfctl.orchestrator.sides import side

if TYPE_CHECKING:
    from perfctl.orchestrator.compare.speedup import ArmsByBatch, Speedup
    from perfctl.orchestrator.launch.sweep.request import SweepRequest
    from perfctl.records.run import Run

NETWORKS = ("unet", "lstm")
QUICK = {
    "unet": ("--base-width", "8", "--image-size", "32", "--samples", "128"),
    "lstm": ("--hidden", "32", "--length", "16", "--samples", "1600"),
}
BATCHES, EPOCHS = (16,), 5
QUICK_STEPS, QUICK_EPOCHS = 20, 3
NO_GPU = (
    "there is no NVIDIA GPU here; give the same command on a machine that has one, or --from PATH "
    "with its runs"
)


@dataclass(frozen=True, slots=True)
class SpeedupRequest:
    """What :func:`study_speedup` is asked."""

    folder: StudyFolder
    devices: str = "auto"
    """As ``perfctl speedup --devices``: "cpu,cuda:bf16", or auto."""
    batches: tuple[int, ...] = BATCHES
    steps: int | None = None
    """Measured steps; None for 10, and for 20 in the quick form."""
    epochs: int | None = None
    """Whole epochs after them; None for 5, and for 3 in the quick form."""
    options: SweepOptions = DEFAULTS
    """What else a sweep can be asked; the study sets workload, device, precision, batches, steps,
    out and store."""
    own: Mapping[str, tuple[str, ...]] | None = None
    """Workload -> words for it, such as ("--base-width", "16")."""
    quick: bool = False
    source: Path | None = None
    """Recorded runs: a store, a folder of runs or of an earlier study, a report. Nothing
    runs then."""
    allow: tuple[str, ...] = ()
    peaks: str = "published"


@dataclass(frozen=True, slots=True)
class SpeedupStudy:
    """What the study came to."""

    speedups: tuple[Speedup, ...]
    """One for each network and batch size."""
    runs: tuple[tuple[str, str, Run], ...]
    """(network, device, its newest whole run at one batch size)."""
    missing: tuple[tuple[str, str], ...]
    failed: tuple[str, ...]
    """Parts that failed, and why."""

    def check(self) -> None:
        """Raises PartlyDone when a part failed."""
        if self.failed:
            problem = (
                f"{len(self.failed)} part{'s' if len(self.failed) > 1 else ''} of the study "
                f"failed: {self.failed[0]}"
            )
            raise PartlyDone(problem, "The rest is in the study; the same command tries again")


def study_speedup(request: SpeedupRequest, events: Events = SILENT) -> SpeedupStudy:
    """Train, or read what is recorded, compare, and write results.json and the notebook.

    Everything is checked before anything runs. Raises UsageError for what makes no sense and for a
    folder of another study, ToolMissing, Interrupted, and PerfctlError when no network has two
    devices to compare.
    """
    allowed = allowed_facts(request.allow) | ASKED
    missing: list[tuple[str, str]] = []
    failed: list[str] = []
    if request.source is not None:
        studies = recorded(request.source, events, missing)
        claim(request.folder, "speedup", {"from": str(request.source.resolve())})
    else:
        studies = _trained(request, events, missing)
    store = request.source or request.folder.store
    found: list[Speedup] = []
    for network, study in studies.items():
        try:
            found += speedup.compare_arms(
                study, store, allowed=allowed, peaks=request.peaks, events=events
            ).studies
        except PerfctlError as error:
            why = _reason(study) or str(error)
            missing.append((network, why))
            failed.append(f"{network}: {why}")
    if not found:
        raise PerfctlError(
            f"no network has two devices to compare: {'; '.join(failed) or 'no run trains'}", None
        )
    failed += [f"{one.workload} on {label}: {why}" for one in found for label, why in one.failed]
    failed += [
        f"{one.workload}: {why}" for one in found for other in one.against for why in other.refused
    ]
    newest = tuple(_newest(studies))
    _results(request.folder, found)
    return SpeedupStudy(tuple(found), newest, tuple(missing), tuple(failed))


def parts(request: SpeedupRequest) -> StudyParts:
    """A network on a device each, as tasks of a cluster; the finishing command gathers
    their runs."""
    found, options = [], _options(request)
    ways_asked = _ways(request, SILENT)
    for network in NETWORKS:
        for way in ways_asked:
            words = ["torch", "--workload", network, "--mode", "train", "--device", way.device]
            words += [
                "--precision",
                way.precision,
                "--batches",
                ",".join(map(str, options.batches)),
            ]
            words += [
                "--epochs",
                str(_epochs(request)),
                "--out",
                str(request.folder.runs),
                "--no-store",
            ]
            words += ["--steps", str(options.steps)] if options.steps else []
            words += ["--compile"] if way.also == "compile" else []
            found.append((f"{network} on {way.label}", (*words, *_words(request, network))))
    out = request.folder
    finish: tuple[str, ...] = ("study", "speedup", "--out", str(out.path), "--from", str(out.runs))
    finish += ("--peaks", request.peaks)
    finish += ("--allow", ",".join(request.allow)) if request.allow else ()
    device = "cuda" if any(way.device == "cuda" for way in ways_asked) else "cpu"
    return StudyParts("speedup", out, tuple(found), finish, device)


def _ways(request: SpeedupRequest, events: Events) -> tuple[ways.Way, ...]:
    if request.devices != "auto":
        return ways.read_ways(request.devices)
    # a compiler takes longer than the rest of it
    if request.quick and resolve_device("auto") != "cuda":
        events.note("no GPU here: comparing cpu with cpu:bf16")
        return (ways.Way("cpu"), ways.Way("cpu", "bf16"))
    return ways.default_ways(events)


def _options(request: SpeedupRequest) -> SweepOptions:
    steps = request.steps or (QUICK_STEPS if request.quick else None)
    out, store = request.folder.runs, request.folder.store
    return replace(request.options, batches=request.batches, steps=steps, out=out, store=store)


def _epochs(request: SpeedupRequest) -> int:
    return (QUICK_EPOCHS if request.quick else EPOCHS) if request.epochs is None else request.epochs


def _words(request: SpeedupRequest, network: str) -> tuple[str, ...]:
    """Words for the workload: the quick form's, then the user's. Two threads that share busy cores
    wait for each other."""
    quick = QUICK[network] if request.quick else ()
    alone = ("--threads", "1") if request.quick and resolve_device("auto") != "cuda" else ()
    return (*quick, *alone, *(request.own or {}).get(network, ()))


def _trained(
    request: SpeedupRequest,
    events: Events,
    missing: list[tuple[str, str]],
) -> dict[str, ArmsByBatch]:
    asked = _ways(request, events)
    chosen = [way for way in asked if way.device != "cuda" or resolve_device("auto") == "cuda"]
    if len(chosen) < len(asked):
        lost = ", ".join(way.label for way in asked if way not in chosen)
        events.warning(f"{lost}: {NO_GPU}")
        chosen = list(ways.default_ways(events)) if len(chosen) < 2 else chosen
    if not any(way.device == "cuda" for way in chosen):
        missing.append(("a GPU", NO_GPU))
    options = _options(request)
    made: dict[str, list[tuple[ways.Way, SweepRequest]]] = {}
    for network in NETWORKS:
        own = replace(options, workload=network)
        made[network] = [
            (way, ways.plan_way(way, _epochs(request), own, _words(request, network)))
            for way in chosen
        ]
    for pair in (pair for requests in made.values() for pair in requests):
        ways.check_way(*pair)
    claim(request.folder, "speedup", _asked(request, chosen))
    for network, requests in made.items():
        for way, one in requests:
            events.note(f"{network} on {way.label}:")
            speedup.run_way(one, events)
    return {network: speedup.arms_of(requests) for network, requests in made.items()}


def _asked(request: SpeedupRequest, chosen: Sequence[ways.Way]) -> dict[str, Any]:
    """What decides which numbers come out."""
    return {
        "devices": [way.label for way in chosen],
        "batches": list(request.batches),
        "steps": _options(request).steps,
        "epochs": _epochs(request),
        "repeat": request.options.repeat,
        "networks": {network: list(_words(request, network)) for network in NETWORKS},
    }


def recorded(
    source: Path, events: Events, missing: list[tuple[str, str]]
) -> dict[str, ArmsByBatch]:
    """Workload -> batch size -> arms, of runs that train under one profiler; those of torch
    before others.

    A run's device and precision say which arm it belongs to; what is left out goes to ``missing``.
    Raises UsageError for a path that does not exist, PerfctlError when it holds no whole run,
    StoreError, ReportError.
    """
    if not source.exists():
        raise UsageError(
            f"`source`: {source} does not exist", "Name a store, a folder of runs, or a report"
        )
    store = StudyFolder(source).store
    runs = side(store if store.is_file() else source, store, events).runs
    found: dict[str, ArmsByBatch] = {}
    for network in dict.fromkeys(
        run.workload for run in runs if run.workload and run.mode == "train"
    ):
        mine = [
            run
            for run in runs
            if run.workload == network and run.mode == "train" and run.profiler != "none"
        ]
        if arms := _arms(network, mine, missing):
            found[network] = arms
    if not found:
        what = f"{source}: no workload in it was trained on two devices or in two precisions"
        raise PerfctlError(what, "perfctl speedup and perfctl torch --mode train make such runs")
    return found


def _arms(network: str, runs: Sequence[Run], missing: list[tuple[str, str]]) -> ArmsByBatch:
    """Batch size -> arms, of the profiler and the network's form that the newest runs have; empty
    with one device alone."""
    from perfctl.orchestrator.compare.speedup import Arm, uncompiled

    profiler = next(
        (name for name in ("torch", "kineto", "nsys") if any(run.profiler == name for run in runs)),
        None,
    )
    under = [run for run in runs if run.profiler == profiler]
    if not under:
        return {}
    form = uncompiled(under[-1]).variant
    mine = [run for run in under if uncompiled(run).variant == form]
    if others := len(runs) - len(mine):
        missing.append(
            (
                f"{others} other run{'s' if others > 1 else ''} of {network}",
                "another profiler, or other sizes",
            )
        )
    labels = _labels(mine)
    if len(set(labels.values())) < 2:
        only = next(iter(labels.values()))
        missing.append(
            (network, f"its runs are of {only} alone; a comparison needs two devices or precisions")
        )
        return {}
    order = sorted(set(labels.values()), key=_place)
    batches = sorted({run.batch_size for run in mine if run.batch_size is not None})
    return {
        batch: [
            Arm(
                label,
                tuple(run for run in mine if labels[run.id] == label and run.batch_size == batch),
            )
            for label in order
        ]
        for batch in batches
    }


def _labels(runs: Sequence[Run]) -> dict[int, str]:
    """Run -> "cpu", "cuda:bf16"; with the device's name where runs of one kind are of
    several devices."""
    from perfctl.orchestrator.ledger.prepared import device_label

    kinds: dict[int, str] = {}
    for run in runs:
        compiled = run.report.environment.get("option:compile") == "True"
        also = [
            *([run.precision] if run.precision not in (None, "fp32") else []),
            *(["compile"] if compiled else []),
        ]
        kinds[run.id] = ":".join(("cpu" if run.device_kind == "cpu" else "cuda", *map(str, also)))
    devices: dict[str, set[str | None]] = {}
    for run in runs:
        devices.setdefault(kinds[run.id], set()).add(device_label(run))
    return {
        run.id: f"{kinds[run.id]} ({device_label(run)})"
        if len(devices[kinds[run.id]]) > 1
        else kinds[run.id]
        for run in runs
    }


def _place(label: str) -> tuple[int, str]:
    """The CPU first, plain before what was asked beside it."""
    plain = label.partition(" ")[0]
    return (ways.EVERY_WAY.index(plain) if plain in ways.EVERY_WAY else len(ways.EVERY_WAY), label)


def _reason(study: ArmsByBatch) -> str | None:
    return next(
        (run.reason for arms in study.values() for arm in arms for run in arm.runs if run.reason),
        None,
    )


def _newest(studies: Mapping[str, ArmsByBatch]) -> Iterator[tuple[str, str, Run]]:
    for network, study in studies.items():
        for arms in study.values():
            for arm in arms:
                whole = [run for run in arm.runs if run.status == "ok"]
                if whole:
                    yield network, arm.label, whole[-1]


def _results(folder: StudyFolder, found: Sequence[Speedup]) -> None:
    """The joint results.json, as ``perfctl speedup --json`` writes it, and the notebook that
    reads it."""
    from perfctl.orchestrator.outputs import to_json

    write_text(folder.path / "results.json", json.dumps(to_json(found), indent=1) + "\n")
    notebook = (
        resources.files("perfctl.templates").joinpath("speedup.ipynb").read_text(encoding="utf-8")
    )
    write_text(folder.path / "speedup.ipynb", notebook)
