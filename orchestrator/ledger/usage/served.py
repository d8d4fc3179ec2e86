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

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.ledger.usage.intervals import (
    measure_any_kernel_running_ns,
    sum_durations_ns,
)
from perfctl.orchestrator.ledger.usage.readings import sum_if_all_known
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel, Report
from perfctl.records.run import Run
from perfctl.records.serving import EAGER, ServedStep

PAIRS, SEQUENCES, TOKENS = "pairs of queries and keys", "sequences", "tokens"
PHASES = ("prefill", "decode", "mixed")


def count_output_rows(op: OpShape) -> int:
    """Rows of its output, all dimensions before the last: tokens in a linear layer."""
    shape = next((shape for shape in op.outputs if shape), ())
    return prod(shape[:-1]) if len(shape) > 1 else 0


class MixedSteps:
    """The mixed steps of a run, and which part of each of their kernels is the prompts'."""

    def __init__(self, run: Run) -> None:
        """Read the run's mixed steps, and the rows that its layers' operators compute."""
        self._steps = {
            step.number: step for step in run.report.served_steps if step.phase == "mixed"
        }
        self._rows: defaultdict[str, set[int]] = defaultdict(set)
        for op in run.report.ops if self._steps else ():
            if op.direction == "forward":
                self._rows[op.layer].add(count_output_rows(op))

    def get_prompt_share_and_basis(self, kernel: Kernel) -> tuple[float, str] | None:
        """Return (0..1: share of the prompts, by what) of a kernel; None outside of mixed steps and
        where its step does not say."""
        step = None if kernel.step is None else self._steps.get(kernel.step)
        if step is None:
            return None
        rows = None if kernel.layer is None else self._rows.get(kernel.layer)
        if recognise_kernel(kernel.name).family == "attention":
            by, prompts, total = PAIRS, step.prompt_pairs, step.attention_query_key_pairs
        elif step.sequences != step.tokens and rows == {step.sequences}:
            by, prompts, total = SEQUENCES, step.prompts, step.sequences
        else:
            by, prompts, total = TOKENS, step.prompt_tokens, step.tokens
        return None if prompts is None or not total else (prompts / total, by)

    def sum_prompt_ns_and_basis(
        self, kernels: Iterable[Kernel]
    ) -> tuple[float, str] | tuple[None, None]:
        """Return the time of the prompts in these kernels, and by what; (None, None) where one
        kernel's is not known."""
        total, bases = 0.0, dict[str, None]()
        for kernel in kernels:
            share = self.get_prompt_share_and_basis(kernel)
            if kernel.duration_ns is None or share is None:
                return None, None
            total += kernel.duration_ns * share[0]
            bases[share[1]] = None
        return total, " and ".join(bases)


@dataclass(frozen=True, slots=True)
class PhaseTimes:
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
    def running_ns_per_token(self) -> float | None:
        """Running time a token."""
        if self.partial or self.running_ns is None or not self.tokens:
            return None
        return self.running_ns / self.tokens

    @property
    def tokens_per_second(self) -> float | None:
        """While its kernels ran: the time in between, when the GPU waited, is left out."""
        return None if (each := self.running_ns_per_token) is None or not each else 1e9 / each


def find_constant_sequences_per_step(run: Run) -> int | None:
    """Return the sequences of each step, where all steps are of one phase and have as many: what a
    batch is to a server."""
    steps = {(step.phase, step.sequences) for step in run.report.served_steps}
    return steps.pop()[1] if len(steps) == 1 else None


def measure_serving_phase_times(run: Run) -> tuple[PhaseTimes, ...]:
    """Return the phases of a run in the order of PHASES, mixed steps followed by their parts; empty
    where no step is a server's."""
    steps = group_by(run.report.served_steps, lambda step: step.phase)
    phase_of: dict[int | None, str] = {
        step.number: phase for phase, of_phase in steps.items() for step in of_phase
    }
    launched = run.report.kernels if steps else ()
    kernels = group_by(launched, lambda kernel: phase_of.get(kernel.step))
    return tuple(
        row
        for phase in PHASES
        if phase in steps
        for row in _list_phase_times_with_parts(run, phase, steps[phase], kernels.get(phase, ()))
    )


def _list_phase_times_with_parts(
    run: Run, phase: str, steps: Sequence[ServedStep], kernels: Sequence[Kernel]
) -> Iterator[PhaseTimes]:
    running_ns = measure_any_kernel_running_ns(kernels)
    use = PhaseTimes(
        run=run,
        phase=phase,
        part=None,
        steps=len(steps),
        sequences=sum_if_all_known(step.sequences for step in steps),
        tokens=sum_if_all_known(step.tokens for step in steps),
        launches=len(kernels),
        kernel_ns=None if running_ns is None else sum_durations_ns(kernels),
        running_ns=running_ns,
        partial=any(step.may_be_partial for step in steps),
    )
    yield use
    if phase != "mixed" or not use.tokens or not use.kernel_ns or running_ns is None:
        return
    of_prompts, _ = MixedSteps(run).sum_prompt_ns_and_basis(kernels)
    if of_prompts is None:
        return
    for part, took, counts in (
        ("prompts", of_prompts, [(step.prompts, step.prompt_tokens) for step in steps]),
        (
            "decodes",
            use.kernel_ns - of_prompts,
            [(step.decodes, step.decode_tokens) for step in steps],
        ),
    ):
        sequences, tokens = (sum_if_all_known(numbers) for numbers in zip(*counts, strict=True))
        running = running_ns * took / use.kernel_ns
        yield PhaseTimes(run, phase, part, len(steps), sequences, tokens, None, took, running)


def compute_kernel_time_share_with_layer(report: Report) -> float | None:
    """0..1: share of the kernel time that has a module or layer, of a trace of torch.profiler, or
    of a report of nsys that launched graphs. None where a kernel was not timed; and where none has
    a module, unless a graph was launched or a step is a server's."""
    is_wanted = report.tool == "torch" or (report.tool == "nsys" and report.graph_launches)
    kernels = report.kernels if isinstance(report.kernels, Sequence) else ()
    if not is_wanted or not kernels or any(kernel.duration_ns is None for kernel in kernels):
        return None
    has_layers = report.kernel_parts or any(kernel.layer is not None for kernel in kernels)
    if not (has_layers or report.served_steps or report.graph_launches):
        return None
    total = sum_durations_ns(kernels)
    shares: defaultdict[int, float] = defaultdict(float)
    for part in report.kernel_parts:
        shares[part.launch] += part.share if part.layer is not None else 0.0
    attributed = sum(
        (kernel.duration_ns or 0) * (1.0 if kernel.layer is not None else shares[kernel.launch])
        for kernel in kernels
    )
    return attributed / total if total else None


def count_layer_matched_graph_kernels(report: Report) -> tuple[int, int, float] | None:
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


def select_graph_kernels(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels of CUDA or HIP graphs: of a graph's node, or of a launch call with several
    kernels."""
    # Processes number their calls alike.
    calls = Counter((kernel.process, kernel.correlation) for kernel in kernels)
    return [
        kernel
        for kernel in kernels
        if kernel.graph_id is not None
        or kernel.graph_node_id is not None
        or (kernel.correlation is not None and calls[kernel.process, kernel.correlation] > 1)
    ]


def has_layers_matched_to_eager_run(report: Report) -> bool:
    """Whether layers of graphs are by sequence against a run without graphs."""
    return any(launch.how == EAGER for launch in report.graph_launches)
