"""Sweeps: measure a program under a profiler, one process per batch size (perfctl nsys, ncu, torch,
dlprof), measure inference over models of torchvision, and replay a recorded sweep.

What follows ``--`` is a program of the user's, and no option in it is perfctl's.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from perfctl.orchestrator.commands.declare import (
    Command,
    Events,
    Option,
    ProgramWords,
    WorkloadWords,
    list_declared_options,
    make_api_function,
    split_at_commas,
    suggest_report_command,
)
from perfctl.orchestrator.counts.kernels.replays import describe_replay_cost
from perfctl.orchestrator.errors import PartlyDone
from perfctl.orchestrator.estimate.flops.registered import KERNELS, execute_formula_file_once
from perfctl.orchestrator.ingest.expect import (
    parse_formulas_and_formula_files,
    store_expectations_and_yield_problems,
)
from perfctl.orchestrator.ingest.sweep import (
    ModelCommand,
    ModelSwept,
    NcuCost,
    PlannedCommand,
    Swept,
    estimate_ncu_replay_cost,
    list_planned_commands,
    run_and_store_sweep,
)
from perfctl.orchestrator.launch.catalog import format_shell_command
from perfctl.orchestrator.launch.profilers.dlprof import DLProf
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.outcome import ToolProfiler
from perfctl.orchestrator.launch.profilers.torch import TorchProfiler
from perfctl.orchestrator.launch.sweep.options import (
    MEASURE,
    OUTPUT,
    PROFILER,
    StoredSweepOptions,
    SweepOptions,
    raise_if_placement_options_set,
)
from perfctl.orchestrator.launch.sweep.plan import (
    make_profiler_by_name,
    plan_replay,
    plan_sweep,
    plan_torchvision_inference_sweeps,
)
from perfctl.orchestrator.launch.sweep.request import Profiler, SweepRequest
from perfctl.orchestrator.options import (
    Expect,
    Formulas,
    extract_base_class_fields,
    parse_batch_sizes,
)
from perfctl.orchestrator.report.view import RawLines, View

Stored = TypeVar("Stored", bound=StoredSweepOptions)
Asked = TypeVar("Asked", bound="ProfileOptions")

SWEEPS: dict[str, type[ToolProfiler]] = {
    "nsys": Nsys,
    "ncu": Ncu,
    "torch": TorchProfiler,
    "dlprof": DLProf,
}
"""Name of each command -> the profiler, whose fields are its options."""
OUTPUTS = ("sweep", "sweep-commands")
EXAMPLES = (
    "--batches 16,32,64",
    "--batches 16,32 -- python train.py --batch-size {batch}",
)
"""Words after the name of each command."""
NOTES = (
    "Put your own script after --, with {batch} in place of the batch size, and {N} in place of a "
    "parameter N of --sweep. Without a script, perfctl passes options that are not listed here to "
    "the built-in workload (python -m perfctl.workloads WORKLOAD --help lists them)."
)
"""Last paragraph of the help of each command."""
DryRun = Annotated[
    bool,
    Option("Print the commands, ready to paste, and exit.", OUTPUT, is_common=True),
]


@dataclass(frozen=True, slots=True)
class ProfileOptions(SweepOptions):
    """Options of each command, without those of its profiler."""

    arguments: WorkloadWords = ()
    program: ProgramWords = None
    expect: Expect = ()
    formulas: Formulas = None
    dry_run: DryRun = False


@dataclass(frozen=True)
class NsysOptions(ProfileOptions, Nsys):
    """Measure the times of ranges, kernels and copies with Nsight Systems."""


@dataclass(frozen=True)
class NcuOptions(ProfileOptions, Ncu):
    """Measure executed FLOPs with Nsight Compute: hardware counters of every kernel, in one step by
    default.

    1 multiply-add = 2 FLOPs. ncu skips kernels that wait for other GPUs (NCCL), because their
    replay never ends.
    """

    estimate_cost: Annotated[
        bool, Option("Run one step without ncu and print what ncu would replay.", MEASURE)
    ] = False


@dataclass(frozen=True)
class TorchOptions(ProfileOptions, TorchProfiler):
    """Measure operators, layers and (with a GPU) kernels with the PyTorch profiler."""


@dataclass(frozen=True)
class DLProfOptions(ProfileOptions, DLProf):
    """Measure with DLProf (last released in 2021): utilization, tensor core use, time by operation.

    DLProf records the complete program, on one GPU.
    """


@dataclass(frozen=True, slots=True)
class ReplayOptions(StoredSweepOptions):
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
            metavar="LIST",
            parse=parse_batch_sizes,
            is_common=True,
        ),
    ] = ()
    dry_run: DryRun = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InferOptions(SweepOptions):
    """Measure inference over models and batch sizes: latency, images/s, top-1 and top-5, one
    process per run.

    perfctl passes options that are not listed here to the workload: --images N (3000), --weights
    default|none|FILE, --weights-dir DIR, --data imagenet --data-dir DIR, --dataloader-workers
    N. Repeat the command to continue after an interruption.
    """

    models: Annotated[
        tuple[str, ...],
        Option(
            "torchvision models: resnet152,densenet201.",
            names=("--models", "-m"),
            metavar="NAMES",
            parse=split_at_commas,
            is_common=True,
        ),
    ]
    batches: Annotated[
        tuple[int, ...],
        Option(
            "Batch sizes, one process each: 1,5,10.",
            metavar="LIST",
            parse=parse_batch_sizes,
            is_common=True,
        ),
    ] = (1, 5, 10, 15, 20)
    profiler: Annotated[
        str,
        Option("none, nsys, torch or dlprof.", PROFILER, metavar="NAME", is_common=True),
    ] = "none"
    arguments: WorkloadWords = ()
    dry_run: DryRun = False


def sweep(
    profiler: Profiler | str,
    options: SweepOptions,
    *,
    arguments: Sequence[str] = (),
    program: Sequence[str] | None = None,
) -> Swept:
    """Run each batch size in a separate process under ``profiler``, and store its report.

    - ``profiler``: nsys, ncu, torch, dlprof or none, or a profiler object with its options.
    - ``arguments``: words for the built-in workload.
    - ``program``: the command of your script, with {batch} in place of the batch size.

    A batch size that fails does not stop the others: see ``Swept.failed_or_partial_runs``. The same
    call continues after an interruption. Raises UsageError and ToolMissing before anything runs,
    Interrupted for Ctrl-C or TERM, StoreError.
    """
    recorder = make_profiler_by_name(profiler) if isinstance(profiler, str) else profiler
    options = record_call_as_command_line(
        options, f"perfctl.sweep({recorder.name!r}, SweepOptions(", "))"
    )
    return run_and_store_sweep(plan_sweep(recorder, options, arguments, program))


def record_call_as_command_line(options: Stored, call_start: str, call_end: str = ")") -> Stored:
    """Return the options with the Python call as what was typed, for the store, if nothing was;
    it has the options that are not at their default."""
    if options.command_line:
        return options
    kind: Any = type(options)
    values = {field: getattr(options, field.name) for field in list_declared_options(kind)}
    keywords = (
        f"{field.name}={str(value) if isinstance(value, Path) else value!r}"
        for field, value in values.items()
        if value != field.default
    )
    return replace(options, command_line=f"{call_start}{', '.join(keywords)}{call_end}")


def profile_or_plan(
    options: ProfileOptions, events: Events
) -> Swept | list[PlannedCommand] | NcuCost:
    """Measure, return what would be started, or estimate how long ncu would take."""
    (profiler,) = (
        extract_base_class_fields(options, kind)
        for kind in SWEEPS.values()
        if isinstance(options, kind)
    )
    options = record_call_as_command_line(options, f"perfctl.{profiler.name}(")
    sweep_options = extract_base_class_fields(options, SweepOptions)
    program = (options.arguments, options.program)
    if isinstance(options, NcuOptions) and options.estimate_cost:
        raise_if_placement_options_set(sweep_options, "an estimate of ncu's cost")
        request = plan_sweep(profiler, sweep_options, *program, events=events)
        plain = plan_sweep(TorchProfiler(), replace(sweep_options, steps=1), *program)
        return estimate_ncu_replay_cost(
            request, plain.make_single_run_request(plain.setting), events
        )
    if options.formulas is not None:
        execute_formula_file_once(options.formulas)
    formulas = parse_formulas_and_formula_files(options.expect)
    request = plan_sweep(profiler, sweep_options, *program, events=events)
    for formula in formulas:
        formula.raise_if_unknown_parameter([*request.setting.parameters])
    if formulas and options.no_store:
        events.note("`expect` needs the results database; set it with 'perfctl ingest' later")
    result = run_or_plan_sweep(request, events, dry_run=options.dry_run)
    if isinstance(result, Swept) and result.store is not None and (formulas or KERNELS):
        for text in store_expectations_and_yield_problems(result.store, result.run_ids(), formulas):
            events.warning(text)
    return result


def replay_or_plan(options: ReplayOptions, events: Events) -> Swept | list[PlannedCommand]:
    """Replay the sweep, or return what would be started."""
    options = record_call_as_command_line(options, "perfctl.replay(")
    request = plan_replay(options.folder, options, options.batches)
    return run_or_plan_sweep(request, events, dry_run=options.dry_run)


def infer_or_plan(options: InferOptions, events: Events) -> list[ModelSwept] | list[ModelCommand]:
    """Measure each model; for a dry run, return what would be started."""
    requests = plan_torchvision_inference_sweeps(
        options.models,
        options.profiler,
        extract_base_class_fields(options, SweepOptions),
        arguments=options.arguments,
        skips_torchvision_lookup=options.dry_run,
    )
    swept, planned = [], []
    for model, request in requests.items():
        if len(requests) > 1 and not options.dry_run:
            events.note(f"{model}:")
        result = run_or_plan_sweep(request, events, dry_run=options.dry_run)
        if isinstance(result, Swept):
            swept.append(ModelSwept(model, result))
        else:
            planned += [ModelCommand(model, command) for command in result]
    return planned if options.dry_run else swept


def run_or_plan_sweep(
    request: SweepRequest, events: Events, *, dry_run: bool
) -> Swept | list[PlannedCommand]:
    """Run a request; for a dry run, return what it would start."""
    if not dry_run:
        return run_and_store_sweep(request, events)
    commands = list_planned_commands(request)
    for note in dict.fromkeys(planned.command.note for planned in commands if planned.command.note):
        events.note(note)
    return commands


def build_sweep_view(result: Swept | list[PlannedCommand] | NcuCost) -> View | RawLines:
    """Return the findings and the table of a sweep, where everything is, and what to type next;
    commands, or ncu's cost."""
    from perfctl.orchestrator.ingest.reports import make_path_relative_to_store
    from perfctl.orchestrator.report import terminal
    from perfctl.orchestrator.stored_runs import load_sweep_runs

    if isinstance(result, list):
        return build_command_lines(result)
    if isinstance(result, NcuCost):
        lines = describe_replay_cost(result.cost, str(result.setting), result.layers)
        advice = (
            "No FLOPs were measured yet. Run the command without `estimate_cost`; `layers` and "
            "`steps` reduce the cost"
        )
        return View("", findings=(*lines, advice))
    if result.store is None:
        folder = shlex.quote(str(result.folder))
        line = f"Wrote {result.folder}. Next: perfctl slurm gather {folder}\n"
        return RawLines((line,), "--no-store", has_names=True)
    store = result.request.store_path
    requested = [setting.parameters for setting in result.request.settings]
    folder = f"{make_path_relative_to_store(result.folder, store)}/"
    runs = [
        run
        for run in load_sweep_runs(store, [result.name], artifact_folder=folder)
        if {parameter.name: parameter.value for parameter in run.parameters} in requested
    ]
    first = [run for run in runs if run.report.environment.get("rank", "0") == "0"]
    ranks = len(runs) - len(first)
    rank_note = f"The results database has separate runs of the other ranks: {ranks} (perfctl runs)"
    return View(
        chapters=terminal.build_sweep_views(first),
        notes=(rank_note,) if ranks else (),
        lines=(f"Wrote {result.folder} and {store}", suggest_report_command(store)),
    )


def build_command_lines(commands: Sequence[PlannedCommand]) -> RawLines:
    """Return the commands, ready to paste."""
    lines = (f"{format_shell_command(planned.command)}\n" for planned in commands)
    return RawLines(lines, "--dry-run", has_names=True)


def build_inference_view(result: list[ModelSwept] | list[ModelCommand]) -> View | RawLines:
    """Return findings and one table over models and batch sizes, or the commands."""
    from perfctl.orchestrator.report.studies.inference import build_inference_summary_view
    from perfctl.orchestrator.stored_runs import load_sweep_runs

    commands = [planned.result for planned in result if isinstance(planned, ModelCommand)]
    if commands:
        return build_command_lines(commands)
    sweeps = [swept.result for swept in result if isinstance(swept, ModelSwept)]
    store = sweeps[0].request.store_path
    wrote = [f"Wrote {path}" for path in (*(sweep.folder for sweep in sweeps), store)]
    return replace(
        build_inference_summary_view(load_sweep_runs(store, [sweep.name for sweep in sweeps])),
        title=f"Inference of {', '.join(swept.model for swept in result)}",
        lines=(*wrote, suggest_report_command(store)),
    )


def raise_if_model_failed(result: list[ModelSwept] | list[ModelCommand], events: Events) -> None:
    """Raise PartlyDone if a model failed or is partial."""
    failed = []
    for swept in result:
        if isinstance(swept, ModelSwept):
            try:
                swept.result.check()
            except PartlyDone as error:
                failed.append(f"{swept.model}: {error}")
    if failed:
        count = f"{len(failed)} of {len(result)} models"
        raise PartlyDone(f"{count} failed or are incomplete: {failed[0]}")


def raise_if_sweep_failed(result: Swept | list[PlannedCommand] | NcuCost, events: Events) -> None:
    """Raise PartlyDone if a batch size failed or is partial."""
    if isinstance(result, Swept):
        if result.request.profiler.name == "nsys" and result.store is not None:
            events.note(
                "nsys reports contain the environment of the profiled process. Run 'perfctl "
                "scrub' before you share them"
            )
        result.check()


def declare_profiler_command(
    options: type[Asked], name: str, *examples: str
) -> Command[Asked, Any]:
    """Return the command of a profiler; ``examples``: words after its name."""
    return Command(
        options,
        profile_or_plan,
        build_sweep_view,
        outputs=OUTPUTS if options is not NcuOptions else (*OUTPUTS, "ncu-cost"),
        has_document=False,
        check=raise_if_sweep_failed,
        notes=NOTES,
        examples=tuple(f"perfctl {name} {arguments}" for arguments in (*EXAMPLES, *examples)),
    )


NSYS = declare_profiler_command(
    NsysOptions, "nsys", "--workload torchvision_infer --batches 1,8 --model resnet50"
)
NCU = declare_profiler_command(NcuOptions, "ncu", "--estimate-cost --batches 64")
TORCH = declare_profiler_command(TorchOptions, "torch", "--workload lstm --batches 8 --repeat 5")
DLPROF = declare_profiler_command(
    DLProfOptions, "dlprof", "--batches 64 --dlprof-mode pytorch -- python train.py"
)
REPLAY = Command(
    ReplayOptions,
    replay_or_plan,
    build_sweep_view,
    outputs=OUTPUTS,
    has_document=False,
    check=raise_if_sweep_failed,
    examples=(
        "perfctl replay perfctl-runs/torch-mnist_cnn-d31dc50c",
        "perfctl replay recorded/nsys --batches 16,32",
    ),
)
INFER = Command(
    InferOptions,
    infer_or_plan,
    build_inference_view,
    outputs=("infer", "infer-commands"),
    check=raise_if_model_failed,
    examples=(
        "perfctl infer --models resnet152,densenet201",
        "perfctl infer --models resnet50 --batches 1,8,32 --profiler nsys",
        "perfctl infer --models resnet18 --data imagenet --data-dir imagenet/val",
    ),
    # the workload is inference only, of complete data, in one sweep per model
    without=(
        *("workload", "mode", "steps", "batch_env", "step_marker", "to_end"),
        *("sweep", "zip", "sweep_env", "as_is", "sweep_name", "no_store"),
    ),
)
replay = make_api_function(ReplayOptions, replay_or_plan)
nsys, ncu = (
    make_api_function(NsysOptions, profile_or_plan),
    make_api_function(NcuOptions, profile_or_plan),
)
torch, dlprof = (
    make_api_function(TorchOptions, profile_or_plan),
    make_api_function(DLProfOptions, profile_or_plan),
)
