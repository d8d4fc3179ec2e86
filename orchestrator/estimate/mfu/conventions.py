"""Conventions of model FLOPs in training, as their sources define them, and known mistakes in them.

Each gives FLOPs of one token by term (:data:`.decoder.TERMS`), so that the difference of any two is
a sum of named terms. Read in the sources on 2026-11-23; docs/commands/mfu.md links them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfctl.orchestrator.estimate.mfu.decoder import Decoder

Formula = Callable[[Decoder], "dict[str, float] | None"]
"""None: what the formula asks for is not known of this model."""

PALM = "PaLM, arXiv 2204.02311, appendix B; torchtitan before pull request 280"
TITAN = "torchtitan, get_nparams_and_active_nparams and quadratic_attention_flops_per_token"
OLMO = "OLMo-core, num_flops_per_token since pull request 511"
MAXTEXT = "MaxText, calculate_tflops_training_per_device since pull request 1988"
MEGATRON = "Megatron-LM, num_floating_point_operations"


@dataclass(frozen=True, slots=True)
class Convention:
    """One way to count."""

    JSON_KEYS = ("formula", "source")

    key: str
    formula: str
    """With N parameters, L layers, H heads of depth Q, T tokens, W the smaller of T and
    the window."""
    source: str
    terms: Formula
    attention: str
    """What it makes of attention, for the list of differences."""
    by_parameters: bool = True
    """The formula counts parameters, so recomputing is counted for all of them; else for the
    layers, without the LM head."""


def parameters(
    model: Decoder,
    attention: float,
    *,
    embedding: bool = True,
    positions: bool = True,
    tied_head: bool = True,
    idle: bool = False,
) -> dict[str, float]:
    """6 FLOPs a parameter. A tied matrix is in N once: as the LM head, which multiplies."""
    head = model.head if tied_head or not model.tied else 0
    return {
        "weights": 6 * model.products,
        "router": 6 * model.router,
        "head": 6 * head,
        "attention": attention,
        "embedding": 6 * model.embedding if embedding and not model.tied else 0,
        "positions": 6 * model.positions if positions else 0,
        "others": 6 * model.others,
        "idle": 6 * model.idle if idle else 0,
    }


def products(
    model: Decoder, attention: float, *, router: bool, idle: bool = False
) -> dict[str, float]:
    """6 FLOPs a multiply-add of the forward pass."""
    return {
        "weights": 6 * model.products,
        "router": 6 * model.router if router else 0,
        "head": 6 * model.head,
        "attention": attention,
        "idle": 6 * model.idle if idle else 0,
    }


def whole(model: Decoder) -> float:
    return 6 * model.seen(windows=False)


def windowed(model: Decoder) -> float:
    return 6 * model.seen()


def narrow(model: Decoder) -> float | None:
    pairs = model.narrow()
    return None if pairs is None else 6 * pairs * model.seq


CONVENTIONS = (
    Convention(
        "6N",
        "6 N",
        "Kaplan et al., arXiv 2001.08361; PaLM, table 21",
        lambda model: parameters(model, 0),
        "left out",
    ),
    Convention(
        "palm",
        "6 N + 12 L H Q T",
        PALM,
        lambda model: parameters(model, whole(model)),
        "whole square",
    ),
    Convention(
        "megatron",
        "6 x multiply-adds of layers and LM head + 6 L H Q T",
        MEGATRON,
        lambda model: products(model, whole(model) / 2, router=False),
        "halved (causal)",
        by_parameters=False,
    ),
    Convention(
        "nanogpt",
        "6 (N - positions) + 12 L hidden T",
        "nanoGPT, estimate_mfu",
        lambda model: (
            None
            if (found := narrow(model)) is None
            else parameters(model, found, positions=False, idle=True)
        ),
        "heads taken as hidden / heads deep",
    ),
    Convention(
        "olmo",
        "6 (N - token embedding) + 12 L H Q W",
        OLMO,
        lambda model: parameters(model, windowed(model), embedding=False, tied_head=False),
        "only the window",
    ),
    Convention(
        "torchtitan",
        "6 (N - token embedding) + 12 L H Q W",
        TITAN,
        lambda model: parameters(model, windowed(model), embedding=False, positions=False),
        "only the window",
    ),
    Convention(
        "maxtext",
        "6 x multiply-adds of layers, router and LM head + 6 L H Q W",
        MAXTEXT,
        lambda model: products(model, windowed(model) / 2, router=True),
        "halved (causal, in the window)",
        by_parameters=False,
    ),
)
"""In the order of the table. N: parameters that a token meets; idle experts are in none
but nanogpt's."""
KEYS = tuple(one.key for one in CONVENTIONS)


def _kv_heads(model: Decoder) -> dict[str, float] | None:
    if model.kv_share is None:
        return None
    return parameters(model, windowed(model) * model.kv_share, embedding=False, tied_head=False)


def _hf_backend(model: Decoder) -> dict[str, float] | None:
    found = narrow(model)
    return None if found is None else parameters(model, found, idle=True)


def _narrow_titan(model: Decoder) -> dict[str, float] | None:
    found = narrow(model)
    return None if found is None else parameters(model, found, embedding=False, positions=False)


VARIANTS = (
    Convention(
        "megatron, paper",
        "72 B L s h^2 (1 + s / 6h + v / 12hL)",
        "Megatron-LM, arXiv 2205.05198, equation 7",
        lambda model: products(model, whole(model), router=False),
        "whole square",
        by_parameters=False,
    ),
    Convention(
        "torchtitan, window ignored",
        "6 (N - token embedding) + 12 L H Q T",
        "torchtitan before pull request 4300",
        lambda model: parameters(model, whole(model), embedding=False, positions=False),
        "whole square",
    ),
    Convention(
        "torchtitan, one attention product of two",
        "6 (N - token embedding) + 6 L H Q W",
        "torchtitan pull request 4366 (its flux models)",
        lambda model: parameters(model, windowed(model) / 2, embedding=False, positions=False),
        "one product of two",
    ),
    Convention(
        "torchtitan, heads hidden / heads deep",
        "6 (N - token embedding) + 12 L hidden T",
        "torchtitan issue 1920",
        _narrow_titan,
        "heads taken as hidden / heads deep",
    ),
    Convention(
        "torchtitan, all experts",
        "6 N of all experts + 12 L hidden T",
        "torchtitan's transformers backend before pull request 4300",
        _hf_backend,
        "heads taken as hidden / heads deep",
    ),
    Convention(
        "torchtitan, tied LM head left out",
        "6 (N - LM head) + 12 L H Q W",
        "torchtitan before pull request 3225",
        lambda model: parameters(
            model, windowed(model), embedding=False, positions=False, tied_head=False
        ),
        "only the window",
    ),
    Convention(
        "olmo, window ignored",
        "6 (N - token embedding) + 12 L H Q T",
        "OLMo-core issue 475, which pull request 478 is about",
        lambda model: parameters(model, whole(model), embedding=False, tied_head=False),
        "whole square",
    ),
    Convention(
        "olmo, heads of keys in place of queries",
        "6 (N - token embedding) + 12 L Hkv Q W",
        "OLMo-core pull request 478 as proposed; not merged, since each query head multiplies",
        _kv_heads,
        "key heads only",
    ),
    Convention(
        "maxtext, whole square",
        "6 x multiply-adds + 12 L H Q W",
        "MaxText before pull request 1988",
        lambda model: products(model, windowed(model), router=True),
        "only the window",
        by_parameters=False,
    ),
    Convention(
        "maxtext, all experts",
        "6 x multiply-adds with all experts + 12 L H Q T",
        "MaxText before pull request 678",
        lambda model: products(model, whole(model), router=True, idle=True),
        "whole square",
        by_parameters=False,
    ),
)
"""What sources counted once, and known mistakes: for ``--reported``."""
