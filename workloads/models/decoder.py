"""What a language model's config and modules say to the conventions of MFU. torch is imported when
a model is built."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from perfctl.records.decoder import DecoderFacts
from perfctl.workloads.models import libraries
from perfctl.workloads.models.inputs import size_in
from perfctl.workloads.models.source import ModelError

if TYPE_CHECKING:
    import torch

_HEADS = ("AutoModelForCausalLM", "AutoModelForImageTextToText")
"""Lists of transformers in which the class with an LM head is looked for."""


def with_head(reference: str) -> str:
    """The reference with the class that has an LM head, where a name or config of transformers
    leaves the class open.

    "hf:gpt2" -> "hf:gpt2:class=GPT2LMHeadModel". Raises ModelError.
    """
    library, _, rest = reference.partition(":")
    named = library == "hf" and rest
    name, settings = libraries.split(rest if named else reference)
    path = libraries.config_file(name)
    if "class" in settings or not (named or path is not None) or _has_class(path):
        return reference
    model, *_ = libraries.transformers_model(name, settings, "meta", _HEADS)
    return f"{reference}{',' if settings else ':'}class={type(model).__name__}"


def _has_class(path: Any) -> bool:
    if path is None:
        return False
    config = libraries.read_config(path)
    return bool(config.get("architectures")) or "_class_name" in config


def facts_of(model: torch.nn.Module, name: str) -> DecoderFacts:
    """Raises ModelError for a model without a table of tokens: it is no language model."""
    import torch

    tables = {id(one.weight): one for one in model.modules() if isinstance(one, torch.nn.Embedding)}
    tokens = _given(model, "get_input_embeddings") or max(
        tables.values(), key=lambda one: one.weight.numel(), default=None
    )
    if tokens is None or getattr(tokens, "weight", None) is None:
        text = (
            f"{name}: it has no token embedding, and the MFU formulas apply to language models only"
        )
        raise ModelError(text, "Use a language model: hf:llama or a config.json")
    head = _given(model, "get_output_embeddings")
    if head is None and not hasattr(model, "get_output_embeddings"):
        vocab = tokens.weight.shape[0]
        linear = [
            one
            for one in model.modules()
            if isinstance(one, torch.nn.Linear) and one.out_features == vocab
        ]
        head = linear[-1] if linear else None
    path = (
        next((path for path, one in model.named_modules() if one is head), None)
        if head is not None
        else None
    )
    positions = sum(one.weight.numel() for key, one in tables.items() if key != id(tokens.weight))
    config: Any = getattr(model, "config", None)
    text_config = getattr(config, "text_config", None) or config
    windows, notes = _windows(text_config)
    if _is_encoder(config):
        notes = (
            *notes,
            ("an encoder has no causal mask, so the causal rows do not apply to it"),
        )
    return DecoderFacts(
        embedding=tokens.weight.numel(),
        positions=positions,
        tied=head is not None and head.weight is tokens.weight,
        head=path,
        hidden=size_in(text_config, "hidden_size"),
        heads=size_in(text_config, "num_attention_heads"),
        kv_heads=size_in(text_config, "num_key_value_heads"),
        windows=windows,
        notes=notes,
    )


def _is_encoder(config: Any) -> bool:
    """Whether transformers has the model for masked words and it is not told to be a decoder."""
    if config is None or getattr(config, "is_decoder", False):
        return False
    lists = getattr(sys.modules.get("transformers"), "AutoModelForMaskedLM", None)
    return lists is not None and type(config) in lists._model_mapping


def _given(model: Any, method: str) -> Any:
    """What a method of transformers' models gives; None where there is none."""
    try:
        return getattr(model, method)()
    except (AttributeError, NotImplementedError):
        return None


def _windows(config: Any) -> tuple[tuple[int | None, ...] | None, tuple[str, ...]]:
    """The window of each attention layer; and what of the config is not taken into account."""
    size, kinds = size_in(config, "sliding_window"), getattr(config, "layer_types", None)
    if isinstance(kinds, (list, tuple)) and kinds:
        with_scores = [kind for kind in kinds if "linear" not in str(kind)]
        chunked = (
            "attention in chunks counts as the full square" if "chunked_attention" in kinds else ""
        )
        return tuple(size if kind == "sliding_attention" else None for kind in with_scores), (
            chunked,
        ) if chunked else ()
    layers = size_in(config, "num_hidden_layers")
    if size is not None and layers is not None and getattr(config, "use_sliding_window", True):
        return (size,) * layers, ()
    return None, ()
