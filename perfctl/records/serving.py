"""What a server of text generation did: its steps, and the graphs (CUDA or HIP) whose kernels
it replayed."""

from __future__ import annotations

from typing import NamedTuple

FROM_SHAPES, PART_FROM_SHAPES = "from shapes: ", "part of a step, from shapes: "
"""How the name of a step begins that no annotation names: its phase and tokens follow from the
shapes of its operators. The second where the trace does not show the beginning of the step, the
look-up of its tokens: it may be one layer of many."""


EAGER = "eager"
"""``GraphLaunch.how`` of kernels that were matched by sequence with a run of the same steps without
graphs: a guess."""


class ServedStep(NamedTuple):
    """One forward pass of a server (vLLM, SGLang, TensorRT-LLM) over some prompts, some sequences
    that decode, or both.

    ``None``: the step's name does not say. Tokens are queries: what the pass computes. Keys are
    what they attend to, and pairs are the products of both, summed over the sequences, which is
    what attention costs before the causal mask.
    """

    number: int
    """``Step.number``, from 0."""
    name: str
    """The annotation it was read from; where there is none, FROM_SHAPES or PART_FROM_SHAPES and the
    shape that told."""
    phase: str
    """prefill, decode or mixed."""
    prompts: int | None = None
    """Sequences in prefill."""
    prompt_tokens: int | None = None
    prompt_keys: int | None = None
    prompt_pairs: int | None = None
    decodes: int | None = None
    """Sequences that decode."""
    decode_tokens: int | None = None
    """More than ``decodes`` where the server checks drafts (speculative decoding)."""
    decode_keys: int | None = None
    decode_pairs: int | None = None

    @property
    def tokens(self) -> int | None:
        """Tokens that the pass computes; None where the step does not say."""
        return _add_if_known(self.prompt_tokens, self.decode_tokens)

    @property
    def sequences(self) -> int | None:
        return _add_if_known(self.prompts, self.decodes)

    @property
    def attention_keys(self) -> int | None:
        return _add_if_known(self.prompt_keys, self.decode_keys)

    @property
    def attention_query_key_pairs(self) -> int | None:
        return _add_if_known(self.prompt_pairs, self.decode_pairs)

    @property
    def is_inferred_from_shapes(self) -> bool:
        """Inferred: no annotation names it."""
        return self.name.startswith((FROM_SHAPES, PART_FROM_SHAPES))

    @property
    def may_be_partial(self) -> bool:
        """The trace may show some of its layers only, so its time is not that of a step."""
        return self.name.startswith(PART_FROM_SHAPES)


def _add_if_known(prompts: int | None, decodes: int | None) -> int | None:
    return None if prompts is None or decodes is None else prompts + decodes


class GraphLaunch(NamedTuple):
    """One replay of a CUDA or HIP graph, and how many of its kernels the capture of the
    graph explains."""

    correlation: int
    """``Kernel.correlation`` of its kernels."""
    step: int | None
    kernels: int
    kernel_ns: int | None
    """Of its kernels together; None where the time of one is not known."""
    capture: str | None = None
    """Name of the capture that its kernels were matched with, as the server annotates it; None
    without a match."""
    matched: int = 0
    """Kernels with a launch in that capture."""
    how: str | None = None
    """What they were matched by: "node" (id of the graph's node), "name" (name and order), "order"
    (order alone), or EAGER."""
    confidence: float | None = None
    """0..1: share of its kernels whose launch was found; times ORDER_ALONE where the capture has no
    names of kernels. Against an eager run, share of the step's kernels that agree in name and grid,
    half of it for those that agree in name alone."""
