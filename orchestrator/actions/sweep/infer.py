"""Inference sweeps over models of torchvision: latency, images/s and accuracy, each batch size a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.sweep.options import NONE, LocalPlacement, SweepOptions
from perfctl.orchestrator.actions.sweep.request import sweep_request, workload_errors
from perfctl.orchestrator.actions.sweep.sweep import Listening, Swept, profiler_named, run_request, unheard
from perfctl.orchestrator.errors import UsageError
from perfctl.workloads.run.options import parse_arguments
from perfctl.workloads.spec import SpecError

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.sweep.request import SweepRequest

WORKLOAD = "torchvision_infer"


def infer(
    requests: dict[str, SweepRequest],
    store: Path | None = None,
    *,
    listening: Listening = unheard,
    began: Callable[[str], None] = lambda model: None,
    ended: Callable[[str, Swept], None] = lambda model, done: None,
) -> dict[str, Swept]:
    """Run the sweep of each model (from ``infer_requests``), one after the other; one that fails does not stop the others.

    ``store`` None stands for perfctl.db beside the sweeps' folder. Raises ToolMissing before anything runs, Interrupted.
    """
    done = {}
    for model, request in requests.items():
        began(model)
        done[model] = run_request(request, store, listening)
        ended(model, done[model])
    return done


def infer_requests(
    models: Sequence[str],
    profiler: str,
    options: SweepOptions,
    *,
    arguments: Sequence[str] = (),
    placement: LocalPlacement = NONE,
    only_planned: bool = False,
    messages: Messages = SILENT,
) -> dict[str, SweepRequest]:
    """Model -> its sweep, everything checked before anything runs.

    ``arguments`` are words for the workload torchvision_infer. ``only_planned``: do not ask torchvision for the models.
    Raises UsageError.
    """
    if not models:
        raise UsageError("`models` names no model", "Say for instance resnet18,densenet201")
    if len(set(models)) < len(models):
        raise UsageError(f"a model stands twice in {','.join(models)}", "Name each once")
    made = profiler_named(profiler, ("none", "nsys", "torch", "dlprof"))
    asked = replace(options, workload=WORKLOAD)
    requests = {
        model: sweep_request(made, asked, ("--model", model, *arguments), None, placement=placement, messages=messages)
        for model in models
    }
    _check_workload(models, asked, tuple(arguments), inside=placement.image is not None, only_planned=only_planned)
    return requests


def _check_workload(
    models: Sequence[str], asked: SweepOptions, arguments: tuple[str, ...], *, inside: bool, only_planned: bool
) -> None:
    """Raises UsageError for batch sizes that the workload refuses, and for files and models that are not there.

    ``inside`` an image there may be other files and models than here, so only the workload itself can look.
    """
    with workload_errors(WORKLOAD):
        for batch in asked.batches:
            options, own = parse_arguments(WORKLOAD, ["--batch", str(batch), "--model", models[0], *arguments])
            if inside:
                continue
            if own.weights not in ("default", "none") and not Path(own.weights).is_file():
                raise SpecError(f"`weights` {own.weights}: there is no such file; use default, none, or a checkpoint")
            if options.data_dir is not None and not options.data_dir.is_dir():
                raise SpecError(f"`data_dir` {options.data_dir}: there is no such folder")
        if only_planned or inside:
            return
        from perfctl.workloads.models.torchvision import family_of

        for model in models:
            family_of(model)
