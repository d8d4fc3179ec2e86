"""The inputs that a model takes, where its library, its config or its first layer says them.
Imports no torch at the top."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfctl.workloads.models.source import MODEL_ERRORS

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
"""Heights and widths tried, in this order, where only the first convolution says something of
the image."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a model takes; shapes without the batch dimension."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Parameters of ``forward`` that take them; empty: by position."""
    sequence: int | None = None
    """The sequence length among them; None where there is none."""
    note: str = ""
    """What was assumed, for the reader."""


class _Found:
    """Inputs as they are found, one after the other."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.sequence: int | None = None

    def take(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.shapes[name], self.dtypes[name] = shape, dtype

    def done(self, more: str = "") -> Inputs | None:
        if not self.shapes:
            return None
        note = f"inputs: {', '.join(map(self._said, self.shapes))}{more}"
        shapes, dtypes = tuple(self.shapes.values()), tuple(self.dtypes.values())
        return Inputs(shapes, dtypes, tuple(self.shapes), self.sequence, note)

    def _said(self, name: str) -> str:
        return f"{name} {self.dtypes[name]} {' x '.join(('batch', *map(str, self.shapes[name])))}"


def of_transformers(model: Any, seq: int | None) -> Inputs | None:
    """The inputs of a model of transformers, from its ``config`` and the parameters of ``forward``;
    None: not known."""
    found, config = _Found(), model.config
    takes = inspect.signature(type(model).forward).parameters
    vision = getattr(config, "vision_config", None) or config
    text = _text_config(config)
    generates = any(
        size_in(config, name) is not None for name in ("image_token_id", "image_token_index")
    )
    more = ""
    if "input_ids" in takes:
        found.sequence = seq or min(TOKENS, size_in(text, "max_position_embeddings") or TOKENS)
        found.take("input_ids", (found.sequence,), "int64")
        more = (
            "; text alone, without images"
            if generates and "pixel_values" in takes
            else "; `seq` sets the length"
        )
    if "pixel_values" in takes and not generates:
        image = _image(vision)
        if image is None:
            return None
        found.take("pixel_values", image)
    if (
        "input_features" in takes
        and size_in(config, "num_mel_bins")
        and size_in(config, "max_source_positions")
    ):
        found.take("input_features", (config.num_mel_bins, 2 * config.max_source_positions))
    if "input_values" in takes:
        bins, frames = size_in(config, "num_mel_bins"), size_in(config, "max_length")
        if bins and frames:
            found.take("input_values", (frames, bins))
        else:
            found.sequence = seq or WAVEFORM
            found.take("input_values", (found.sequence,))
            more = "; `seq` sets the samples"
    if not found.shapes:
        return None
    if "decoder_input_ids" in takes and getattr(config, "is_encoder_decoder", False):
        length = seq or min(TOKENS, size_in(text, "max_target_positions") or TOKENS)
        found.sequence = length
        found.take("decoder_input_ids", (length,), "int64")
        more = "; `seq` sets the lengths"
    return found.done(more)


def _text_config(config: Any) -> Any:
    inner = getattr(config, "text_config", None)
    return config if inner is None else inner


def size_in(config: Any, name: str) -> int | None:
    """A size in a config; None where it has none of that name."""
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _image(config: Any) -> tuple[int, ...] | None:
    size, channels = getattr(config, "image_size", None), size_in(config, "num_channels")
    # a convolutional network: it takes images of any size, those of ImageNet by default
    if size is None:
        size = IMAGES[0]
    sides = (size, size) if isinstance(size, int) else tuple(size)
    frames = size_in(config, "num_frames")
    return (*((frames,) if frames else ()), channels or 3, *sides)


def of_diffusers(model: Any, seq: int | None) -> Inputs | None:
    """The inputs of a model of diffusers, from its ``config`` and the parameters of ``forward``;
    None: not known."""
    found, config = _Found(), model.config
    takes = inspect.signature(type(model).forward).parameters
    channels, size = config.get("in_channels"), config.get("sample_size") or 64
    main = next((name for name in ("sample", "hidden_states", "x") if name in takes), None)
    # positions of the patches: the pipeline makes them
    if main is None or not channels or "img_ids" in takes:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    found.take(main, (channels, *sides))
    if "timestep" in takes:
        found.take("timestep", (), "int64")
    if "encoder_hidden_states" in takes:
        names = ("cross_attention_dim", "joint_attention_dim", "caption_channels")
        widths = [width for name in names if isinstance(width := config.get(name), int)]
        if widths:
            found.sequence = seq or PROMPT
            width = config.get("caption_channels") or widths[0]
            found.take("encoder_hidden_states", (found.sequence, width))
    if "pooled_projections" in takes and config.get("pooled_projection_dim"):
        found.take("pooled_projections", (config["pooled_projection_dim"],))
    if "class_labels" in takes and (
        config.get("num_class_embeds") or config.get("num_embeds_ada_norm")
    ):
        found.take("class_labels", (), "int64")
    needed = [
        name
        for name, one in takes.items()
        if one.default is inspect.Parameter.empty and name != "self"
    ]
    known = all(
        name in found.shapes or takes[name].kind is inspect.Parameter.VAR_KEYWORD for name in needed
    )
    return (
        found.done("" if config.get("sample_size") else "; the config has no sample_size, 64 taken")
        if known
        else None
    )


def of_waveform(channels: int | None, seq: int | None) -> Inputs:
    """A waveform of ``seq`` samples; None of channels: without that dimension."""
    samples = seq or WAVEFORM
    shape = (samples,) if channels is None else (channels, samples)
    said = " x ".join(("batch", *map(str, shape)))
    return Inputs(
        (shape,),
        ("float32",),
        (),
        samples,
        f"inputs: a waveform {said} at 16 kHz; `seq` sets the samples",
    )


def of_first_layer(model: torch.nn.Module) -> Inputs | None:
    """The input of a model whose first layer fixes it; None where it does not.

    A network of linear layers takes the features of its first; one that begins with a 2-dimensional
    convolution takes images of its channels, of the first size in IMAGES with which a forward
    without data works. Any other is not guessed.
    """
    from torch import nn

    layers = [
        module
        for module in model.modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    if not layers:
        return None
    first, plain = layers[0], (nn.Linear, nn.BatchNorm1d, nn.LayerNorm, nn.PReLU)
    if isinstance(first, nn.Linear) and all(isinstance(layer, plain) for layer in layers):
        features = (first.in_features,)
        if not _runs(model, first, features):
            return None
        return Inputs(
            (features,),
            ("float32",),
            (),
            None,
            f"inputs: {first.in_features} features, by the first layer",
        )
    if not isinstance(first, nn.Conv2d):
        return None
    name = next(path for path, module in model.named_modules() if module is first)
    for side in IMAGES:
        shape = (first.in_channels, side, side)
        if _runs(model, first, shape):
            said = (
                f"{first.in_channels} channels by {name or 'the layer'}; {side} x {side} assumed, "
                "which works"
            )
            return Inputs(
                (shape,), ("float32",), (), None, f"inputs: {said}. `inputs` sets another size"
            )
    return None


def _runs(model: torch.nn.Module, first: torch.nn.Module, shape: Sequence[int]) -> bool:
    """Whether a forward of two samples works, and the first layer sees them as they are. Changes
    nothing of the model."""
    import torch

    seen: list[tuple[int, ...]] = []
    place = next(first.parameters()).device
    hook = first.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    modes: Mapping[torch.nn.Module, bool] = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()(torch.zeros((2, *shape), device=place))
    except MODEL_ERRORS:
        return False
    finally:
        hook.remove()
        for module, mode in modes.items():
            module.training = mode
    return bool(seen) and seen[0] == (2, *shape)
