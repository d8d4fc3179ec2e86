"""perfctl study inference"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.cli.study.shared import DryRun, Out, Quick, Recorded, show_parts, write_and_show

Models = Annotated[str | None, typer.Option("--models", "-m", help="Models of torchvision: resnet152,densenet201.")]
Images = Annotated[int, typer.Option("--images", min=1, help="Images of each timed run.")]
Weights = Annotated[
    str, typer.Option("--weights", help="default (published), none (random: no accuracy), or a checkpoint.")
]
WeightsDir = Annotated[Path | None, typer.Option("--weights-dir", help="Folder for published weights.")]
Data = Annotated[str, typer.Option("--data", help="synthetic, or imagenet with --data-dir; accuracy needs imagenet.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of class folders.")]
Workers = Annotated[int, typer.Option("--dataloader-workers", min=0, help="Processes that load images.")]
WithProfiler = Annotated[
    str,
    typer.Option(
        "--profiler",
        "-p",
        help="What the three reports come from: nsys, torch, dlprof or none. auto: nsys on a GPU, else torch.",
    ),
]
ProfiledSteps = Annotated[int, typer.Option("--profiled-steps", min=1, help="Batches of each profiled run.")]


def inference(
    models: Models = None,
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
    """Study inference at low batch: models x batch sizes on one page, with latency, images/s, utilisation, accuracy.

    Each model and batch size runs by itself for its times, then under a profiler for its kernels. The same command goes
    on where it was stopped. --quick: resnet18 and mobilenet_v2 with random weights, 20 images, batch sizes 1, 5 and 20.
    --from: nvidia-smi logs, DLProf reports, perfctl's own runs or a store, with nothing run.
    """
    from perfctl.orchestrator.actions.study import inference as actions
    from perfctl.orchestrator.cli.measure.profilers import listening

    named = tuple(name.strip() for name in (models or "").split(",") if name.strip())
    asked = actions.InferenceStudy(
        named, options.batch_list(batches), images, weights, weights_dir, data, data_dir, dataloader_workers, profiler,
        profiled_steps, warmup, device, precision, timeout, recorded=recorded,
    )  # fmt: skip
    asked = replace(actions.quick(asked), recorded=recorded) if quick else asked
    if dry_run:
        show_parts(actions.parts(asked, out))
        return
    done = actions.inference_study(
        asked, out, listening=listening, messages=console, command_line=console.command_line()
    )
    write_and_show(done.page, done.folder)
    done.check()
