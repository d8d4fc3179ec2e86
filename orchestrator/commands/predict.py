"""Predict how long a model takes on a device and what it costs: training, inference, or text that
it generates; and the prices that this rests on.

The model's operations, the device, the runs of a store, the fits to them and the prices meet here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Option,
    make_api_function,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.estimate.memory import get_default_reserve_bytes
from perfctl.orchestrator.estimate.parallel import (
    ParallelPlan,
    compute_memory_and_suggest_plans,
    explain_missing_time_prediction,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.events import SILENT
from perfctl.orchestrator.evidence import build_evidence_for_devices, find_or_measure_device
from perfctl.orchestrator.predict import prices
from perfctl.orchestrator.predict.answer import Answer, DeviceAndPrices, Question
from perfctl.orchestrator.predict.cost import CostFrontier
from perfctl.orchestrator.predict.generation import (
    TRACED_IN,
    GenerationAnswer,
    predict_generation_time_and_cost,
)
from perfctl.orchestrator.predict.prices import PriceTable, select_board_offers
from perfctl.orchestrator.predict.step_parts import get_peak_flops_or_raise
from perfctl.orchestrator.predict.training import (
    NO_PEAK,
    compute_time_cost_frontier,
    find_gpu_link_rate_and_source,
    predict_training_time_and_cost,
    raise_if_dataset_size_missing,
)
from perfctl.orchestrator.report.estimate import EstimateOutput, build_rank_memory_view
from perfctl.orchestrator.report.predict import (
    PredictOutput,
    build_prediction_output,
    build_prediction_view,
)
from perfctl.orchestrator.report.predict_generation import (
    PredictGenerationOutput,
    build_predict_generation_output,
    build_predicted_generation_view,
)
from perfctl.orchestrator.report.prices import (
    PriceChange,
    PriceList,
    build_price_table_change_view,
    build_prices_view,
)
from perfctl.orchestrator.report.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions(Question):
    """Predict step, epoch and training time, memory and cost of a model on a device, each with an
    interval.

    With --prompt, predict the time to the first token and per later token of text generation.
    --list-prices, --use-prices and --reset-prices only manage prices.
    """

    explain: Annotated[
        bool, Option("Show which layers take the time and what limits them.", "Output")
    ] = False
    frontier: Annotated[
        bool, Option("Show time and cost of all offers and batch sizes.", "Output")
    ] = False
    list_prices: Annotated[
        bool,
        Option("List rental prices of GPUs; MODEL is then a GPU: --list-prices A100.", "Prices"),
    ] = False
    use_prices: Annotated[
        Path | None, Option("Use this price table (CSV) for all later predictions.", "Prices")
    ] = None
    reset_prices: Annotated[bool, Option("Return to perfctl's price table.", "Prices")] = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer for training or inference, and the requested tables."""

    answer: Answer
    frontier: CostFrontier | None
    is_explained: bool


Result = Prediction | EstimateOutput | GenerationAnswer | PriceList | PriceChange


def predict_or_manage_prices(options: PredictOptions, events: Events) -> Result:
    """Return the prediction, or the price table."""
    actions = ("list_prices", "use_prices", "reset_prices")
    chosen = [name for name in actions if getattr(options, name)]
    if len(chosen) > 1:
        raise UsageError(f"`{chosen[0]}` and `{chosen[1]}` exclude each other", "Choose one")
    if chosen:
        return _manage_prices(options)
    plan = (
        options.parallel
        if options.parallel and explain_missing_time_prediction(options.parallel)
        else None
    )
    if options.prompt is not None or plan is not None:
        other_option = "parallel" if plan is not None else "prompt"
        for name in ("explain", "frontier"):
            if getattr(options, name):
                raise UsageError(
                    f"`{name}` and `{other_option}` exclude each other", f"Omit `{name}`"
                )
    if options.prompt is not None:
        return predict_generated_text(options, events)
    if options.frontier:
        raise_if_dataset_size_missing(options)
    if plan is not None:
        return _predict_rank_memory(options, plan, events)
    answer = predict_training_or_inference(options, events)
    return Prediction(
        answer, compute_time_cost_frontier(answer) if options.frontier else None, options.explain
    )


def _predict_rank_memory(
    options: PredictOptions, plan: ParallelPlan, events: Events
) -> EstimateOutput:
    """Return the memory of each rank, and why there is no time."""
    from perfctl.orchestrator.estimate.session import estimate_model_for_batches

    machine = _find_device_and_rental_prices(options, events).device.machine
    if len(options.batches) > 1:
        raise UsageError("`parallel` takes one `batch`", "Set the micro-batch of a rank")
    request = Request(
        options.name,
        tuple(options.inputs),
        optimizer=options.optimizer,
        memory=True,
        seq=options.seq,
        precision=options.precision_or_default,
    )
    estimates = estimate_model_for_batches(
        request, options.batches, report_progress=events.progress
    )
    model = estimates.batches[options.batches[0]]
    if model.problem is not None:
        raise PerfctlError(
            f"{options.name} cannot be traced without data: {model.problem}",
            f"Run 'perfctl estimate {options.name}' to see where it stops",
        )
    limit = machine.memory_bytes
    room = None if limit is None else round(limit) - get_default_reserve_bytes(machine.kind)
    ranks = compute_memory_and_suggest_plans(model, plan, room)
    notes = (
        f"device: {machine.name}",
        *estimates.notes,
        explain_missing_time_prediction(plan) or "",
    )
    return EstimateOutput(options.name, "train", estimates.batches, None, notes, parallel=ranks)


def _manage_prices(options: PredictOptions) -> PriceList | PriceChange:
    """Change or list the price table."""
    if options.use_prices is not None:
        return PriceChange(
            prices.install_user_price_table(options.use_prices),
            prices.get_user_price_file_path(),
            "written",
        )
    if options.reset_prices:
        action = "removed" if prices.reset_prices() else "absent"
        return PriceChange(prices.load_price_table(), prices.get_user_price_file_path(), action)
    return PriceList(prices.load_prices_for_gpu_model(options.model, options.prices), options.model)


def predict_training_or_inference(options: Question, events: Events = SILENT) -> Answer:
    """Return the prediction of training or inference, with the runs of the store if there is one.
    Raises UsageError before anything slow begins."""
    if options.prompt is not None:
        raise UsageError(
            "`prompt` needs a model that generates text", "Use perfctl.predict_generation"
        )
    if options.store is not None and not options.store.exists():
        raise UsageError(
            f"`store`: {options.store} not found",
            "Omit it to predict without runs, or run 'perfctl bench'",
        )
    if options.parallel is not None:
        options.check()
        if (reason := explain_missing_time_prediction(options.parallel)) is not None:
            raise UsageError(
                f"`parallel`: {reason}", "perfctl.estimate has the memory of each rank"
            )
        options = replace(options, gpus=options.parallel.dp, parallel=None)
    setting = _find_device_and_rental_prices(options, events)
    link_gbs, _ = find_gpu_link_rate_and_source(setting.device.board, options)
    if options.gpus > 1 and options.efficiency is None and link_gbs is None:
        raise UsageError(
            f"`gpus` {options.gpus}: the bandwidth between the GPUs is unknown",
            "Set `interconnect` in GB/s, or `efficiency`",
        )
    from perfctl.orchestrator.predict.models.subjects import plan_or_trace_model

    evidence = build_evidence_for_devices(
        options.store or DEFAULT_STORE, [setting.device], events.note
    )
    subject = plan_or_trace_model(options, setting.device.machine.kind == "gpu", events.note)
    return predict_training_time_and_cost(options, setting, subject, evidence)


def predict_generated_text(options: Question, events: Events = SILENT) -> GenerationAnswer:
    """Return the prediction of generated text. Raises UsageError before anything slow begins."""
    if options.prompt is None:
        raise UsageError(
            "`prompt` is missing", "Set the prompt length in tokens, for example `prompt` 512"
        )
    setting = _find_device_and_rental_prices(options, events)
    device, board = setting.device, setting.device.board
    if options.engine == "tensorrt-llm" and board and board.gpu.capability.startswith("gfx"):
        raise UsageError(
            f"`engine` tensorrt-llm does not run on {device.machine.name}", "Use `engine` eager"
        )
    from perfctl.orchestrator.estimate.generation_steps import estimate_generation

    events.note(f"tracing {options.name} without data")
    traced = estimate_generation(_build_generation_request(options), options.batches)
    for batch, generation in traced.items():
        if generation.problem is not None:
            problem = f"{options.name}, batch {batch}, cannot be traced: {generation.problem}"
            command = f"perfctl estimate {options.name} --prompt {options.prompt}"
            raise PerfctlError(problem, f"Run '{command}' to see where it stops")
        size = sum(module.parameter_bytes for module in generation.prefill.modules)
        if options.precision_or_default in ("fp32", "tf32") and size < 4 * generation.parameters:
            problem = f"{options.name} has weights of less than 32 bits"
            raise UsageError(problem, "Use `precision` bf16 or fp16")
    return predict_generation_time_and_cost(
        options, setting, [traced[batch] for batch in options.batches]
    )


def _build_generation_request(options: Question) -> Request:
    """Return the request to trace. The first token comes from prefill, so decode has one step less
    than tokens; fp8 keeps its cache in fp8."""
    return Request(
        options.name,
        prompt=options.prompt,
        generate=options.generate - 1,
        kv_cache=options.kv_cache or ("fp8" if options.precision == "fp8" else None),
        precision=TRACED_IN[options.precision_or_default],
    )


def _find_device_and_rental_prices(options: Question, events: Events) -> DeviceAndPrices:
    """Return the device and the prices of a question.

    Raises UsageError for a question that makes no sense, and if the device has no fast path for the
    precision.
    """

    options.check()
    store = options.store or DEFAULT_STORE
    device = find_or_measure_device(
        options.device, options.device_spec, store, options.threads, events.note
    )
    if device.machine.kind == "gpu" or options.prompt is not None:
        try:
            get_peak_flops_or_raise(device.machine, options.precision_or_default)
        except ValueError as error:
            raise UsageError(str(error), NO_PEAK) from error
    table = prices.load_price_table(options.prices)
    usable = table if options.undated else table.without_doubtful_prices
    offers = select_board_offers(usable.prices, device.board)
    unused = len(select_board_offers(table.prices, device.board)) - len(offers)
    return DeviceAndPrices(device, usable, offers, unused)


def build_predict_view(result: Result) -> View:
    """Return the words of a result."""
    if isinstance(result, PriceList):
        return build_prices_view(result)
    if isinstance(result, PriceChange):
        return build_price_table_change_view(result)
    if isinstance(result, GenerationAnswer):
        return build_predicted_generation_view(result)
    if isinstance(result, EstimateOutput):
        return build_rank_memory_view(result)
    return build_prediction_view(
        result.answer, result.frontier, show_slowest_layers=result.is_explained
    )


def build_predict_output(
    result: Result,
) -> PredictOutput | EstimateOutput | PredictGenerationOutput | PriceTable:
    """Return what ``--json`` prints."""
    if isinstance(result, EstimateOutput):
        return result
    if isinstance(result, PriceList | PriceChange):
        return result.table
    if isinstance(result, GenerationAnswer):
        return build_predict_generation_output(result)
    return build_prediction_output(result.answer, result.frontier)


COMMAND = Command(
    PredictOptions, predict_or_manage_prices, build_predict_view, build_predict_output
)
predict = make_api_function(Question, predict_training_or_inference)
predict_generation = make_api_function(Question, predict_generated_text)
