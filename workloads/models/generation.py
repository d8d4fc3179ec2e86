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

from perfctl.workloads.models import inputs, libraries
from perfctl.workloads.models.find import find
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
class Generator:
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

    def start(self, prompt: int) -> int:
        """Tokens that prefill puts into the decoder: one where the prompt is the encoder's."""
        return 1 if any(shape is None for shape, _ in self.encoder.values()) else prompt

    def arguments(
        self,
        batch: int,
        tokens: int,
        prompt: int,
        device: str,
        *,
        after: Any = None,
        cached: bool = True,
    ) -> dict[str, Any]:
        """What one call takes. ``after``: the output of the call before; with ``cached`` its cache
        goes on."""
        import torch

        def zeros(shape: Sequence[int], dtype: str) -> Any:
            return torch.zeros((batch, *shape), dtype=getattr(torch, dtype), device=device)

        given = {self.ids: zeros((tokens,), "int64")}
        if "use_cache" in self.takes:
            given["use_cache"] = cached
        if "logits_to_keep" in self.takes:
            given["logits_to_keep"] = 1
        if after is not None and cached and self.cache is not None:
            given[self.cache] = self.cache_of(after)
        if self.encoder and after is not None:
            from transformers.modeling_outputs import BaseModelOutput

            given["encoder_outputs"] = BaseModelOutput(
                last_hidden_state=after.encoder_last_hidden_state
            )
        elif self.encoder:
            given |= {
                name: zeros(shape or (prompt,), dtype)
                for name, (shape, dtype) in self.encoder.items()
            }
        return given

    def cache_of(self, output: Any) -> Any:
        """The cache in what the model gave; None where there is none."""
        if self.cache is None:
            return None
        if isinstance(output, Mapping):
            return output.get(self.cache)
        if isinstance(output, tuple) and not hasattr(output, self.cache):
            return output[1] if len(output) > 1 else None
        return getattr(output, self.cache, None)


def find_generator(
    reference: str, device: str = "meta", own: Sequence[str] = (), prompt: int = 1
) -> Generator:
    """The model ``reference``, ready to generate. Raises ModelError; also for a model that takes
    no cache."""
    library, _, rest = reference.partition(":")
    name, settings = libraries.split(rest if library == "hf" else reference)
    path = libraries.config_file(name)
    if (library == "hf" and rest) or (
        path is not None and "_class_name" not in libraries.read_config(path)
    ):
        return _of_transformers(name, settings, device, prompt)
    source = find(reference, device, own)
    takes = inspect.signature(source.model.forward).parameters
    cache = next((word for word in CACHES if word in takes), None)
    first = next((word for word in takes if word not in CACHES), None)
    if cache is None or first is None:
        remedy = (
            "Use a language model: hf:llama, or a factory of a model whose forward takes "
            "past_key_values or cache"
        )
        raise ModelError(f"{reference}: its forward accepts none of {', '.join(CACHES)}", remedy)
    _call_with_names(source.model)
    notes = tuple(note for note in source.notes if not note.startswith("inputs: "))
    return Generator(
        source.model,
        reference,
        first,
        cache,
        frozenset(takes),
        (*notes, _logits(takes)),
        files=source.files,
    )


def _of_transformers(
    name: str, settings: libraries.Settings, device: str, prompt: int
) -> Generator:
    model, said, notes, files = libraries.transformers_model(name, settings, device, HEADS)
    takes = inspect.signature(type(model).forward).parameters
    config: Any = model.config
    found = inputs.of_transformers(model, prompt)
    names = (
        dict(zip(found.names, zip(found.shapes, found.dtypes, strict=True), strict=True))
        if found
        else {}
    )
    ids = "decoder_input_ids" if "decoder_input_ids" in names else "input_ids"
    if ids not in names:
        raise ModelError(
            f"{said}: {type(model).__name__} does not accept tokens",
            f"Set the class: {said}:class=NAME",
        )
    cache = next((word for word in CACHES if word in takes), None)
    if cache is None or config.is_encoder_decoder != (ids == "decoder_input_ids"):
        text = f"{said}: {type(model).__name__} does not accept a KV cache"
        raise ModelError(text, "Use a model that generates: hf:llama, hf:t5")
    encoder = {
        word: (None if word == "input_ids" else shape, dtype)
        for word, (shape, dtype) in names.items()
        if word != ids
    }
    _call_with_names(model)
    said_inputs = ", ".join(
        f"{word} {dtype} {' x '.join(map(str, ('batch', *(shape or (prompt,)))))}"
        for word, (shape, dtype) in encoder.items()
    )
    begins = (
        "the decoder begins with 1 token"
        if "input_ids" in encoder
        else "the prompt is the decoder's"
    )
    more = [f"encoder: {said_inputs}, once, in prefill; {begins}"] if encoder else []
    more.append(_logits(takes))
    weights = sorted({str(weight.dtype).removeprefix("torch.") for weight in model.parameters()})
    text_config = getattr(config, "text_config", None) or config
    positions = inputs.size_in(text_config, "max_position_embeddings")
    return Generator(
        model,
        said,
        ids,
        cache,
        frozenset(takes),
        (*notes[1:], *more),
        encoder,
        positions,
        _latent(text_config),
        files,
        notes[0],
        f"weights: {' and '.join(weights)}, as built here; add dtype=bfloat16 after the name for "
        "another type",
    )


def _logits(takes: Mapping[str, Any]) -> str:
    if "logits_to_keep" in takes:
        return "logits: of the last token only, as in generate() of transformers (logits_to_keep=1)"
    return "logits: of every input token; the forward does not accept logits_to_keep"


def _latent(config: Any) -> tuple[int, int] | None:
    """Source: DeepSeek-V2, 2024, section 2.1: kv_lora_rank + rope, against heads x (nope + rope
    + value)."""
    names = (
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "num_attention_heads",
    )
    sizes = [inputs.size_in(config, name) for name in names]
    if None in sizes:
        return None
    rank, rope, nope, value, heads = (size or 0 for size in sizes)
    return rank + rope, heads * (nope + rope + value)


def _call_with_names(model: torch.nn.Module) -> None:
    """From now on, ``model({name: value})`` passes its arguments by name. The model and its layers
    keep their types."""
    forward = model.forward

    def with_names(given: dict[str, Any]) -> Any:
        with libraries.one_sequence():
            return forward(**given)

    model.forward = with_names
