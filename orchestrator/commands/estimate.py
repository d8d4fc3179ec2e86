"""Estimate FLOPs, bytes and memory of a model from its shapes: layers, sheets, and generated
text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Option,
    split_at_commas,
)
from perfctl.orchestrator.errors import PartlyDone, UsageError
from perfctl.orchestrator.estimate.flops.registered import execute_formula_file_once
from perfctl.orchestrator.estimate.generation import GenerationEstimate
from perfctl.orchestrator.estimate.memory import RESERVE
from perfctl.orchestrator.estimate.parallel import (
    ParallelMemory,
    Plan,
    compute_memory_and_suggest_plans,
)
from perfctl.orchestrator.estimate.peers import CounterComparison
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.options import Formulas, extract_base_class_fields, parse_batch_sizes
from perfctl.orchestrator.report.estimate import (
    EstimateOutput,
    build_counter_comparison_view,
    build_estimated_step_view,
)
from perfctl.orchestrator.report.generation import GenerationOutput, build_generation_view
from perfctl.orchestrator.report.sheets import (
    LayerSheets,
    NetworkSheets,
    build_layer_calculation_sheets,
    build_layer_calculation_view,
    build_network_calculation_view,
)
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.stored_runs import load_latest_runs_per_configuration

if TYPE_CHECKING:
    from perfctl.orchestrator.estimate.session import ModelEstimate

Output = EstimateOutput | LayerSheets | NetworkSheets | GenerationOutput | CounterComparison
UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "G": 2**30,
}

EXCLUDED_OPTIONS = {
    "parallel": ("prompt", "against", "sheet", "check"),
    "against": ("prompt", "layer", "sheet", "check", "memory"),
    "check": ("memory",),
    "sheet": ("memory",),
}
"""Options of which each output would ignore the others."""
MEMORY_DEFAULTS = {"gpu": None, "attention": "auto", "update": "auto", "reserve": RESERVE}


def parse_byte_size(text: str, option_name: str, min_bytes: int) -> int:
    """ "8GiB", "500MB" or "8589934592" as bytes. Raises UsageError."""
    number = text.strip().rstrip("BGIKMbgikm ")
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        size = -1
    if size < min_bytes:
        raise UsageError(
            f"invalid value '{text}' for `{option_name}`", "Use a size such as 8GiB or 24GB"
        )
    return size


@dataclass(frozen=True, slots=True)
class EstimateOptions(Request):
    """Estimate FLOPs, bytes and memory of a model from its shapes only. 1 multiply-add = 2
    FLOPs."""

    batch: Annotated[
        tuple[int, ...],
        Option(
            "Batch size, or several for a table: 16,32,64.",
            names=("--batch", "--batches", "-b"),
            metavar="N,...",
            parse=partial(parse_batch_sizes, field="batch"),
            typed_default="1",
        ),
    ] = (1,)
    limit: Annotated[
        int | None,
        Option(
            "Device memory (8GiB): show the memory of a step and the largest batch that fits.",
            "Memory",
            names=("--memory",),
            metavar="SIZE",
            parse=partial(parse_byte_size, option_name="memory", min_bytes=1),
        ),
    ] = None
    reserve: Annotated[
        int,
        Option(
            "Memory that the largest batch leaves free for CUDA context and cuDNN; 0 for none.",
            "Memory",
            metavar="SIZE",
            parse=partial(parse_byte_size, option_name="reserve", min_bytes=0),
            typed_default="1GiB",
        ),
    ] = RESERVE
    parallel: Plan = None
    layer: Annotated[
        str | None,
        Option("Dotted path of one layer; (model) for the model itself.", "Output", metavar="PATH"),
    ] = None
    sheet: Annotated[
        bool,
        Option(
            "Show the worked example of --layer; without --layer, exact values of every layer.",
            "Output",
        ),
    ] = False
    formulas: Formulas = None
    value: Annotated[
        str | None,
        Option(
            'Check your value for the layer, and name the likely mistake: "1.36 GFLOP", '
            '"1936 KiB", "18496 parameters"; a bare number is the forward pass.',
            "Output",
            names=("--check",),
            metavar="VALUE",
        ),
    ] = None
    against: Annotated[
        tuple[str, ...],
        Option(
            "Compare the forward pass with other counters: torch, fvcore, thop, deepspeed, "
            "torchinfo, and values such as paper=4.1e9.",
            "Output",
            metavar="LIST",
            parse=split_at_commas,
        ),
    ] = ()
    has_every_row: Annotated[
        bool,
        Option("Show one row per operation and pass, with bytes.", "Output", names=("--all",)),
    ] = False


@dataclass(frozen=True, slots=True)
class EstimateResult:
    """An estimate, and its options."""

    options: EstimateOptions
    output: Output
    problem: str | None
    """Where a trace stopped early, and what the output covers then."""

    def check(self) -> None:
        """Raise PartlyDone if a trace stopped early."""
        if self.problem is not None:
            raise PartlyDone(self.problem, None)


def run_estimate(options: EstimateOptions, events: Events) -> EstimateResult:
    """Trace the model, and apply the formulas."""
    if options.formulas is not None:
        execute_formula_file_once(options.formulas)
    request = replace(extract_base_class_fields(options, Request), memory=False)
    request = replace(request, memory=options.limit is not None or options.parallel is not None)
    _refuse_ignored_options(options)
    if request.prompt is not None:
        return _estimate_generated_text(options, request)
    if options.against:
        return EstimateResult(options, _compare_flop_counters(options, request), None)
    from perfctl.orchestrator.estimate.session import (
        compare_manual_value_with_sheets,
        estimate_model_for_batches,
    )

    estimates = estimate_model_for_batches(
        request,
        options.batch,
        device_memory_bytes=options.limit,
        reserved_bytes=options.reserve,
        report_progress=events.progress,
    )
    model, problems = options.model, estimates.problems
    output: Output
    if options.value is not None:
        sheets, other_sheets = (
            estimates.build_layer_sheets_by_batch(options.layer),
            estimates.build_sheets_of_other_layers(options.layer),
        )
        output = build_layer_calculation_sheets(
            model,
            sheets,
            compare_manual_value_with_sheets(options.value, sheets, other_sheets),
            problems,
        )
    elif options.sheet and options.layer is not None:
        output = build_layer_calculation_sheets(
            model, estimates.build_layer_sheets_by_batch(options.layer), {}, problems
        )
    elif options.sheet:
        output = NetworkSheets(model, estimates.build_network_sheets_by_batch(), problems)
    else:
        batches = (
            estimates.batches
            if options.layer is None
            else estimates.extract_layer_estimates(options.layer)
        )
        output = EstimateOutput(model, options.mode, batches, estimates.fit, estimates.notes)
        output = replace(output, parallel=_compute_parallel_memory_per_rank(options, estimates))
    problem = None
    if problems:
        problem = f"{problems[0]}. The output covers only the operations before the error"
    return EstimateResult(options, output, problem)


def _refuse_ignored_options(options: EstimateOptions) -> None:
    """Raise UsageError for an option that the chosen output would ignore."""
    stated = {
        "parallel": options.parallel,
        "against": options.against,
        "sheet": options.sheet,
        "check": options.value is not None,
        "prompt": options.prompt,
        "layer": options.layer,
        "memory": options.limit,
    }
    for name, other_names in EXCLUDED_OPTIONS.items():
        for other_name in other_names:
            if stated[name] and stated[other_name]:
                raise UsageError(
                    f"`{name}` and `{other_name}` exclude each other", f"Omit `{other_name}`"
                )
    if options.against and len(options.batch) > 1:
        raise UsageError("`against` needs a single `batch`", "Name one batch size")
    for name, default in MEMORY_DEFAULTS.items():
        has_memory = options.limit or (options.parallel and name != "reserve")
        if getattr(options, name) != default and not has_memory:
            raise UsageError(f"`{name}` needs `memory`", "Set `memory`, for example 80GiB")
    if options.mode == "infer" and options.optimizer not in (None, "none"):
        raise UsageError("`optimizer` needs `mode` train", "Omit `optimizer`")


def _compute_parallel_memory_per_rank(
    options: EstimateOptions, estimates: ModelEstimate
) -> ParallelMemory | None:
    """Return the memory of each rank, and plans that may fit where one GPU, or the stated plan,
    has no room."""
    model = next(iter(estimates.batches.values()))
    plan, fit = options.parallel, estimates.fit
    if options.mode != "train" and plan is not None:
        raise UsageError("`parallel` needs `mode` train", "Omit `parallel`, or set `mode` train")
    is_too_small = fit is not None and fit.batch == 0
    if model.problem is not None or options.mode != "train" or not (plan or is_too_small):
        return None
    room = options.limit - options.reserve if options.limit is not None else None
    return compute_memory_and_suggest_plans(model, plan, room, is_single_gpu_too_small=is_too_small)


def _compare_flop_counters(options: EstimateOptions, request: Request) -> CounterComparison:
    """Count the forward pass with other counters, and read executed FLOPs from perfctl.db."""
    from perfctl.orchestrator.estimate.peers import (
        compare_estimate_with_flop_counters,
        validate_counter_names_and_figures,
    )
    from perfctl.orchestrator.estimate.session import open_session

    names = validate_counter_names_and_figures(options.against)
    request.check()
    batch = options.batch[0]
    comparison = compare_estimate_with_flop_counters(open_session(request), batch, names)
    if not DEFAULT_STORE.exists():
        return comparison
    from perfctl.orchestrator.commands.export import compute_ledger_rows
    from perfctl.orchestrator.estimate.peers import make_executed_flops_result

    model = options.model.removeprefix("torchvision:")
    runs = [
        run for run in load_latest_runs_per_configuration(DEFAULT_STORE) if run.workload == model
    ]
    rows = [
        row
        for row in compute_ledger_rows([run for run in runs if run.batch_size == batch])
        if row["direction"] == "forward" and row.get("executed_flops") is not None
    ]
    if not rows:
        return comparison
    executed = {row["layer"]: float(row["executed_flops"]) for row in rows}
    causes = {row["layer"]: " and ".join(cause["rule"] for cause in row["causes"]) for row in rows}
    count = make_executed_flops_result(executed, causes, comparison.macs)
    return replace(comparison, counts=(*comparison.counts, count))


def _estimate_generated_text(options: EstimateOptions, request: Request) -> EstimateResult:
    """Trace prefill and decode of a language model."""
    from perfctl.orchestrator.estimate.generation_steps import (
        estimate_generation,
        extract_layer_generation,
    )

    if options.value is not None:
        raise UsageError(
            "`check` and `prompt` exclude each other",
            "Omit `prompt` and set `seq` to check one pass",
        )
    batches: dict[int, GenerationEstimate] = {}
    problem = None
    for size, generation in estimate_generation(request, options.batch).items():
        batches[size] = generation
        if generation.problem is not None:
            omitted = "Batch sizes that could not be traced completely are omitted"
            problem = problem or f"{generation.problem}. {omitted}"
        elif options.layer is not None:
            batches[size] = extract_layer_generation(generation, options.layer)
    return EstimateResult(options, GenerationOutput(options.model, batches), problem)


def get_json_output(result: EstimateResult) -> Output:
    """Return what ``--json`` prints."""
    return result.output


def build_estimate_view(result: EstimateResult) -> View:
    """Return the words of a result."""
    options, output = result.options, result.output
    if isinstance(output, CounterComparison):
        return build_counter_comparison_view(output)
    if isinstance(output, NetworkSheets):
        return build_network_calculation_view(output)
    if isinstance(output, LayerSheets):
        return build_layer_calculation_view(output, show_calculation=options.sheet)
    if isinstance(output, EstimateOutput):
        return build_estimated_step_view(
            output,
            includes_operations_table=options.has_every_row,
            memory_limit_bytes=options.limit,
        )
    has_layers = options.sheet or options.has_every_row or options.layer is not None
    return build_generation_view(output, has_layers=has_layers)


COMMAND = Command(
    EstimateOptions,
    run_estimate,
    build_estimate_view,
    get_json_output,
)
