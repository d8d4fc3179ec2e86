"""Replay a recorded sweep of any profiler, without a GPU or the tool."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.commands import profile
from perfctl.orchestrator.commands.declare import Command, Events, Option, api
from perfctl.orchestrator.launch.sweep.options import StoredSweep
from perfctl.orchestrator.options import read_batches

if TYPE_CHECKING:
    from perfctl.orchestrator.ingest.sweep import PlannedCommand, Swept


@dataclass(frozen=True, slots=True)
class ReplayOptions(StoredSweep):
    """Replay a recorded sweep of any profiler, without a GPU or a profiler. perfctl marks its runs
    as recorded.

    Raises UsageError if the folder is not a recorded sweep, StoreError.
    """

    folder: Annotated[
        Path,
        Option("Folder of a recorded sweep, with b16, b32, ...", is_argument=True),
    ]
    _: KW_ONLY
    batches: Annotated[
        tuple[int, ...],
        Option(
            "Batch sizes. Default: all recorded batch sizes.",
            names=("--batches", "-b"),
            metavar="LIST",
            parse=read_batches,
            is_common=True,
        ),
    ] = ()
    dry_run: profile.DryRun = False


def run(asked: ReplayOptions, events: Events) -> Swept | list[PlannedCommand]:
    """Replay the sweep, or say what would be started."""
    from perfctl.orchestrator.launch.sweep.plan import plan_replay

    asked = profile.with_python_call(asked, "perfctl.replay(")
    request = plan_replay(asked.folder, asked, asked.batches)
    return profile.run_or_plan(request, events, dry_run=asked.dry_run)


COMMAND = Command(
    ReplayOptions,
    run,
    profile.view,
    outputs=profile.OUTPUTS,
    has_document=False,
    check=profile.check,
    examples=(
        "perfctl replay perfctl-runs/torch-mnist_cnn-d31dc50c",
        "perfctl replay recorded/nsys --batches 16,32",
    ),
)
replay = api(ReplayOptions, run)
