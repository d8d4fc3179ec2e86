"""perfctl study: its commands flops, inference, speedup and cost, the options that they share, and
what they print at the end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfctl.orchestrator.cli import console, options, progress
from perfctl.orchestrator.cli.commands import (
    AFTER,
    PASS_ON_CONTEXT,
    Command,
    CommandList,
    Shown,
    show_events,
)
from perfctl.orchestrator.cli.measure.profilers import AFTER, PASS_ON_CONTEXT
from perfctl.orchestrator.cli.measure.speedup import Allow, Ways
from perfctl.orchestrator.commands.study.folder import StudyFolder, StudyParts, write_study
from perfctl.orchestrator.compare.speedup import ALLOWED
from perfctl.orchestrator.options import read_batches
from perfctl.orchestrator.report.studies.records import StudyPage

Ways = Annotated[
    str,
    typer.Option(
        "--devices",
        metavar="LIST",
        help=(
            "What to compare, the others with the first: cpu, cuda, each with :tf32 (cuda), :bf16, "
            ":fp16 (cuda) or :compile. auto: cpu and cuda; without a GPU cpu, cpu:bf16 and "
            "cpu:compile."
        ),
    ),
]
Allow = Annotated[
    str | None,
    typer.Option("--allow", metavar="LIST", help=f"Facts that may differ: {', '.join(ALLOWED)}."),
]
if TYPE_CHECKING:
    from perfctl.orchestrator.ingest.context import Hear

Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", help="Folder of the study: runs, store, page, summary, tables, charts."
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="A small form that takes under 3 minutes on two CPU cores.")
]
Recorded = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="PATH",
        help="Run nothing: take the runs from this folder, report or store.",
    ),
]


DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Run nothing: print the commands of the study's parts, for a batch system.",
    ),
]
_TAKEN: ContextVar[list[StudyParts] | None] = ContextVar("taken", default=None)
Unet = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS",
        help="Options of U-Net, in quotation marks: '--base-width 32 --samples 512'.",
    ),
]
Lstm = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS", help="Options of the BiLSTM: '--hidden 64 --length 32 --samples 512'."
    ),
]
SpeedupEpochs = Annotated[
    int | None,
    typer.Option(min=0, help="Whole epochs after the measured steps. Default: 5; quick: 3."),
]
InferenceModels = Annotated[
    str | None, typer.Option("--models", "-m", help="Models of torchvision: resnet152,densenet201.")
]
Images = Annotated[int, typer.Option("--images", min=1, help="Images of each timed run.")]
Weights = Annotated[
    str,
    typer.Option(
        "--weights", help="default (published), none (random: no accuracy), or a checkpoint."
    ),
]
WeightsDir = Annotated[
    Path | None, typer.Option("--weights-dir", help="Folder for published weights.")
]
Data = Annotated[
    str,
    typer.Option("--data", help="synthetic, or imagenet with --data-dir; accuracy needs imagenet."),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of class folders.")]
Workers = Annotated[
    int, typer.Option("--dataloader-workers", min=0, help="Processes that load images.")
]
WithProfiler = Annotated[
    str,
    typer.Option(
        "--profiler",
        "-p",
        help=(
            "What the three reports come from: nsys, torch, dlprof or none. auto: nsys on a GPU, "
            "else torch."
        ),
    ),
]
ProfiledSteps = Annotated[
    int, typer.Option("--profiled-steps", min=1, help="Batches of each profiled run.")
]
Batch = Annotated[
    int,
    typer.Option(min=1, help="Batch size of the training, the memory figures and the hand sheet."),
]
FlopsEpochs = Annotated[
    int | None, typer.Option(min=0, help="Epochs of the training, each with a test. Default: 14.")
]
Conv2 = Annotated[
    str | None,
    typer.Option(
        metavar="IN,OUT,KERNEL,STRIDE",
        help="A second shape of mnist_cnn's conv2, beside the first: 32,128,5,1.",
    ),
]
Layer = Annotated[
    str | None,
    typer.Option(help="The layer to look at closely. Default: the one with most multiply-adds."),
]
Hand = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LAYER=N,N",
        help="Values worked out by hand, to be checked: conv2=141557760,514112.",
    ),
]
TimedBy = Annotated[
    str,
    typer.Option(
        "--profiler", "-p", help="What times the layers: torch or nsys. ncu counts, on a GPU."
    ),
]
PartOf = Annotated[
    str | None,
    typer.Option("--part", metavar="LABEL", help="Run this part only (tasks of a cluster)."),
]
Design = Annotated[
    Path | None,
    typer.Option(
        "--design",
        metavar="FILE",
        help="Networks to measure, as of perfctl bench. Default: four families.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help=(
            "Stop after this time: 30m, 2h, 90s. 0 only takes in what is there. Default: no limit."
        ),
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads of a run. Default: what the file says.")
]
BenchDevice = Annotated[
    str | None, typer.Option(help="cpu, cuda or auto. Default: what the file says.")
]
CalculatorModels = Annotated[
    str,
    typer.Option(
        metavar="NAMES", help="torchvision models in the calculator: all, none, or resnet50,vgg16."
    ),
]
Prices = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Price table (CSV) of the calculator; default: your own, else perfctl's.",
    ),
]
study = typer.Typer(
    name="study",
    cls=CommandList,
    no_args_is_help=True,
    help="Do a whole study: measure, compare, and write a page and a summary.",
)


@contextmanager
def taking_parts() -> Iterator[list[StudyParts]]:
    """Parts that --dry-run would print inside the block, instead of printing them."""
    taken: list[StudyParts] = []
    token = _TAKEN.set(taken)
    try:
        yield taken
    finally:
        _TAKEN.reset(token)


def show_parts(study: StudyParts) -> None:
    """A line for each command of a study, the one that makes the page last; files that they name
    are written."""
    taken = _TAKEN.get()
    if taken is not None:
        taken.append(study)
        return
    study.write_files()
    for path, _ in study.files:
        console.note(f"Wrote {path}, which these commands name")
    for words in (*(words for _, words in study.parts), study.finish):
        console.result(shlex.join(["perfctl", *words]))


def write_and_show(made: Callable[[], StudyPage], folder: StudyFolder) -> None:
    """Write the study, print its findings and the names of what was written."""
    studies: list[StudyPage] = []

    def once() -> StudyPage:
        studies.append(made())
        return studies[0]

    written = write_study(once, folder)
    for place, finding in enumerate(studies[0].findings, 1):
        console.result(f"{place}  {finding.text}")
    for what, why in studies[0].missing:
        console.note(f"not in this study: {what}: {why}")
    for path in written:
        console.result(f"Wrote {path}")


def speedup(
    devices: Ways = "auto",
    batches: options.Batches = "16",
    steps: options.Steps = None,
    epochs: SpeedupEpochs = None,
    unet: Unet = None,
    lstm: Lstm = None,
    repeat: options.Repeat = 1,
    timeout: options.Timeout = None,
    allow: Allow = None,
    peaks: options.Peaks = "published",
    quick: Quick = False,
    dry_run: DryRun = False,
    source: Recorded = None,
    out: Out = Path("study-speedup"),
) -> None:
    """Train U-Net and BiLSTM on each device, and write one page: how many times faster, how sure,
    and why.

    Without a GPU it compares ways of the CPU. Runs of another machine come in with --from. 1
    multiply-add = 2 FLOPs.
    """
    from perfctl.orchestrator.commands.study import speedup as actions
    from perfctl.orchestrator.launch.sweep.options import SweepOptions
    from perfctl.orchestrator.report.studies import speedup as page

    request = actions.SpeedupRequest(
        StudyFolder(out),
        devices,
        read_batches(batches),
        steps,
        epochs,
        SweepOptions(repeat=repeat, timeout=timeout, command_line=console.command_line()),
        {"unet": tuple(shlex.split(unet or "")), "lstm": tuple(shlex.split(lstm or ""))},
        quick,
        source,
        tuple(options.names(allow)),
        peaks,
    )
    if dry_run:
        show_parts(actions.parts(request))
        return
    with show_events() as events:
        done = actions.study_speedup(request, events)
    origin = f"recorded in {source}" if source else None
    write_and_show(
        lambda: page.study_page(
            done.speedups,
            done.runs,
            missing=done.missing,
            origin=origin,
            command=console.command_line(),
        ),
        request.folder,
    )
    done.check()


def inference(
    models: InferenceModels = None,
    batches: options.Batches = "1,5,10,15,20",
    images: Images = 3000,
    weights: Weights = "default",
    weights_dir: WeightsDir = None,
    data: Data = "synthetic",
    data_dir: DataDir = None,
    dataloader_workers: Workers = 0,
    profiler: WithProfiler = "auto",
    profiled_steps: ProfiledSteps = 10,
    warmup: options.Warmup = None,
    device: options.Device = "auto",
    precision: options.Precision = None,
    timeout: options.Timeout = None,
    quick: Quick = False,
    dry_run: DryRun = False,
    recorded: Recorded = None,
    out: Out = Path("study-inference"),
) -> None:
    """Study inference at low batch: models x batch sizes on one page, with latency, images/s,
    utilisation, accuracy.

    Each model and batch size runs by itself for its times, then under a profiler for its kernels.
    The same command goes on where it was stopped. --quick: resnet18 and mobilenet_v2 with random
    weights, 20 images, batch sizes 1, 5 and 20. --from: nvidia-smi logs, DLProf reports, perfctl's
    own runs or a store, with nothing run.
    """
    from perfctl.orchestrator.commands.study import inference as actions

    named = tuple(name.strip() for name in (models or "").split(",") if name.strip())
    asked = actions.InferenceStudy(
        named,
        read_batches(batches),
        images,
        weights,
        weights_dir,
        data,
        data_dir,
        dataloader_workers,
        profiler,
        profiled_steps,
        warmup,
        device,
        precision,
        timeout,
        recorded=recorded,
    )
    asked = replace(actions.quick(asked), recorded=recorded) if quick else asked
    if dry_run:
        show_parts(actions.parts(asked, out))
        return
    with show_events() as events:
        done = actions.inference_study(
            asked, out, events=events, command_line=console.command_line()
        )
    write_and_show(done.page, done.folder)
    done.check()


def flops(
    context: typer.Context,
    workload: options.Workload = None,
    batches: Annotated[
        str | None, typer.Option("--batches", "-b", help="Batch sizes. Default: 16,32,64,128,256.")
    ] = None,
    batch: Batch = 64,
    epochs: FlopsEpochs = None,
    steps: options.Steps = None,
    conv2: Conv2 = None,
    layer: Layer = None,
    hand: Hand = None,
    device: options.Device = "auto",
    precision: options.Precision = None,
    profiler: TimedBy = "torch",
    out: Out = Path("study-flops"),
    quick: Quick = False,
    recorded: Recorded = None,
    part: PartOf = None,
    dry_run: DryRun = False,
) -> None:
    """Compare the FLOPs of a network with pen and paper: sheet, counts, time by two clocks, memory,
    training, one page.

    The MNIST CNN by default. Options that are not listed here go to the workload: --model resnet18
    (torchvision), --data mnist --data-dir DIR, --seed 1. A program of your own follows --: --
    python train.py --batch-size {batch}. FLOPs count 1 multiply-add as 2. The same command again
    goes on where it stopped. Exit code 4: some parts failed, the rest is there.
    """
    from perfctl.orchestrator.commands.study.flops import (
        FlopsRequest,
        check,
        parts,
        run_part,
        study_flops,
    )
    from perfctl.orchestrator.report.studies.flops import page

    asked = FlopsRequest(
        out,
        workload,
        tuple(context.args),
        context.meta.get(AFTER),
        read_batches(batches) if batches else None,
        batch,
        epochs,
        steps,
        conv2,
        layer,
        tuple(hand or ()),
        device,
        precision,
        profiler,
        quick,
        recorded,
        console.command_line(),
    )
    if dry_run:
        check(asked)
        show_parts(parts(asked))
        return
    if part is not None:
        with show_events() as events:
            run_part(asked, part, events=events)
        return
    with show_events() as events:
        result = study_flops(asked, reading=listening_to_reports, events=events)
    write_and_show(lambda: page(result.study), asked.folder)
    result.check()


@contextmanager
def _listening_to_reports() -> Iterator[Hear]:
    from perfctl.orchestrator.commands.ingest import Hearer

    with progress.working() as steps:
        yield Hearer(Shown(steps))


def cost(
    design: Design = None,
    device: BenchDevice = None,
    threads: Threads = None,
    budget: Budget = None,
    models: CalculatorModels = "none",
    prices: Prices = None,
    quick: Quick = False,
    dry_run: DryRun = False,
    source: Recorded = None,
    out: Out = Path("study-cost"),
) -> None:
    """Measure VGG, ResNet, Inception and fully connected networks, and write what their time,
    memory and FLOPs go with.

    Fits a predictor, shows its error for networks left out, and writes the calculator's page. 1
    multiply-add = 2 FLOPs.
    """
    from perfctl.orchestrator.commands.bench import seconds
    from perfctl.orchestrator.commands.study import cost as actions
    from perfctl.orchestrator.report.studies import cost as page

    request = actions.CostRequest(
        StudyFolder(out),
        design,
        quick,
        device,
        threads,
        seconds(budget) if budget is not None else None,
        models,
        source,
        console.command_line(),
        prices,
    )
    if dry_run:
        show_parts(actions.parts(request))
        return
    with show_events() as events:
        done = actions.study_cost(request, events)
    write_and_show(
        lambda: page.study_page(
            done.points,
            done.observations,
            done.fits,
            calculator=done.calculator,
            missing=done.missing,
            origin=f"recorded in {source}" if source else None,
            command=console.command_line(),
        ),
        request.folder,
    )
    if done.calculator:
        console.result(f"Wrote {request.folder.path / done.calculator}")
    done.check()


study.command(
    "flops",
    short_help="FLOPs of a network against pen and paper.",
    cls=Command,
    context_settings=PASS_ON_CONTEXT,
)(flops)
study.command("inference", short_help="Inference at low batch: models x batch sizes.")(inference)
study.command("speedup", short_help="U-Net and BiLSTM: each device against the first.")(speedup)
study.command("cost", short_help="What the time, memory and FLOPs of networks depend on.")(cost)
