"""Memory of each rank in parallel training: states under ZeRO and FSDP for any model, tensor,
pipeline, context and expert parallelism for transformers.

Activations are those that the trace of one GPU keeps for backward. Rules and their sources:
docs/reference/formulas.md, Memory across GPUs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from typing import Annotated

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.step import Estimate
from perfctl.orchestrator.options import Option

STATES = {"precision": None, "fp32": (4, 4, 0), "megatron": (2, 4, 4), "deepspeed": (2, 2, 4)}
"""Name -> bytes per parameter of weight, gradient and the optimizer's float32 copy, whose moments
are float32; None: every value has the type of the parameter."""
UNITS_GATHERED = 2
"""Blocks that FSDP holds at once: the current one and the next."""
GPUS_MAX, TENSOR_MAX = 1024, 8
"""Most GPUs of a suggested plan; of tensor parallelism, those of one node."""
BLOCK = re.compile(r"(.*?)(\d+)(?:\.|$)")
SPLIT = re.compile("Linear|Embedding|Conv1D|Expert|MultiheadAttention")
REPLICATED = re.compile(r"(^|\.)(wpe|[^.]*pos[^.]*|router|gate)$")
"""Learned positions and routers, which tensor parallelism keeps on every rank."""
UNTIMED = {
    "zero": "ZeRO or FSDP",
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """How training is distributed."""

    zero: int = 0
    """ZeRO stage; 3 is FSDP."""
    dp: int = 1
    tp: int = 1
    sp: int = 1
    """1: sequence parallelism beside tensor parallelism."""
    pp: int = 1
    """1F1B, with at least this many micro-batches."""
    cp: int = 1
    ep: int = 1
    states: str = "precision"

    def __str__(self) -> str:
        changed = [
            field.name for field in fields(self) if getattr(self, field.name) != field.default
        ]
        return ",".join(f"{name}={getattr(self, name)}" for name in changed) or "dp=1"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one rank, the fullest of its stage."""

    JSON_KEYS = (
        "ranks",
        "parameters",
        "gathered",
        "gradients",
        "optimizer",
        "buffers",
        "logits",
        "activations",
        "recomputed_activations",
        "total",
        "recomputed_total",
    )

    ranks: str
    parameters: int
    gathered: int | None
    """Parameters that FSDP gathers for a while; null: the blocks are unknown."""
    gradients: int
    optimizer: int
    buffers: int
    logits: int
    """Of the last stage: a cross-entropy's float32 log-softmax and its gradient."""
    activations: int
    recomputed_activations: int | None
    """Activations with full recomputation; null: the blocks are unknown."""

    @property
    def total(self) -> int:
        """Without recomputation."""
        states = self.parameters + self.gradients + self.optimizer + self.buffers + self.logits
        return states + (self.gathered or 0) + self.activations

    @property
    def recomputed_total(self) -> int:
        """With full recomputation where it is known."""
        if self.recomputed_activations is None:
            return self.total
        return self.total - self.activations + self.recomputed_activations


@dataclass(frozen=True, slots=True)
class ParallelMemory:
    """Memory by rank, and shardings that may fit the device."""

    plan: str
    ranks: Sequence[RankMemory]
    room: int | None
    """Bytes of the device without the reserve; null: no memory was stated."""
    suggestions: Sequence[str] | None
    """null: the step fits, or no memory was stated."""


def parse_parallel_plan(text: str) -> ParallelPlan:
    """ "zero=3,dp=8,tp=4" as a plan. Raises UsageError."""
    values: dict[str, int | str] = {}
    for part in text.replace(" ", "").split(","):
        name, _, value = part.partition("=")
        if name == "states" and value in STATES:
            values[name] = value
        elif name == "fsdp" and re.fullmatch("[1-9][0-9]{0,5}", value):
            values |= {"zero": 3, "dp": int(value)}
        elif re.fullmatch("(dp|tp|pp|cp|ep)=[1-9][0-9]{0,5}|zero=[0-3]|sp=[01]", part):
            values[name] = int(value)
        else:
            raise UsageError(
                f"invalid value '{part}' for `parallel`",
                "Use fsdp=8, or zero=1|2|3, dp=N, tp=N, sp=0|1, pp=N, cp=N, ep=N and "
                f"states={'|'.join(STATES)}, with commas",
            )
    return ParallelPlan(**values)  # type: ignore[arg-type]


Plan = Annotated[
    ParallelPlan | None,
    Option(
        "Show the memory of each rank: fsdp=8, or zero=1|2|3,dp=N,tp=N,sp=0|1,pp=N,cp=N,ep=N; "
        "states=megatron, deepspeed or fp32. --batch is the micro-batch.",
        "Memory",
        metavar="PLAN",
        parse=parse_parallel_plan,
    ),
]


def explain_missing_time_prediction(plan: ParallelPlan) -> str | None:
    """Return why the time of a plan is not predicted; None for data parallelism alone."""
    kinds = [text for name, text in UNTIMED.items() if getattr(plan, name) > (name != "zero")]
    if plan.states != "precision":
        kinds.append(f"states={plan.states}")
    if not kinds:
        return None
    return (
        f"perfctl predicts no time with {', '.join(kinds)}: it knows no public table of step "
        "times that can judge it"
    )


@dataclass(slots=True)
class _StageSums:
    """Sums of one pipeline stage, before tensor and expert parallelism and ZeRO."""

    weights: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(parts by tensor and expert parallelism, ranks that have the same part) -> bytes."""
    gradients: Counter[tuple[int, int]] = field(default_factory=Counter)
    optimizer: Counter[tuple[int, int]] = field(default_factory=Counter)
    blocks: Counter[int] = field(default_factory=Counter)
    """Block -> parameters of one rank, gathered."""
    logits: int = 0
    kept: int = 0
    inputs: int = 0
    """Bytes of the blocks' inputs."""
    by_block: Counter[int] = field(default_factory=Counter)
    """Block -> bytes kept for backward."""


def find_transformer_prefix_and_numbers(model: Estimate) -> tuple[str, list[int]]:
    """Return the prefix and the numbers of the stack of layers with the most parameters; no numbers
    if it is no stack of transformer blocks, or one of several as in an encoder with a decoder."""
    stacks: dict[str, Counter[int]] = defaultdict(Counter)
    for module in model.modules:
        if match := BLOCK.match(module.path):
            stacks[match[1]][int(match[2])] += module.parameters
    *other_stacks, prefix = sorted(stacks, key=lambda name: stacks[name].total()) or [""]
    is_single = not other_stacks or 2 * stacks[other_stacks[-1]].total() < stacks[prefix].total()
    attends = any(
        "attention" in op.op or op.op == "aten._softmax"
        for op in model.ops
        if (match := BLOCK.match(op.layer)) and match[1] == prefix
    )
    return prefix, sorted(stacks[prefix]) if attends and is_single else []


def _raise_if_plan_unsupported(
    model: Estimate, parallel: ParallelPlan, block_numbers: Sequence[int]
) -> None:
    """Raise UsageError for a plan that the rules cannot answer for this model."""
    for name in ("tp", "pp", "cp"):
        if getattr(parallel, name) > 1 and not block_numbers:
            raise UsageError(
                f"`parallel` {name}: perfctl found no single stack of transformer blocks",
                "Use zero=1, zero=2 or zero=3 with dp",
            )
    if len(block_numbers) % parallel.pp:
        raise UsageError(
            f"`parallel` pp={parallel.pp} does not divide the {len(block_numbers)} blocks",
            "Choose a divisor",
        )
    if parallel.states in ("megatron", "deepspeed") and model.precision in ("fp32", "tf32"):
        raise UsageError(
            f"`parallel` states={parallel.states} has 16-bit weights, and the model 32-bit ones",
            "Set `precision` bf16-true",
        )
    experts = {layer.experts for layer in model.experts}
    if parallel.ep > 1 and not experts:
        raise UsageError("`parallel` ep: perfctl found no experts in the model", "Omit ep")
    if any(count % parallel.ep for count in (parallel.dp * parallel.cp, *experts)):
        raise UsageError(
            f"`parallel` ep={parallel.ep} must divide dp x cp and the number of experts",
            "Choose a divisor of both",
        )


def compute_memory_by_pipeline_stage(
    model: Estimate, parallel: ParallelPlan
) -> tuple[RankMemory, ...]:
    """Return the memory of the first and the last pipeline stage and of the fullest between them.
    Raises UsageError for a plan without a rule."""
    prefix, numbers = find_transformer_prefix_and_numbers(model)
    _raise_if_plan_unsupported(model, parallel, numbers)
    stages = [_StageSums() for _ in range(parallel.pp)]
    block_of = {f"{prefix}{number}": index for index, number in enumerate(numbers)}
    _add_weight_gradient_optimizer_bytes(model, parallel, stages, block_of)
    _add_activation_and_input_bytes(model, parallel, stages, block_of)
    buffers = model.memory.buffers if model.memory is not None else 0
    ranks = []
    for stage_index, stage in enumerate(stages):
        in_flight = parallel.pp - stage_index
        gathered: int | None = 0
        if parallel.zero == 3 and parallel.dp * parallel.cp > 1:
            gathered = UNITS_GATHERED * max(stage.blocks.values()) if numbers else None
        recomputed = None
        if numbers:
            outside = stage.kept - stage.by_block.total()
            most = max(stage.by_block.values(), default=0)
            recomputed = (stage.inputs + outside) * in_flight + most
        ranks.append(
            RankMemory(
                f"stage {stage_index + 1} of {parallel.pp}" if parallel.pp > 1 else "every rank",
                _sum_bytes_per_rank(stage.weights, parallel.zero >= 3),
                gathered,
                _sum_bytes_per_rank(stage.gradients, parallel.zero >= 2),
                _sum_bytes_per_rank(stage.optimizer, parallel.zero >= 1),
                buffers,
                stage.logits,
                stage.kept * in_flight,
                recomputed,
            )
        )
    between = max(ranks[1:-1], key=lambda rank: rank.total, default=None)
    return tuple(rank for rank in ranks if rank in (ranks[0], between, ranks[-1]))


def compute_memory_and_suggest_plans(
    model: Estimate,
    plan: ParallelPlan | None,
    bytes_available: int | None,
    *,
    is_single_gpu_too_small: bool = False,
) -> ParallelMemory:
    """Return the memory of each rank, and plans that may fit where the plan, or one GPU
    (``is_single_gpu_too_small``), has no room."""
    ranks = compute_memory_by_pipeline_stage(model, plan) if plan is not None else ()
    if plan is not None:
        is_single_gpu_too_small = bytes_available is not None and any(
            rank.recomputed_total > bytes_available for rank in ranks
        )
    states = plan.states if plan is not None else "precision"
    plans = (
        suggest_smallest_fitting_plans(model, bytes_available, states)
        if is_single_gpu_too_small and bytes_available is not None
        else None
    )
    return ParallelMemory(str(plan or ParallelPlan()), ranks, bytes_available, plans)


def _divide_rounding_up(size: int, parts: int) -> int:
    return -(-size // parts)


def _sum_bytes_per_rank(
    bytes_by_parts_and_replicas: Counter[tuple[int, int]], is_sharded_across_replicas: bool
) -> int:
    return sum(
        _divide_rounding_up(size, parts * (replicas if is_sharded_across_replicas else 1))
        for (parts, replicas), size in bytes_by_parts_and_replicas.items()
    )


def _assign_stage_and_block(
    paths: Iterable[str], block_of: dict[str, int], pp: int
) -> Iterator[tuple[int, int]]:
    """Return (stage, block) of each path in order; -1: in no block. Such a path is on the stage of
    the block before it."""
    stage = 0
    for path in paths:
        match = BLOCK.match(path)
        block = block_of.get(f"{match[1]}{match[2]}", -1) if match else -1
        if block >= 0:
            stage = block * pp // len(block_of)
        yield stage, block


def _add_weight_gradient_optimizer_bytes(
    model: Estimate, parallel: ParallelPlan, stages: Sequence[_StageSums], block_of: dict[str, int]
) -> None:
    experts = {layer.layer for layer in model.experts}
    replicas = parallel.dp * parallel.cp
    sizes = STATES[parallel.states]
    updated = sum(
        seen_module.parameter_bytes // seen_module.parameters * seen_module.trainable
        for seen_module in model.modules
        if seen_module.parameters
    )
    moments = round(model.memory.optimizer / updated) if model.memory and updated else 0
    tables = [seen_module for seen_module in model.modules if "Embedding" in seen_module.kind]
    table = max(tables, key=lambda seen_module: seen_module.parameters, default=model.modules[0])
    placed = _assign_stage_and_block(
        (seen_module.path for seen_module in model.modules), block_of, parallel.pp
    )
    for module, (stage_index, block) in zip(model.modules, placed, strict=True):
        is_head = (
            block < 0
            and stage_index == parallel.pp - 1
            and module.kind == "Linear"
            and module.called
        )
        # the last stage has its copy of a tied head
        shared = table if is_head and stage_index and not module.parameters else module
        if is_head and table.output and module.output:
            is_text = module.output[-1] * table.output[-1] == table.parameters
            size = 2 * 4 * prod(module.output) if is_text else 0
            stages[stage_index].logits += _divide_rounding_up(size, parallel.tp * parallel.cp)
        elements, trainable = shared.parameters, shared.trainable
        if not elements:
            continue
        width = shared.parameter_bytes // elements
        weight, gradient, copy = sizes or (width, width, 0)
        is_split = SPLIT.search(module.kind) and not REPLICATED.search(module.path)
        key = (parallel.tp if is_split else 1, replicas)
        if module.path in experts:
            key = (parallel.tp * parallel.ep, replicas // parallel.ep)
        stage = stages[stage_index]
        stage.weights[key] += weight * elements
        stage.gradients[key] += gradient * trainable
        stage.optimizer[key] += (copy + moments * (4 if sizes else width)) * trainable
        if block >= 0:
            used = width if model.precision in ("fp32", "tf32") else 2
            stage.blocks[block] += _divide_rounding_up(used * elements, key[0])


def _add_activation_and_input_bytes(
    model: Estimate, parallel: ParallelPlan, stages: Sequence[_StageSums], block_of: dict[str, int]
) -> None:
    trace = model.memory_trace
    activations = (
        [allocation for allocation in trace.allocations if allocation.category == "activation"]
        if trace
        else []
    )
    activations.sort(key=lambda allocation: allocation.born)
    undivided_layers = {
        seen_module.path
        for seen_module in model.modules
        if re.search("Norm|Dropout|Embed", seen_module.kind)
    }
    placed = _assign_stage_and_block(
        (allocation.layer for allocation in activations), block_of, parallel.pp
    )
    for storage, (stage_index, block) in zip(activations, placed, strict=True):
        is_whole = storage.layer in undivided_layers or (
            storage.layer in block_of and "add" in storage.op
        )
        parts = 1 if not parallel.sp and is_whole else parallel.tp
        size = _divide_rounding_up(storage.bytes, parts * parallel.cp)
        stages[stage_index].kept += size
        if block >= 0:
            stages[stage_index].by_block[block] += size
    width = 2 if model.precision.endswith("-true") else 4
    parts = parallel.cp * (parallel.tp if parallel.sp else 1)
    for module in model.modules:
        if module.path in block_of and module.output:
            stage_index = block_of[module.path] * parallel.pp // len(block_of)
            stages[stage_index].inputs += _divide_rounding_up(width * prod(module.output), parts)


def suggest_smallest_fitting_plans(
    model: Estimate, bytes_available: int, state_format: str = "precision"
) -> tuple[str, ...]:
    """Return of FSDP, tensor and pipeline parallelism the fewest GPUs whose known bytes are at most
    ``bytes_available``."""
    plans = []
    for name, most in (("fsdp", GPUS_MAX), ("tp", TENSOR_MAX), ("pp", GPUS_MAX)):
        count = 2
        while count <= most:
            plan = parse_parallel_plan(f"{name}={count},states={state_format}")
            try:
                ranks = compute_memory_by_pipeline_stage(model, plan)
            except UsageError:
                break
            if max(rank.recomputed_total for rank in ranks) <= bytes_available:
                needs = max(rank.total for rank in ranks) > bytes_available
                plans.append(f"{plan}{' with full recomputation' if needs else ''}")
                break
            count *= 2
    return tuple(plans)
