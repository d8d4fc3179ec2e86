"""What a language model's config and modules say to the conventions of MFU. torch is imported when
a model is built."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from perfctl.records.decoder import DecoderFacts
from perfctl.workloads.models import libraries
from perfctl.workloads.models.inputs import get_text_config, read_positive_config_integer
from perfctl.workloads.models.source import ModelError

if TYPE_CHECKING:
    import torch

_HEADS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText")
"""Lists of transformers in which the class with an LM head is looked for."""


def add_lm_head_class(reference: str) -> str:
    """Return the reference with the class that has an LM head, where a name or config of
    transformers leaves the class open.

    "hf:gpt2" -> "hf:gpt2:class=GPT2LMHeadModel". Raises ModelError.
    """
    reference_parts = libraries.parse_library_or_config_reference(reference)
    if (
        reference_parts is None
        or not reference_parts.name
        or reference_parts.library != "hf"
        or "class" in reference_parts.settings
    ):
        return reference
    if reference_parts.config is not None and libraries.read_model_config(
        reference_parts.config
    ).get("architectures"):
        return reference
    model = libraries.build_transformers_model(reference_parts, "meta", _HEADS).model
    return f"{reference}{',' if reference_parts.settings else ':'}class={type(model).__name__}"


def read_decoder_facts(model: torch.nn.Module, name: str) -> DecoderFacts:
    """Raises ModelError for a model without a table of tokens, and for an encoder-decoder."""
    import torch

    modules = dict(model.named_modules())
    tables = {
        id(module.weight): module
        for module in modules.values()
        if isinstance(module, torch.nn.Embedding)
    }
    tokens = _get_embeddings_or_none(model, "get_input_embeddings") or max(
        tables.values(), key=lambda table: table.weight.numel(), default=None
    )
    if tokens is None or getattr(tokens, "weight", None) is None:
        text = (
            f"{name}: it has no token embedding, and the MFU formulas apply to language models only"
        )
        raise ModelError(text, "Use a language model: hf:llama or a config.json")
    head = _get_embeddings_or_none(model, "get_output_embeddings")
    if head is None and not hasattr(model, "get_output_embeddings"):
        for module in modules.values():
            if (
                isinstance(module, torch.nn.Linear)
                and module.out_features == tokens.weight.shape[0]
            ):
                head = module
    config: Any = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        problem = "it is an encoder-decoder, and MFU formulas apply to decoder-only models"
        raise ModelError(f"{name}: {problem}", "Use perfctl estimate to count its FLOPs")
    text_config = get_text_config(config)
    windows, notes = _read_attention_windows(text_config)
    if _is_masked_language_encoder(config):
        notes += ("an encoder has no causal mask, so the causal rows do not apply to it",)
    return DecoderFacts(
        embedding=tokens.weight.numel(),
        positions=sum(
            table.weight.numel() for key, table in tables.items() if key != id(tokens.weight)
        ),
        tied=head is not None and head.weight is tokens.weight,
        head=next((path for path, module in modules.items() if module is head), None),
        hidden=read_positive_config_integer(text_config, "hidden_size"),
        heads=read_positive_config_integer(text_config, "num_attention_heads"),
        kv_heads=read_positive_config_integer(text_config, "num_key_value_heads"),
        windows=windows,
        notes=notes,
    )


def _is_masked_language_encoder(config: Any) -> bool:
    """Return whether transformers has the model for masked words and it is not told to be a
    decoder."""
    if config is None or getattr(config, "is_decoder", False):
        return False
    lists = getattr(sys.modules.get("transformers"), "AutoModelForMaskedLM", None)
    return lists is not None and type(config) in lists._model_mapping


def _get_embeddings_or_none(model: Any, method: str) -> Any:
    """Return what a method of transformers' models gives; None where there is none."""
    try:
        return getattr(model, method)()
    except (AttributeError, NotImplementedError):
        return None


def _read_attention_windows(config: Any) -> tuple[tuple[int | None, ...] | None, tuple[str, ...]]:
    """Return the window of each attention layer; and what of the config is not taken into
    account."""
    size, kinds = (
        read_positive_config_integer(config, "sliding_window"),
        getattr(config, "layer_types", None),
    )
    if isinstance(kinds, (list, tuple)) and kinds:
        with_scores = [kind for kind in kinds if "linear" not in str(kind)]
        windows = tuple(size if kind == "sliding_attention" else None for kind in with_scores)
        if "chunked_attention" in kinds:
            return windows, ("attention in chunks counts as the full square",)
        return windows, ()
    layers = read_positive_config_integer(config, "num_hidden_layers")
    if size is not None and layers is not None and getattr(config, "use_sliding_window", True):
        return (size,) * layers, ()
    return None, ()
