"""The study of FLOPs: a network on paper, counted, derived and timed, with its memory and its
training, as one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.commands.study.folder import StudyFolder, StudyParts, claim, none_if_empty
from perfctl.orchestrator.errors import PartlyDone, PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.events import SILENT, Events
from perfctl.orchestrator.launch.catalog import check_tools
from perfctl.orchestrator.launch.sweep.options import SweepOptions
from perfctl.orchestrator.launch.sweep.plan import DEFAULT_WORKLOAD, plan_sweep, profiler_named
from perfctl.orchestrator.launch.sweep.request import SweepRequest
from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT
from perfctl.orchestrator.stored_runs import newest_runs
from perfctl.workloads.models.mnist_cnn import CONV2

if TYPE_CHECKING:
    from perfctl.orchestrator.ingest.context import Hear
    from perfctl.orchestrator.ledger.network import Network
    from perfctl.orchestrator.report.studies.flops_findings import FlopsStudy
    from perfctl.orchestrator.report.studies.flops_tables import HandValue
    from perfctl.records.run import Run

PROFILERS = ("torch", "nsys")
"""What can time the layers."""
Reading = Callable[[], AbstractContextManager["Hear | None"]]
"""Gives what hears of reports while they are read."""
_NAMED = 20
"""Layers that an error lists."""
COUNTS = "counts"
QUICK_BATCHES, QUICK_STEPS, QUICK_EPOCHS = (16, 64), 4, 2


@dataclass(frozen=True, slots=True)
class FlopsRequest:
    """What is studied."""

    out: Path = Path("study-flops")
    workload: str | None = None
    """Built-in workload; None for mnist_cnn, or for a program of the user's."""
    arguments: tuple[str, ...] = ()
    """Words for the workload: its own options, data, seed."""
    program: tuple[str, ...] | None = None
    """A program of the user's, with {batch} where the batch size goes."""
    batches: tuple[int, ...] | None = None
    """None for 16, 32, 64, 128 and 256."""
    batch: int = 64
    """Batch size of the training, the memory figures and the hand sheet."""
    epochs: int | None = None
    """Whole epochs of the training; None for 14."""
    steps: int | None = None
    """Measured steps; None for 10, and 1 for counts."""
    conv2: str | None = None
    """A second shape of mnist_cnn's second convolution, studied beside the first:
    in,out,kernel,stride."""
    layer: str | None = None
    """The layer that is looked at closely; None for the one with the most multiply-adds."""
    hand: tuple[str, ...] = ()
    """Values worked out by hand: "conv2=141557760,514112"."""
    device: str = "auto"
    precision: str | None = None
    profiler: str = "torch"
    """torch or nsys, which times the layers; ncu counts where there is a GPU."""
    quick: bool = False
    """Two batch sizes, few steps, two epochs."""
    recorded: Path | None = None
    """Run nothing: a folder, report or store to read."""
    command_line: str = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.batches or (QUICK_BATCHES if self.quick else SweepOptions().batches)

    @property
    def measured(self) -> int:
        return self.steps or (QUICK_STEPS if self.quick else 10)

    @property
    def trained(self) -> int:
        return self.epochs if self.epochs is not None else QUICK_EPOCHS if self.quick else 14

    @property
    def folder(self) -> StudyFolder:
        return StudyFolder(self.out)

    def identity(self) -> dict[str, object]:
        """What decides which runs are made; the hand values and the layer do not."""
        said = asdict(self)
        for name in ("out", "command_line", "hand", "layer", "quick"):
            del said[name]
        return said | {"batches": self.sizes, "steps": self.measured, "epochs": self.trained}


@dataclass(frozen=True, slots=True)
class Part:
    """One sweep of the study."""

    label: str
    """Unique in the study: "clock", "profile-second"."""
    profiler: str
    options: SweepOptions
    arguments: tuple[str, ...]

    def request(self, asked: FlopsRequest, events: Events = SILENT) -> SweepRequest:
        """Checked; raises UsageError."""
        made = profiler_named(self.profiler)
        return plan_sweep(made, self.options, self.arguments, asked.program, events=events)


@dataclass(frozen=True, slots=True)
class FlopsResult:
    """A study that was measured or read, ready to be drawn."""

    study: FlopsStudy

    def check(self) -> None:
        """Raises PartlyDone where a part failed."""
        failed = [f"{what}: {why}" for what, why in self.study.failed]
        if failed:
            raise PartlyDone(
                f"{len(failed)} of the parts gave nothing or not all: {failed[0]}",
                "The rest is on the page",
            )


def sweeps_of(asked: FlopsRequest) -> list[Part]:
    """The sweeps of the study, those of the first network first: clock, training, profile, counts.

    A sweep under ncu is there on an NVIDIA GPU only.
    """
    common = SweepOptions(
        asked.sizes,
        workload=None if asked.program else asked.workload or DEFAULT_WORKLOAD,
        steps=asked.measured,
        device=asked.device,
        precision=asked.precision,
        out=asked.folder.runs,
        store=asked.folder.store,
        command_line=asked.command_line,
        warmup=2 if asked.quick else None,
    )
    timed = () if asked.program else ("--layer-steps", str(asked.measured))
    found = []
    for tail, own in (("", ()), *((("-second", ("--conv2", asked.conv2)),) if asked.conv2 else ())):
        words = (*asked.arguments, *own)
        others = tuple(size for size in asked.sizes if asked.program or size != asked.batch)
        if others:
            found.append(
                Part(f"clock{tail}", "none", replace(common, batches=others), (*timed, *words))
            )
        if not asked.program:
            once = replace(common, batches=(asked.batch,))
            found.append(
                Part(
                    f"training{tail}",
                    "none",
                    once,
                    (*timed, "--epochs", str(asked.trained), *words),
                )
            )
        found.append(Part(f"profile{tail}", asked.profiler, common, words))
        found.append(Part(f"{COUNTS}{tail}", "ncu", replace(common, steps=asked.steps), words))
    return found


def parts(asked: FlopsRequest) -> StudyParts:
    """The sweeps as tasks of a cluster; the finishing command gathers their runs."""
    shared = [
        "--batch",
        str(asked.batch),
        "--epochs",
        str(asked.trained),
        "--profiler",
        asked.profiler,
    ]
    for name in ("workload", "steps", "conv2", "precision"):
        if (value := getattr(asked, name)) is not None:
            shared += [f"--{name}", str(value)]
    shared += ["--quick"] if asked.quick else []
    words = ["--device", asked.device, "--batches", ",".join(map(str, asked.sizes)), *shared]
    after = ("--", *asked.program) if asked.program else ()
    out = ("study", "flops", "--out", str(asked.out))
    each = tuple(
        (one.label, (*out, *words, "--part", one.label, *asked.arguments, *after))
        for one in sweeps_of(asked)
        if not (one.profiler == "ncu" and asked.device == "cpu")
    )
    shown = [word for value in asked.hand for word in ("--hand", value)]
    shown += ["--layer", asked.layer] if asked.layer else []
    finish = (*out, "--from", str(asked.folder.runs), "--batch", str(asked.batch), *shown)
    return StudyParts("flops", asked.folder, each, finish, asked.device)


def check(asked: FlopsRequest) -> None:
    """Everything that can be wrong, before anything runs. Raises UsageError."""
    hand_values(asked.hand)
    if asked.profiler not in PROFILERS:
        raise UsageError(
            f"`profiler`: '{asked.profiler}' does not time layers here",
            f"Use {' or '.join(PROFILERS)}",
        )
    if asked.trained < 0 or asked.measured < 1 or asked.batch < 1:
        raise UsageError("`epochs` must be at least 0, `steps` and `batch` at least 1")
    if asked.recorded is not None:
        if asked.program is not None or asked.arguments:
            raise UsageError(
                "`recorded` runs nothing: it takes no program and no options of a workload",
                "Leave these out",
            )
        if not asked.recorded.exists():
            raise UsageError(
                f"`recorded`: there is no {asked.recorded}", "Name a folder, a report or a store"
            )
        return
    if asked.conv2 is not None and (
        asked.program or (asked.workload or DEFAULT_WORKLOAD) != DEFAULT_WORKLOAD
    ):
        raise UsageError(
            "`conv2` is a second shape of mnist_cnn, and another network is studied", "Leave it out"
        )
    for one in sweeps_of(asked):
        one.request(asked)


def hand_values(texts: Sequence[str]) -> list[tuple[str, int]]:
    """ "conv2=141557760,514112" as (layer, value) of each. Raises UsageError naming what
    is wrong."""
    found = []
    for text in texts:
        layer, equals, values = text.partition("=")
        numbers = [piece.strip().replace("_", "") for piece in values.split(",")]
        if (
            not layer
            or not equals
            or not all(piece.isdecimal() and piece.isascii() for piece in numbers)
        ):
            raise UsageError(
                f"`hand`: '{text}' is not a layer with values",
                "Write for instance `hand` conv2=141557760,514112",
            )
        found += [(layer.strip(), int(piece)) for piece in numbers]
    return found


def study_flops(
    asked: FlopsRequest,
    *,
    reading: Reading = nullcontext,
    events: Events = SILENT,
) -> FlopsResult:
    """Run the parts that are not there yet, or read what is recorded; what comes out is drawn by
    ``flops.page``.

    A part that fails does not stop the others: :meth:`FlopsResult.check` raises for it.
    Raises UsageError before anything runs, ToolMissing without torch, Interrupted when asked to
    stop, PerfctlError when there is no run to show.
    """
    check(asked)
    claim(asked.folder, "flops", asked.identity())
    if asked.recorded is not None:
        with none_if_empty(asked.folder):
            return FlopsResult(_study(asked, _recorded(asked, reading), ()))
    failed = []
    for part in sweeps_of(asked):
        if (absent := cannot_count(part, asked)) is not None:
            events.note(f"{part.label}: {absent}")
        elif (problem := _run(part, asked, events)) is not None:
            failed.append((_said(part), problem))
    return FlopsResult(_study(asked, asked.folder.store, tuple(failed)))


def run_part(asked: FlopsRequest, label: str, *, events: Events = SILENT) -> None:
    """Run one part beside others, into its run folders only. Raises UsageError for a label that is
    not known."""
    check(asked)
    known = {one.label: one for one in sweeps_of(asked)}
    if label not in known:
        raise UsageError(f"`part`: '{label}' is not known", f"Use {', '.join(known)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    part = replace(known[label], options=replace(known[label].options, no_store=True))
    if (problem := _run(part, asked, events)) is not None:
        raise PartlyDone(f"{label}: {problem}", None)


def _said(part: Part) -> str:
    second = " of the second shape" if part.label.endswith("-second") else ""
    return ("counted FLOPs" if part.profiler == "ncu" else part.label.partition("-")[0]) + second


def cannot_count(part: Part, asked: FlopsRequest) -> str | None:
    """Why ncu cannot count here; None where it can, and for a part that counts nothing. That is
    no failure."""
    if part.profiler != "ncu":
        return None
    request = part.request(asked)
    if request.device != "cuda":
        return "no counts: the runs are on a CPU, and FLOPs are counted on NVIDIA GPUs only"
    try:
        check_tools(request.profiler, request.device)
    except ToolMissing as missing:
        return f"no counts: {missing}"
    return None


def _run(part: Part, asked: FlopsRequest, events: Events) -> str | None:
    """Why the part gave nothing or not all; None when it is whole. Raises ToolMissing when nothing
    at all can run."""
    from perfctl.orchestrator.ingest.sweep import run_sweep

    request = part.request(asked, events)
    events.note(f"{part.label}:")
    try:
        done = run_sweep(request, events)
        done.check()
    except ToolMissing as missing:
        if part.profiler == "none":
            raise
        return str(missing)
    except PartlyDone as problem:
        return str(problem)
    return None


def _recorded(asked: FlopsRequest, reading: Reading) -> Path:
    """The store with the recorded runs: the one that was named or stands in the folder, else a new
    one of all reports."""
    from perfctl.orchestrator.ingest.context import UserHints, hear_nothing
    from perfctl.orchestrator.ingest.ingest import ingest

    place = asked.recorded
    assert place is not None
    if (
        place.is_file()
        and place.read_bytes()[:15] == b"SQLite format 3"
        and place.suffix == DEFAULT.suffix
    ):
        return place
    if (place / DEFAULT).is_file():
        return place / DEFAULT
    runs = place / asked.folder.runs.name if (place / asked.folder.runs.name).is_dir() else place
    hints = UserHints(workload=asked.workload, precision=asked.precision)
    with reading() as listener:
        done = ingest(
            [runs],
            asked.folder.store,
            hints=hints,
            listener=listener or hear_nothing,
            command_line=asked.command_line,
        )
    if done.failed and not done.taken:
        done.check()
    return asked.folder.store


def _study(asked: FlopsRequest, store: Path, failed: tuple[tuple[str, str], ...]) -> FlopsStudy:
    from perfctl.orchestrator.commands.report import report
    from perfctl.orchestrator.report.studies.flops_findings import FlopsStudy

    networks = networks_of(newest_runs(store), asked.workload)
    if not networks:
        which = f" of {asked.workload}" if asked.workload else ""
        why = f": {failed[0][1]}" if failed else ""
        raise PerfctlError(
            f"{store}: no run{which} with a batch size and shapes of its layers{why}",
            "Name the network with `workload`",
        )
    layer = asked.layer or networks[0].main_layer() or ""
    sizes = networks[0].batches
    batch = asked.batch if asked.batch in sizes else sizes[-1]
    if networks[0].sheet(batch, layer) is None:
        raise _no_layer("layer", layer, networks[0], batch)
    report(store, asked.out / "report.html")
    return FlopsStudy(
        networks,
        layer,
        batch,
        tuple(_checked(asked, networks, batch)),
        failed,
        asked.command_line or None,
        (("Every layer, kernel, operation and run of this study", "report.html"),),
    )


def _no_layer(option: str, layer: str, network: Network, batch: int) -> UsageError:
    names = list(dict.fromkeys(line.layer for line in network.network_sheet(batch).lines))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    remedy = f"There are {', '.join(names[:_NAMED])}{more}; the runs are kept" if names else None
    return UsageError(f"`{option}`: no layer '{layer}' in these runs", remedy)


def networks_of(runs: Sequence[Run], workload: str | None = None) -> tuple[Network, ...]:
    """The networks of one workload, that of the first run if none is named, each with the analyses
    of its runs."""
    from perfctl.orchestrator.ledger.analysis import analyse_all
    from perfctl.orchestrator.ledger.network import Network
    from perfctl.orchestrator.ledger.prepared import studies

    found = [one for one in studies(runs) if not one.foreign and workload in (None, one.workload)]
    shaped = [one for one in found if any(run.report.ops for run in one.runs)]
    if not shaped:
        return ()
    first = min(shaped, key=lambda one: (one.workload != DEFAULT_WORKLOAD, one.variant is not None))
    kin = [
        one
        for one in found
        if (one.workload, one.mode, one.precision) == (first.workload, first.mode, first.precision)
    ]
    variants = dict.fromkeys([first.variant, *(one.variant for one in shaped if one in kin)])
    analysed = analyse_all(kin)
    return tuple(
        Network(_label(of[0].study.runs), tuple(of))
        for variant in variants
        if (of := [one for one in analysed if one.study.variant == variant])
    )


def _label(runs: Sequence[Run]) -> str:
    """ "conv2 32,64,3,1" for mnist_cnn, whose runs record it; else the options that are not at
    their default."""
    first = runs[0]
    shape = next(
        (value for run in runs if (value := run.report.environment.get("option:conv2"))), None
    )
    if shape is not None:
        return f"conv2 {shape.strip('[]()').replace(' ', '')}"
    if first.workload == DEFAULT_WORKLOAD and first.variant is None:
        return f"conv2 {','.join(map(str, CONV2))}"
    # not a program's arguments
    own = first.variant if first.variant and not first.variant.startswith("-") else None
    return (own or first.workload or "").replace("=", " ")


def _checked(asked: FlopsRequest, networks: Sequence[Network], batch: int) -> Iterator[HandValue]:
    """Each hand value with the sheet that explains it best: exactly before nearly, few slips before
    many, ``batch`` first."""
    from perfctl.orchestrator.estimate.sheets.slips import check as compare
    from perfctl.orchestrator.report.studies.flops_tables import HandValue

    typed = hand_values(asked.hand)
    stated = [one for one in _stated(networks) if one[:2] not in typed]
    for layer, value, at in (*((*one, None) for one in typed), *stated):
        found: list[tuple[tuple[object, ...], HandValue]] = []
        for place, network in enumerate(networks):
            for size in network.batches if at is None else (at,):
                sheet = network.sheet(size, layer)
                if sheet is not None:
                    said = compare(value, sheet.facts, sheet.quantities)
                    rank = (
                        not said.exact,
                        len(said.slips) if said.exact else 0,
                        place,
                        size != batch,
                        size,
                    )
                    found.append((rank, HandValue(layer, network.label, size, said)))
        if not found:
            raise _no_layer("hand", layer, networks[0], batch)
        exact = [one for one in found if one[1].finding.exact]
        here = [one for one in found if one[1].batch == batch] or found
        yield min(exact or here, key=lambda one: one[0])[1]


def _stated(networks: Sequence[Network]) -> Iterator[tuple[str, int, int | None]]:
    """(layer, value, batch size) of hand estimates that came with the reports."""
    seen: set[tuple[str, int]] = set()
    for network in networks:
        for run in network.runs:
            for item in run.report.summaries:
                kind, _, rest = item.name.partition(":")
                layer = rest.partition(":")[0]
                if (
                    kind == "hand_estimate"
                    and item.value is not None
                    and (layer, int(item.value)) not in seen
                ):
                    seen.add((layer, int(item.value)))
                    yield layer, int(item.value), run.batch_size
