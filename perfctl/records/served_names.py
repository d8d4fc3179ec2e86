"""Names of the steps that servers of text generation annotate, and how to read them.

The forms, with where they are written:

- vLLM (``gpu_worker.py``): ``execute_context_2(2048)_generation_5(5)``: prompts (their tokens),
  sequences that decode (theirs).
- the same with sums of products behind the tokens, as a trace of a B200 has it:
  ``execute_context_1(888_788544)_generation_0(0)``. Whether they are of tokens and tokens or of
  tokens and keys is not known (888 x 888 fits both), so they are not read.
- vLLM and SGLang with AMD's patch: ``execute_N_context_C(sqA skB sqsqX sqskY)_generation_G(...)``
  without the blanks: tokens N, C prompts with A tokens over B keys, X and Y the sums of products of
  tokens and tokens, and of tokens and keys.
- SGLang (``scheduler.py``): ``step[DECODE bs=32]``, ``step[EXTEND bs=15 toks=15360]``, and other
  modes of a forward.
- TensorRT-LLM (``py_executor.py``): ``[Executor] _forward_step 7: 3 ctx reqs, 45 gen reqs``, with
  "N ctx tokens" in newer ones.
"""

from __future__ import annotations

import re

from perfctl.records.serving import ServedStep

DETAILS = "execution_details.json"
"""List of the traces of captures that vLLM and SGLang write beside the others."""

_N = r"(\d{1,12})"
_TOKENS = rf"\({_N}(?:_\d{{1,18}})?\)"
_VLLM = re.compile(rf"execute_context_{_N}{_TOKENS}_generation_{_N}{_TOKENS}\Z")
_SUMS = rf"\(sq{_N}sk{_N}sqsq{_N}sqsk{_N}\)"
_AMD = re.compile(rf"execute_{_N}_context_{_N}{_SUMS}_generation_{_N}{_SUMS}\Z")
_SGLANG = re.compile(rf"step\[([A-Z_]+) bs={_N}(?: toks={_N})?\]\Z")
_TENSORRT = re.compile(
    rf"(?:\[Executor\] )?_forward_step(?: {_N})?: {_N} ctx reqs, (?:{_N} ctx tokens, )?{_N} gen "
    r"reqs\Z"
)
_CAPTURE = re.compile(r"capture_(\d{1,9})_([A-Z_]+)\Z")
_BEGINS = ("execute_", "step[", "[Executor]", "_forward_step")


def parse_served_step_name(name: str) -> ServedStep | None:
    """The step that a range's name tells of, numbered 0; None for other names, and where a server
    was idle."""
    if not name.startswith(_BEGINS):
        return None
    if match := _AMD.match(name):
        _, *numbers = map(int, match.groups())
        prompts, *context = numbers[:5]
        decodes, *generation = numbers[5:]
        return _make_served_step(
            name,
            prompts,
            decodes,
            [context[0], context[1], context[3]],
            [generation[0], generation[1], generation[3]],
        )
    if match := _VLLM.match(name):
        prompts, tokens, decodes, own_tokens = map(int, match.groups())
        return _make_served_step(name, prompts, decodes, [tokens], [own_tokens])
    if match := _TENSORRT.match(name):
        _, prompts_, tokens_, decodes_ = match.groups()
        context = [int(tokens_)] if tokens_ else [0] if prompts_ == "0" else []
        # with drafts a sequence has more than one token, of which the name says nothing
        return _make_served_step(
            name, int(prompts_), int(decodes_), context, [0] if decodes_ == "0" else []
        )
    if match := _SGLANG.match(name):
        mode, size, tokens_ = match.groups()
        if mode == "DECODE":
            return _make_served_step(name, 0, int(size), [0], [int(size)])
        if mode in ("EXTEND", "PREFILL", "SPLIT_PREFILL"):
            return _make_served_step(name, int(size), 0, [int(tokens_)] if tokens_ else [], [0])
        if mode == "MIXED":  # its numbers are of both together
            return ServedStep(0, name, "mixed")
        if mode in ("TARGET_VERIFY", "DRAFT_EXTEND"):
            return _make_served_step(name, 0, int(size), [0], [int(tokens_)] if tokens_ else [])
    return None


def _make_served_step(
    name: str, prompts: int, decodes: int, prompt_counts: list[int], decode_counts: list[int]
) -> ServedStep | None:
    """``prompt_counts`` and ``decode_counts``: tokens, keys and pairs, as far as they are known."""
    if not prompts and not decodes:
        return None
    phase = "mixed" if prompts and decodes else "prefill" if prompts else "decode"
    names = ("tokens", "keys", "pairs")
    figures = {f"prompt_{name}": value for name, value in zip(names, prompt_counts, strict=False)}
    figures |= {f"decode_{name}": value for name, value in zip(names, decode_counts, strict=False)}
    return ServedStep(0, name, phase, prompts=prompts, decodes=decodes, **figures)


def parse_graph_capture_name(name: str) -> tuple[int, str] | None:
    """(size, mode) of the range in which a server captures a graph: ``capture_32_DECODE``; None for
    other names."""
    match = _CAPTURE.match(name)
    return (int(match[1]), match[2]) if match else None
