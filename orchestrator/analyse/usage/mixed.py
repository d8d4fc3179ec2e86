"""The kernels of mixed steps shared out between the prompts and the decodes of a step, by work. Estimates: one kernel computes both.

Attention costs in proportion to its pairs (queries times the keys that each attends to): its FLOPs are 4 x pairs x query heads x head
dimension, in which heads and dimension are the same for both. A layer that computes one row a sequence (the last projection)
costs by sequences, all others by tokens. A decode whose attention is bound by memory costs more than its pairs say.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from perfctl.orchestrator.analyse.kernels.names import recognise
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel
from perfctl.records.run import Run
from perfctl.records.serving import ServedStep

PAIRS, SEQUENCES, TOKENS = "pairs of queries and keys", "sequences", "tokens"


def rows_of(op: OpShape) -> int:
    """Rows of its output, all dimensions before the last: tokens in a linear layer."""
    shape = next((shape for shape in op.outputs if shape), ())
    return prod(shape[:-1]) if len(shape) > 1 else 0


class MixedSteps:
    """The mixed steps of a run, and which part of each of their kernels is the prompts'."""

    def __init__(self, run: Run) -> None:
        self._steps = {step.number: step for step in run.report.served_steps if step.phase == "mixed"}
        self._rows: defaultdict[str, set[int]] = defaultdict(set)
        for op in run.report.ops if self._steps else ():
            if op.direction == "forward":
                self._rows[op.layer].add(rows_of(op))

    def prompts(self, kernel: Kernel) -> tuple[float, str] | None:
        """(0..1: share of the prompts, by what) of a kernel; None outside of mixed steps and where its step does not say."""
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
        sequences, tokens = step.prompts + step.decodes, (step.prompt_tokens or 0) + (step.decode_tokens or 0)
        return self._rows[layer] == {sequences} and sequences != tokens


def _share(prompts: int | None, decodes: int | None) -> float | None:
    return None if prompts is None or decodes is None or not prompts + decodes else prompts / (prompts + decodes)


def _named(share: float | None, by: str) -> tuple[float, str] | None:
    return None if share is None else (share, by)
