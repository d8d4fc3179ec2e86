"""Prefill and decode of a server's trace: time, launches and tokens of each; and how much of the
kernel time has a module.

Kernels of mixed steps are shared out between the prompts and the decodes of a step, by work: an
estimate, since one kernel computes both. Attention costs in proportion to its pairs (queries times
the keys that each attends to): its FLOPs are 4 x pairs x query heads x head dimension, in which
heads and dimension are the same for both. A layer that computes one row a sequence (the last
projection) costs by sequences, all others by tokens. A decode whose attention is bound by memory
costs more than its pairs say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from perfctl.orchestrator.counts.kernels.names import recognise
from perfctl.orchestrator.ledger.usage.busy import spans, union
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel, Report
from perfctl.records.run import Run
from perfctl.records.serving import EAGER, ServedStep

PAIRS, SEQUENCES, TOKENS = "pairs of queries and keys", "sequences", "tokens"
PHASES = ("prefill", "decode", "mixed")


def rows_of(op: OpShape) -> int:
    """Rows of its output, all dimensions before the last: tokens in a linear layer."""
    shape = next((shape for shape in op.outputs if shape), ())
    return prod(shape[:-1]) if len(shape) > 1 else 0


class MixedSteps:
    """The mixed steps of a run, and which part of each of their kernels is the prompts'."""

    def __init__(self, run: Run) -> None:
        self._steps = {
            step.number: step for step in run.report.served_steps if step.phase == "mixed"
        }
        self._rows: defaultdict[str, set[int]] = defaultdict(set)
        for op in run.report.ops if self._steps else ():
            if op.direction == "forward":
                self._rows[op.layer].add(rows_of(op))

    def prompts(self, kernel: Kernel) -> tuple[float, str] | None:
        """(0..1: share of the prompts, by what) of a kernel; None outside of mixed steps and where
        its step does not say."""
        step = None if kernel.step is None else self._steps.get(kernel.step)
        if step is None:
            return None
        whole = _share(step.prompt_tokens, step.decode_tokens)
        if recognise(kernel.name).family == "attention":
            pairs = _share(step.prompt_pairs, step.decode_pairs)
            return None if pairs is None else (pairs, PAIRS)
        if self._is_by_sequence(kernel.layer, step):
            return _named(_share(step.prompts, step.decodes), SEQUENCES)
        return _named(whole, TOKENS)

    def _is_by_sequence(self, layer: str | None, step: ServedStep) -> bool:
        if layer is None or step.prompts is None or step.decodes is None or layer not in self._rows:
            return False
        sequences, tokens = (
            step.prompts + step.decodes,
            (step.prompt_tokens or 0) + (step.decode_tokens or 0),
        )
        return self._rows[layer] == {sequences} and sequences != tokens


def _share(prompts: int | None, decodes: int | None) -> float | None:
    return (
        None
        if prompts is None or decodes is None or not prompts + decodes
        else prompts / (prompts + decodes)
    )


def _named(share: float | None, by: str) -> tuple[float, str] | None:
    return None if share is None else (share, by)


@dataclass(frozen=True, slots=True)
class PhaseUse:
    """All steps of one phase in a run, or the prompts or decodes of its mixed steps."""

    run: Run
    phase: str
    part: str | None
    """Of mixed steps: prompts or decodes, with their share of the step by work (estimated); None
    for a whole phase."""
    steps: int
    sequences: int | None
    """Of all its steps together."""
    tokens: int | None
    """Tokens that its steps computed; None where one does not say."""
    launches: int | None
    """None for a part: the same kernels compute both."""
    kernel_ns: float | None
    """Of its kernels added up; None where one was not timed."""
    running_ns: float | None
    """Time in which at least one of its kernels ran."""
    partial: bool = False
    """The trace may show some layers of its steps only: then there is no time a token and
    no rate."""

    @property
    def token_ns(self) -> float | None:
        """Running time a token."""
        if self.partial or self.running_ns is None or not self.tokens:
            return None
        return self.running_ns / self.tokens

    @property
    def tokens_per_second(self) -> float | None:
        """While its kernels ran: the time in between, when the GPU waited, is left out."""
        return None if (each := self.token_ns) is None or not each else 1e9 / each


def same_sequences(run: Run) -> int | None:
    """Sequences of each step, where all steps are of one phase and have as many: what a batch is to
    a server."""
    steps = list(run.report.served_steps)
    found = {_sum([step.prompts, step.decodes]) for step in steps}
    return found.pop() if len({step.phase for step in steps}) == len(found) == 1 else None


def phases(run: Run) -> tuple[PhaseUse, ...]:
    """The phases of a run in the order of PHASES, mixed steps followed by their parts; empty where
    no step is a server's."""
    steps: defaultdict[str, list[ServedStep]] = defaultdict(list)
    for step in run.report.served_steps:
        steps[step.phase].append(step)
    launched: defaultdict[int, list[Kernel]] = defaultdict(list)
    if steps:
        for kernel in run.report.kernels:
            if kernel.step is not None:
                launched[kernel.step].append(kernel)
    return tuple(
        row
        for phase in PHASES
        if phase in steps
        for row in _phase(run, phase, steps[phase], launched)
    )


def _phase(
    run: Run, phase: str, steps: Sequence[ServedStep], launched: dict[int, list[Kernel]]
) -> Iterator[PhaseUse]:
    kernels = [kernel for step in steps for kernel in launched.get(step.number, ())]
    prompts, decodes = (
        [step.prompt_tokens for step in steps],
        [step.decode_tokens for step in steps],
    )
    of_prompts, of_decodes = _sum(prompts), _sum(decodes)
    sequences = _sum([_sum([step.prompts, step.decodes]) for step in steps])
    timed = kernels and all(
        kernel.start_ns is not None and kernel.duration_ns is not None for kernel in kernels
    )
    total = sum(kernel.duration_ns or 0 for kernel in kernels) if timed else None
    running = _running(kernels) if timed else None
    tokens = _sum([of_prompts, of_decodes])
    partial = any(step.partial for step in steps)
    yield PhaseUse(
        run, phase, None, len(steps), sequences, tokens, len(kernels), total, running, partial
    )
    if phase != "mixed" or not tokens or running is None or total is None:
        return
    split = MixedSteps(run)
    found = [split.prompts(kernel) for kernel in kernels]
    shares = [share[0] for share in found if share is not None]
    if len(shares) < len(kernels) or not total:
        return
    for part in ("prompts", "decodes"):
        mine = shares if part == "prompts" else [1 - share for share in shares]
        own = of_prompts if part == "prompts" else of_decodes
        count = _sum([step.prompts if part == "prompts" else step.decodes for step in steps])
        took = sum(
            share * (kernel.duration_ns or 0) for share, kernel in zip(mine, kernels, strict=True)
        )
        yield PhaseUse(run, phase, part, len(steps), count, own, None, took, running * took / total)


def _sum(numbers: Sequence[int | None]) -> int | None:
    """None where one is not known."""
    return None if None in numbers else sum(number for number in numbers if number is not None)


def _running(kernels: Sequence[Kernel]) -> float:
    starts, ends = spans(kernels)
    return union(starts, ends, (int(starts.min()), int(ends.max())))[0] if len(starts) else 0


def placed(report: Report) -> float | None:
    """0..1: share of the kernel time that has a module or layer, of a trace of torch.profiler, or
    of a report of nsys that launched graphs. None where a kernel was not timed; and where none has
    a module, unless a graph was launched or a step is a server's."""
    is_wanted = report.tool == "torch" or (report.tool == "nsys" and report.graph_launches)
    kernels = report.kernels if isinstance(report.kernels, Sequence) else ()
    if not is_wanted or not kernels or any(kernel.duration_ns is None for kernel in kernels):
        return None
    known = report.kernel_parts or any(kernel.layer is not None for kernel in kernels)
    if not (known or report.served_steps or report.graph_launches):
        return None
    total = sum(kernel.duration_ns or 0 for kernel in kernels)
    parts = {part.launch: 0.0 for part in report.kernel_parts}
    for part in report.kernel_parts:
        parts[part.launch] += part.share if part.layer is not None else 0.0
    found = sum(
        (kernel.duration_ns or 0)
        * (1.0 if kernel.layer is not None else parts.get(kernel.launch, 0.0))
        for kernel in kernels
    )
    return found / total if total else None


def inferred(report: Report) -> tuple[int, int, float] | None:
    """(kernels of graphs with the layer of their capture, kernels of graphs, the least confidence);
    None without a match."""
    launches = list(report.graph_launches)
    sure = [launch.confidence for launch in launches if launch.confidence is not None]
    if not sure:
        return None
    return (
        sum(launch.matched for launch in launches),
        sum(launch.kernels for launch in launches),
        min(sure),
    )


def is_guessed(report: Report) -> bool:
    """Whether layers of graphs are by sequence against a run without graphs."""
    return any(launch.how == EAGER for launch in report.graph_launches)
