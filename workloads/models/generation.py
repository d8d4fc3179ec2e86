"""Models that write one token after the other, and how to call them: with a prompt, then with a
cache of keys and values.

A model of transformers takes its class with a head for generation; of any other, the forward takes
``past_key_values``, ``cache`` or ``cache_params`` and gives it back: as an attribute or a key of
that name, or second in a tuple. Imports no torch at the top.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.workloads.models import libraries
from perfctl.workloads.models.find import build_referenced_model
from perfctl.workloads.models.inputs import (
    format_batch_shape,
    get_text_config,
    infer_transformers_inputs,
    read_positive_config_integer,
)
from perfctl.workloads.models.source import ModelError

if TYPE_CHECKING:
    import torch

CACHES = ("past_key_values", "cache", "cache_params")
"""Parameters of a forward that take the cache. ``cache``: that of transformers 5.24 and newer, and
of own models."""
HEADS = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageTextToText",
)
"""Lists of transformers, in the order in which a class is looked for."""


@dataclass(frozen=True, slots=True)
class TextGenerator:
    """A model, and what its forward is called with. ``model(arguments)`` takes all arguments as
    one dictionary."""

    model: torch.nn.Module
    name: str
    ids: str
    """Parameter that takes the tokens that are continued: int64, batch x tokens."""
    cache: str | None
    """Parameter that takes the cache; None: the model has none."""
    takes: frozenset[str]
    """Names of all parameters."""
    notes: tuple[str, ...] = ()
    """What was taken where the name leaves a choice, besides model_note and weights_note."""
    encoder: Mapping[str, tuple[tuple[int, ...] | None, str]] = field(default_factory=dict)
    """What the encoder takes: shape without batch (None: as many tokens as the prompt has)
    and dtype."""
    positions: int | None = None
    """Positions that the model was made for."""
    latent: tuple[int, int] | None = None
    """Multi-head latent attention: values of one token in one layer, compressed and as keys and
    values of all heads."""
    files: tuple[Path, ...] | None = ()
    """Files that the model is made from, apart from the libraries'; None where they do not
    say everything."""
    model_note: str = ""
    """A sentence: class and config of the model."""
    weights_note: str = ""
    """A sentence: type of the weights as built here."""

    def count_decoder_prefill_tokens(self, prompt_tokens: int) -> int:
        """Tokens that prefill puts into the decoder: one where the prompt is the encoder's."""
        return 1 if any(shape is None for shape, _ in self.encoder.values()) else prompt_tokens

    def make_call_arguments(
        self,
        batch: int,
        tokens: int,
        prompt_tokens: int,
        device: str,
        *,
        previous_output: Any = None,
        use_cache: bool = True,
    ) -> dict[str, Any]:
        """Return what one call takes. ``previous_output``: the output of the call before; with
        ``use_cache`` its cache goes on."""
        import torch

        def make_zeros(shape: Sequence[int], dtype: str) -> Any:
            return torch.zeros((batch, *shape), dtype=getattr(torch, dtype), device=device)

        inputs = {self.ids: make_zeros((tokens,), "int64")}
        if "use_cache" in self.takes:
            inputs["use_cache"] = use_cache
        if "logits_to_keep" in self.takes:
            inputs["logits_to_keep"] = 1
        if previous_output is not None and use_cache and self.cache is not None:
            inputs[self.cache] = self.get_output_kv_cache(previous_output)
        if self.encoder and previous_output is not None:
            from transformers.modeling_outputs import BaseModelOutput

            state = previous_output.encoder_last_hidden_state
            inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=state)
        else:
            for name, (shape, dtype) in self.encoder.items():
                inputs[name] = make_zeros((prompt_tokens,) if shape is None else shape, dtype)
        return inputs

    def get_output_kv_cache(self, output: Any) -> Any:
        """Return the cache in what the model gave; None where there is none."""
        if self.cache is None:
            return None
        if isinstance(output, Mapping):
            return output.get(self.cache)
        if isinstance(output, tuple) and not hasattr(output, self.cache):
            return output[1] if len(output) > 1 else None
        return getattr(output, self.cache, None)


def build_text_generator(
    reference: str,
    device: str = "meta",
    model_arguments: Sequence[str] = (),
    prompt_tokens: int = 1,
) -> TextGenerator:
    """Return the model ``reference``, ready to generate. Raises ModelError; also for a model that
    takes no cache."""
    reference_parts = libraries.parse_library_or_config_reference(reference)
    if reference_parts is not None and reference_parts.name and reference_parts.library == "hf":
        return _make_transformers_generator(reference_parts, device, prompt_tokens)
    source = build_referenced_model(reference, device, model_arguments)
    parameters = inspect.signature(source.model.forward).parameters
    cache = _find_cache_parameter(parameters)
    ids = next((name for name in parameters if name not in CACHES), None)
    if cache is None or ids is None:
        remedy = (
            "Use a language model: hf:llama, or a factory of a model whose forward takes "
            "past_key_values or cache"
        )
        raise ModelError(f"{reference}: its forward accepts none of {', '.join(CACHES)}", remedy)
    libraries.patch_forward_for_keyword_inputs(source.model, dict)
    notes = (*source.notes, _describe_computed_logits(parameters))
    return TextGenerator(
        source.model, reference, ids, cache, frozenset(parameters), notes, files=source.files
    )


def _make_transformers_generator(
    reference: libraries.LibraryReference, device: str, prompt_tokens: int
) -> TextGenerator:
    source = libraries.build_transformers_model(reference, device, HEADS)
    model, title, kind = source.model, source.name, type(source.model).__name__
    parameters = inspect.signature(type(model).forward).parameters
    config: Any = model.config
    inputs = infer_transformers_inputs(model, prompt_tokens)
    tensors = inputs.tensors if inputs is not None else {}
    ids = "decoder_input_ids" if "decoder_input_ids" in tensors else "input_ids"
    if ids not in tensors:
        remedy = f"Set the class: {title}:class=NAME"
        raise ModelError(f"{title}: {kind} does not accept tokens", remedy)
    cache = _find_cache_parameter(parameters)
    if cache is None or config.is_encoder_decoder != (ids == "decoder_input_ids"):
        text = f"{title}: {kind} does not accept a KV cache"
        raise ModelError(text, "Use a model that generates: hf:llama, hf:t5")
    encoder = {
        name: (None if name == "input_ids" else shape, dtype)
        for name, (shape, dtype) in tensors.items()
        if name != ids
    }
    libraries.patch_forward_for_keyword_inputs(model, dict)
    class_note, *notes = source.notes
    if encoder:
        listed = ", ".join(
            f"{name} {dtype} {format_batch_shape(shape or (prompt_tokens,))}"
            for name, (shape, dtype) in encoder.items()
        )
        begins = (
            "the decoder begins with 1 token"
            if "input_ids" in encoder
            else "the prompt is the decoder's"
        )
        notes.append(f"encoder: {listed}, once, in prefill; {begins}")
    weights = sorted({str(weight.dtype).removeprefix("torch.") for weight in model.parameters()})
    text_config = get_text_config(config)
    return TextGenerator(
        model,
        title,
        ids,
        cache,
        frozenset(parameters),
        (*notes, _describe_computed_logits(parameters)),
        encoder,
        read_positive_config_integer(text_config, "max_position_embeddings"),
        _read_latent_attention_sizes(text_config),
        source.files,
        class_note,
        f"weights: {' and '.join(weights)}, as built here; add dtype=bfloat16 after the name for "
        "another type",
    )


def _find_cache_parameter(parameters: Mapping[str, Any]) -> str | None:
    return next((name for name in CACHES if name in parameters), None)


def _describe_computed_logits(parameters: Mapping[str, Any]) -> str:
    if "logits_to_keep" in parameters:
        return "logits: of the last token only, as in generate() of transformers (logits_to_keep=1)"
    return "logits: of every input token; the forward does not accept logits_to_keep"


def _read_latent_attention_sizes(config: Any) -> tuple[int, int] | None:
    """Source: DeepSeek-V2, 2024, section 2.1: kv_lora_rank + rope, against heads x (nope + rope
    + value)."""
    names = (
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "num_attention_heads",
    )
    sizes = [read_positive_config_integer(config, name) for name in names]
    if None in sizes:
        return None
    rank, rope, nope, value, heads = (size or 0 for size in sizes)
    return rank + rope, heads * (nope + rope + value)
