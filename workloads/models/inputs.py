"""The inputs that a model takes, where its library, its config or its first layer states them.
Imports no torch at the top."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfctl.workloads.models.source import MODEL_ERRORS, ModelInputs

if TYPE_CHECKING:
    import torch

TOKENS = 128
"""Length of a text where nothing is asked for; shorter where the model has fewer positions."""
WAVEFORM = 16_000
"""Samples of a waveform where nothing is asked for: one second at 16 kHz, which the models of
speech are made for."""
PROMPT = 77
"""Tokens of the text that a diffusion model is given: what CLIP's encoder puts out."""
IMAGES = (224, 32, 28, 64, 96, 128, 227, 256, 299)
"""Heights and widths tried, in this order, where only the first convolution shows something of
the image."""


def _add_inputs_note_or_none(inputs: ModelInputs, suffix: str) -> ModelInputs | None:
    """Return the inputs with a note that lists them; None without any."""
    listed = (
        f"{name} {dtype} {format_batch_shape(shape)}"
        for name, (shape, dtype) in inputs.tensors.items()
    )
    inputs.note = f"inputs: {', '.join(listed)}{suffix}"
    return inputs if inputs.tensors else None


def format_batch_shape(shape: Sequence[int]) -> str:
    """Return text such as "batch x 3 x 224 x 224"."""
    return " x ".join(("batch", *map(str, shape)))


def infer_transformers_inputs(model: Any, sequence_length: int | None) -> ModelInputs | None:
    """Return the inputs of a model of transformers, from its ``config`` and the parameters of
    ``forward``; None: not known."""
    inputs, config = ModelInputs(), model.config
    parameters = inspect.signature(type(model).forward).parameters
    text = get_text_config(config)
    has_image_tokens = any(
        read_positive_config_integer(config, name) is not None
        for name in ("image_token_id", "image_token_index")
    )
    suffix, length, limit = "", 0, None
    if "input_ids" in parameters:
        limit = read_positive_config_integer(text, "max_position_embeddings")
        length = sequence_length or min(TOKENS, limit or TOKENS)
        inputs.add_sequence_input("input_ids", length)
        suffix = (
            "; text alone, without images"
            if has_image_tokens and "pixel_values" in parameters
            else "; `seq` sets the length"
        )
    if "pixel_values" in parameters and not has_image_tokens:
        inputs.add_tensor(
            "pixel_values", _read_image_shape(getattr(config, "vision_config", None) or config)
        )
    bins = read_positive_config_integer(config, "num_mel_bins")
    positions, frames = (
        read_positive_config_integer(config, "max_source_positions"),
        read_positive_config_integer(config, "max_length"),
    )
    if "input_features" in parameters and bins and positions:
        inputs.add_tensor("input_features", (bins, 2 * positions))
    if "input_values" in parameters and bins and frames:
        inputs.add_tensor("input_values", (frames, bins))
    elif "input_values" in parameters:
        inputs.add_sequence_input("input_values", sequence_length or WAVEFORM, dtype="float32")
        suffix = "; `seq` sets the samples"
    if (
        inputs.tensors
        and "decoder_input_ids" in parameters
        and getattr(config, "is_encoder_decoder", False)
    ):
        limit = limit or read_positive_config_integer(text, "max_target_positions")
        length = sequence_length or min(TOKENS, limit or TOKENS)
        inputs.add_sequence_input("decoder_input_ids", length)
        suffix = "; `seq` sets the lengths"
    if limit is not None and length > limit:
        suffix += f". The model was made for {limit:,} positions"
    return _add_inputs_note_or_none(inputs, suffix)


def get_text_config(config: Any) -> Any:
    """Return the part of a config that describes the language model."""
    return getattr(config, "text_config", None) or config


def read_positive_config_integer(config: Any, name: str) -> int | None:
    """Return a size in a config; None where it has none of that name."""
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _read_image_shape(config: Any) -> tuple[int, ...]:
    # a convolutional network has no size: it takes images of any, those of ImageNet by default
    size = getattr(config, "image_size", None) or IMAGES[0]
    frames = read_positive_config_integer(config, "num_frames")
    return (
        *filter(None, [frames]),
        read_positive_config_integer(config, "num_channels") or 3,
        *_expand_image_size(size),
    )


def _expand_image_size(size: Any) -> tuple[int, ...]:
    """Return (height, width) of a config's size, which is one number for a square."""
    return (size, size) if isinstance(size, int) else tuple(size)


def infer_diffusers_inputs(model: Any, sequence_length: int | None) -> ModelInputs | None:
    """Return the inputs of a model of diffusers, from its ``config`` and the parameters of
    ``forward``; None: not known."""
    inputs, config = ModelInputs(), model.config
    parameters = inspect.signature(type(model).forward).parameters
    channels, size = config.get("in_channels"), config.get("sample_size")
    sample = next((name for name in ("sample", "hidden_states", "x") if name in parameters), None)
    # positions of the patches: the pipeline makes them
    if sample is None or not channels or "img_ids" in parameters:
        return None
    inputs.add_tensor(sample, (channels, *_expand_image_size(size or 64)))
    if "timestep" in parameters:
        inputs.add_tensor("timestep", (), "int64")
    names = ("caption_channels", "cross_attention_dim", "joint_attention_dim")
    widths = [width for name in names if (width := config.get(name)) and isinstance(width, int)]
    if "encoder_hidden_states" in parameters and widths:
        inputs.add_sequence_input(
            "encoder_hidden_states", sequence_length or PROMPT, widths[0], dtype="float32"
        )
    if "pooled_projections" in parameters and (width := config.get("pooled_projection_dim")):
        inputs.add_tensor("pooled_projections", (width,))
    if "class_labels" in parameters and (
        config.get("num_class_embeds") or config.get("num_embeds_ada_norm")
    ):
        inputs.add_tensor("class_labels", (), "int64")
    unknown = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_KEYWORD
        and name not in ("self", *inputs.tensors)
    ]
    suffix = "" if size else "; the config has no sample_size, 64 taken"
    return None if unknown else _add_inputs_note_or_none(inputs, suffix)


def make_waveform_inputs(channels: int | None, sequence_length: int | None) -> ModelInputs:
    """Return a waveform of ``sequence_length`` samples; None of channels: without that
    dimension."""
    samples = sequence_length or WAVEFORM
    shape = (samples,) if channels is None else (channels, samples)
    note = f"inputs: a waveform {format_batch_shape(shape)} at 16 kHz; `seq` sets the samples"
    return ModelInputs.from_positional_shapes([shape], sequence=samples, note=note)


def infer_inputs_from_first_layer(model: torch.nn.Module) -> ModelInputs:
    """Return the input of a model whose first layer fixes it; empty where it does not.

    A network of linear layers takes the features of its first; one that begins with a 2-dimensional
    convolution takes images of its channels, of the first size in IMAGES with which a forward
    without data works. Any other is not guessed.
    """
    from torch import nn
    from torch.nn.parameter import is_lazy

    layers = [
        (path, module)
        for path, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    # a trial would give lazy modules the shapes of its own input
    if not layers or any(map(is_lazy, model.parameters())):
        return ModelInputs()
    (name, first), plain = layers[0], (nn.Linear, nn.BatchNorm1d, nn.LayerNorm, nn.PReLU)
    if isinstance(first, nn.Linear) and all(isinstance(layer, plain) for _, layer in layers):
        features = first.in_features
        if _accepts_input_shape(model, first, (features,)):
            note = f"inputs: {features} features, by the first layer"
            return ModelInputs.from_positional_shapes([(features,)], note=note)
    if isinstance(first, nn.Conv2d):
        for side in IMAGES:
            shape = (first.in_channels, side, side)
            if _accepts_input_shape(model, first, shape):
                note = (
                    f"inputs: {first.in_channels} channels by {name or 'the layer'}; "
                    f"{side} x {side} assumed, which works. `inputs` sets another size"
                )
                return ModelInputs.from_positional_shapes([shape], note=note)
    return ModelInputs()


def _accepts_input_shape(
    model: torch.nn.Module, first: torch.nn.Module, shape: Sequence[int]
) -> bool:
    """Return whether a forward of two samples works, and the first layer gets them as they are.
    Changes nothing of the model."""
    import torch

    sizes: list[tuple[int, ...]] = []
    device = next(first.parameters()).device
    hook = first.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].shape)))
    modes: Mapping[torch.nn.Module, bool] = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()(torch.zeros((2, *shape), device=device))
    except MODEL_ERRORS:
        return False
    finally:
        hook.remove()
        for module, mode in modes.items():
            module.training = mode
    return sizes[:1] == [(2, *shape)]
