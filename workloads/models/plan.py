"""Turn the specification of a parametric model into its layers, with all sizes, without torch.

A specification is FAMILY, or FAMILY:NAME=VALUE,NAME=VALUE,... with the names of ``PARAMETERS`` in
any order::

    resnet                                                     all defaults
    resnet:depth=26,width=32,image=64,classes=10
    resnet:depth=50,width=64,image=224,classes=1000            as torchvision's resnet50
    vgg:depth=16,width=64,image=224,classes=1000,hidden=4096   as torchvision's vgg16
    inception:blocks=6,width=32,kernel=3,activation=gelu
    mlp:depth=4,width=512,image=28,channels=1,optimizer=adam

Values are whole numbers or words. The model (``perfctl.workloads.models.families``), the estimate
and the predictions all use the layers from ``plan_model``, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from perfctl.records.paper import Plan, PlanLayer, Shape
from perfctl.workloads.spec import SpecError

Settings = Mapping[str, Any]
"""Every parameter of a family -> its value, a whole number or a word."""

_LARGE_FROM = 128
"""Images from this width on get the large stem, where the stem is "auto"."""
_PUBLISHED = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks of each stage of the published residual networks (He et al. 2015, table 1), which have
four stages."""

ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
OPTIMIZERS = ("sgd", "momentum", "adam")


class LayerPlanBuilder:
    """The layers so far. A method appends one that reads layer ``source``, and
    returns its number."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.layers: list[PlanLayer] = []

    def get_output_shape(self, source: int) -> Shape:
        """Return the output shape of layer ``source``; -1 is the model's input."""
        if source >= 0:
            return self.layers[source].gives
        image = self.settings["image"]
        return self.settings["channels"], image, image

    def add_conv(
        self, name: str, source: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False
    ) -> int:
        """Append a convolution with a square kernel, padded by half its width, and return the
        layer's number. Stride 1 keeps the image's size, 2 halves it, rounded up."""
        size = (self.get_output_shape(source)[1] - 1) // stride + 1
        return self._append_layer(
            name, "conv", (source,), (outputs, size, size), kernel, stride, kernel // 2, bias
        )

    def add_linear(self, name: str, source: int, outputs: int) -> int:
        return self._append_layer(name, "linear", (source,), (outputs, 1, 1), bias=True)

    def add_norm(self, name: str, source: int) -> int:
        """Batch normalisation. Raises SpecError for a 1x1 image, where a channel has one value at
        batch 1."""
        if self.get_output_shape(source)[1] < 2:
            raise self._make_image_too_small_error(
                f"{name} would normalize a single value", "image, fewer stages, or a small stem"
            )
        return self._append_layer(name, "norm", (source,), self.get_output_shape(source))

    def _make_image_too_small_error(self, reason: str, enlargement: str) -> SpecError:
        return SpecError(
            f"image={self.settings['image']} is too small: {reason}; use a larger {enlargement}"
        )

    def add_activation(self, name: str, source: int) -> int:
        return self._append_layer(name, "activation", (source,), self.get_output_shape(source))

    def add_max_pool(
        self, name: str, source: int, kernel: int, stride: int, padding: int = 0
    ) -> int:
        """Max pooling. Raises SpecError for an image smaller than the window."""
        channels, before, _ = self.get_output_shape(source)
        size = (before + 2 * padding - kernel) // stride + 1
        if size < 1:
            window = f"{kernel}x{kernel} from {before}x{before}"
            raise self._make_image_too_small_error(
                f"{name} would pool {window}", "image or fewer stages"
            )
        return self._append_layer(
            name, "max_pool", (source,), (channels, size, size), kernel, stride, padding
        )

    def add_flatten(self, source: int) -> int:
        channels, height, width = self.get_output_shape(source)
        return self._append_layer(
            "flatten", "flatten", (source,), (channels * height * width, 1, 1)
        )

    def add_classifier(self, source: int) -> None:
        """The mean over the image, and a linear layer."""
        channels, height, _ = self.get_output_shape(source)
        mean = self._append_layer("pool", "mean_pool", (source,), (channels, 1, 1), height)
        self.add_linear("fc", self.add_flatten(mean), self.settings["classes"])

    def add_addition(self, name: str, first: int, second: int) -> int:
        return self._append_layer(name, "add", (first, second), self.get_output_shape(first))

    def add_concat(self, name: str, source: tuple[int, ...]) -> int:
        _, height, width = self.get_output_shape(source[0])
        channels = sum(self.get_output_shape(number)[0] for number in source)
        return self._append_layer(name, "concat", source, (channels, height, width))

    def add_conv_norm(
        self, name: str, source: int, outputs: int, kernel: int, stride: int = 1
    ) -> int:
        return self.add_norm(
            f"{name}.norm", self.add_conv(f"{name}.conv", source, outputs, kernel, stride)
        )

    def add_conv_norm_activation(
        self, name: str, source: int, outputs: int, kernel: int, stride: int = 1
    ) -> int:
        return self.add_activation(
            f"{name}.act", self.add_conv_norm(name, source, outputs, kernel, stride)
        )

    def _append_layer(
        self,
        name: str,
        kind: str,
        source: tuple[int, ...],
        gives: Shape,
        kernel: int = 1,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
    ) -> int:
        takes = self.get_output_shape(source[0])
        self.layers.append(
            PlanLayer(name, kind, source, takes, gives, kernel, stride, padding, bias)
        )
        return len(self.layers) - 1


def add_vgg_layers(layers: LayerPlanBuilder) -> None:
    """Stages of convolutions, each ending in a pool, and three linear layers (Simonyan and
    Zisserman 2014).

    Depths 11, 13, 16 and 19 with 5 stages are the published ones: the first two stages have two
    convolutions at most.
    """
    settings, last = layers.settings, -1
    stages, convolutions = settings["stages"], settings["depth"] - 3
    reason = "every stage needs a convolution, and there are three linear layers"
    _raise_if_too_shallow(settings, stages + 3, reason)
    first = min(2, stages - 1)
    counts = [min(2, convolutions // stages)] * first
    counts += split_evenly(convolutions - sum(counts), stages - first)
    for stage, count in enumerate(counts):
        outputs = settings["width"] * min(2**stage, 8)
        for block in range(count):
            name = f"stage{stage + 1}.{block}"
            last = layers.add_conv(f"{name}.conv", last, outputs, settings["kernel"], bias=True)
            if settings["batchnorm"] == "yes":
                last = layers.add_norm(f"{name}.norm", last)
            last = layers.add_activation(f"{name}.act", last)
        last = layers.add_max_pool(f"stage{stage + 1}.pool", last, 2, 2)
    _add_linear_layers(layers, 3, settings["hidden"], last)


def _raise_if_too_shallow(
    settings: Settings, min_value: int, reason: str, name: str = "depth"
) -> None:
    """Raise SpecError for fewer layers (or blocks) than the stages need."""
    if settings[name] < min_value:
        small = f"{name}={settings[name]} is too small for stages={settings['stages']}"
        raise SpecError(f"{small}: {reason}; use {name}={min_value} or more")


def _add_linear_layers(layers: LayerPlanBuilder, count: int, width: int, source: int) -> None:
    """Linear layers with an activation after each but the last, which gives the classes."""
    source = layers.add_flatten(source)
    for number in range(1, count):
        source = layers.add_activation(
            f"act{number}", layers.add_linear(f"fc{number}", source, width)
        )
    layers.add_linear(f"fc{count}", source, layers.settings["classes"])


def add_resnet_layers(layers: LayerPlanBuilder) -> None:
    """Residual blocks (He et al. 2015); the stride of a bottleneck is in its middle convolution."""
    settings = layers.settings
    depth, block = settings["depth"], settings["block"]
    bottleneck = block == "bottleneck" or (block == "auto" and depth >= 50)
    last = _add_stem(layers, settings["width"])
    for stage, count in enumerate(count_resnet_blocks_per_stage(settings, bottleneck)):
        inner = settings["width"] * 2**stage
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            name = f"stage{stage + 1}.{number}"
            last = _add_residual_block(layers, name, last, inner, stride, bottleneck)
    layers.add_classifier(last)


def _add_residual_block(
    layers: LayerPlanBuilder, name: str, source: int, inner: int, stride: int, bottleneck: bool
) -> int:
    kernel, outputs = layers.settings["kernel"], inner * 4 if bottleneck else inner
    if bottleneck:
        last = layers.add_conv_norm_activation(f"{name}.1", source, inner, 1)
        last = layers.add_conv_norm_activation(f"{name}.2", last, inner, kernel, stride)
        last = layers.add_conv_norm(f"{name}.3", last, outputs, 1)
    else:
        last = layers.add_conv_norm_activation(f"{name}.1", source, inner, kernel, stride)
        last = layers.add_conv_norm(f"{name}.2", last, outputs, kernel)
    shortcut = source
    if stride > 1 or layers.get_output_shape(source)[0] != outputs:
        shortcut = layers.add_conv_norm(f"{name}.down", source, outputs, 1, stride)
    return layers.add_activation(f"{name}.act", layers.add_addition(f"{name}.add", last, shortcut))


def count_resnet_blocks_per_stage(settings: Settings, bottleneck: bool) -> list[int]:
    """Return blocks of each stage. Raises SpecError when the depth gives a fraction of a block, or
    too few blocks."""
    depth, stages = settings["depth"], settings["stages"]
    layers, kind = (3, "bottleneck") if bottleneck else (2, "basic")
    blocks, remainder = divmod(depth - 2, layers)
    least = 2 + layers * stages
    if remainder:
        near = max(depth - remainder, least)
        possible = f"depth is 2 + {layers} x blocks; use depth={near} or depth={near + layers}"
        raise SpecError(
            f"depth={depth} is impossible with {kind} blocks of {layers} convolutions: {possible}"
        )
    reason = f"{kind} blocks have {layers} convolutions and each stage needs a block"
    _raise_if_too_shallow(settings, least, reason)
    published = _PUBLISHED.get(depth, ())
    if stages == len(published) and sum(published) == blocks:
        return list(published)
    return split_evenly(blocks, stages)


def add_inception_layers(layers: LayerPlanBuilder) -> None:
    """Modules of four parallel branches with batch normalisation (Szegedy et al. 2014; Ioffe and
    Szegedy 2015).

    With width 64 the first module is GoogLeNet's 3a, its 1x1 reductions rounded to 96 and 16.
    """
    settings = layers.settings
    _raise_if_too_shallow(settings, settings["stages"], "each needs a block", "blocks")
    last = _add_stem(layers, settings["width"])
    for stage, count in enumerate(split_evenly(settings["blocks"], settings["stages"])):
        if stage:
            last = layers.add_max_pool(f"stage{stage + 1}.pool", last, 2, 2)
        for block in range(count):
            name, width = f"stage{stage + 1}.{block}", settings["width"] * 2**stage
            last = _add_inception_block(layers, name, last, width, settings["kernel"])
    layers.add_classifier(last)


def _add_inception_block(
    layers: LayerPlanBuilder, name: str, source: int, width: int, kernel: int
) -> int:
    first = layers.add_conv_norm_activation(f"{name}.b1", source, width, 1)
    second = layers.add_conv_norm_activation(f"{name}.b2.1", source, width * 3 // 2, 1)
    second = layers.add_conv_norm_activation(f"{name}.b2.2", second, width * 2, kernel)
    third = layers.add_conv_norm_activation(f"{name}.b3.1", source, width // 4, 1)
    third = layers.add_conv_norm_activation(f"{name}.b3.2", third, width // 2, kernel + 2)
    fourth = layers.add_max_pool(f"{name}.b4.1", source, 3, 1, 1)
    fourth = layers.add_conv_norm_activation(f"{name}.b4.2", fourth, width // 2, 1)
    return layers.add_concat(f"{name}.concat", (first, second, third, fourth))


def add_mlp_layers(layers: LayerPlanBuilder) -> None:
    _add_linear_layers(layers, layers.settings["depth"], layers.settings["width"], -1)


def _add_stem(layers: LayerPlanBuilder, outputs: int) -> int:
    kind = layers.settings["stem"]
    if kind == "large" or (kind == "auto" and layers.settings["image"] >= _LARGE_FROM):
        return layers.add_max_pool(
            "stem.pool", layers.add_conv_norm_activation("stem", -1, outputs, 7, 2), 3, 2, 1
        )
    return layers.add_conv_norm_activation("stem", -1, outputs, 3)


def split_evenly(count: int, parts: int) -> list[int]:
    """``count`` divided over ``parts`` as evenly as possible; the last ones get one more."""
    return [count // parts + (index >= parts - count % parts) for index in range(parts)]


FAMILIES: Mapping[str, Callable[[LayerPlanBuilder], None]] = {
    "vgg": add_vgg_layers,
    "resnet": add_resnet_layers,
    "inception": add_inception_layers,
    "mlp": add_mlp_layers,
}


@dataclass(frozen=True, slots=True)
class NumberParameter:
    """A parameter whose value is a whole number."""

    default: int
    least: int
    most: int
    about: str
    odd: bool = False
    multiple: int = 1

    @property
    def allowed_values_text(self) -> str:
        """Text such as "1 to 11, odd"."""
        suffix = (
            ", odd" if self.odd else f", a multiple of {self.multiple}" if self.multiple > 1 else ""
        )
        return f"{self.least} to {self.most}{suffix}"


@dataclass(frozen=True, slots=True)
class ChoiceParameter:
    """A parameter whose value is one of ``words``; the first is the default."""

    words: tuple[str, ...]
    about: str

    @property
    def default(self) -> str:
        return self.words[0]

    @property
    def allowed_values_text(self) -> str:
        return f"one of {', '.join(self.words)}"


Parameter = NumberParameter | ChoiceParameter

_SHARED: dict[str, Parameter] = {
    "image": NumberParameter(64, 1, 1024, "width and height of the input"),
    "channels": NumberParameter(3, 1, 1024, "channels of the input"),
    "classes": NumberParameter(10, 2, 100_000, "outputs of the last layer"),
    "activation": ChoiceParameter(ACTIVATIONS, "activation function"),
    "optimizer": ChoiceParameter(OPTIMIZERS, "momentum is SGD with momentum 0.9"),
}
_KERNEL = NumberParameter(
    3, 1, 11, "width of the convolutions that are not 1x1, padded to keep the image's size", True
)
_STEM = ChoiceParameter(
    ("auto", "small", "large"),
    "small: 3x3; large: 7x7 and pool, 4 times smaller; auto: large from 128 on",
)

PARAMETERS: Mapping[str, Mapping[str, Parameter]] = {
    "vgg": {
        "depth": NumberParameter(11, 4, 200, "convolutions, plus three linear layers"),
        "width": NumberParameter(
            64, 1, 4096, "channels of the first stage; each stage doubles them, up to 8 times"
        ),
        "stages": NumberParameter(5, 1, 8, "each ends in a pool that halves the image"),
        "kernel": _KERNEL,
        "hidden": NumberParameter(512, 1, 65_536, "units of the first two linear layers"),
        "batchnorm": ChoiceParameter(("no", "yes"), "batch normalization after each convolution"),
        **_SHARED,
    },
    "resnet": {
        "depth": NumberParameter(
            18, 4, 1202, "convolutions on the longest path, plus the linear layer"
        ),
        "width": NumberParameter(
            64, 1, 4096, "channels of the first stage; each stage doubles them"
        ),
        "stages": NumberParameter(4, 1, 8, "each after the first halves the image"),
        "block": ChoiceParameter(
            ("auto", "basic", "bottleneck"), "auto: bottleneck from depth 50 on"
        ),
        "kernel": _KERNEL,
        "stem": _STEM,
        **_SHARED,
    },
    "inception": {
        "blocks": NumberParameter(6, 1, 200, "modules with four branches"),
        "width": NumberParameter(
            32, 4, 4096, "a quarter of a module's channels; each stage doubles it", multiple=4
        ),
        "stages": NumberParameter(3, 1, 8, "a pool between two of them halves the image"),
        "kernel": NumberParameter(
            3, 1, 9, "width of the second branch's convolution; the third's is 2 more", True
        ),
        "stem": _STEM,
        **_SHARED,
    },
    "mlp": {
        "depth": NumberParameter(3, 1, 200, "linear layers"),
        "width": NumberParameter(512, 1, 65_536, "units of all but the last layer"),
        **_SHARED,
        "image": NumberParameter(28, 1, 1024, "width and height of the input, which is flattened"),
        "channels": NumberParameter(1, 1, 1024, "channels of the input"),
    },
}
"""Family -> name of a parameter -> default and range."""


def parse_model_family(spec: str) -> str | None:
    """Return the family at the start of a specification; None for anything else."""
    name = spec.partition(":")[0].strip()
    return name if name in PARAMETERS else None


def plan_model(spec: str) -> Plan:
    """Return the plan of a specification. Raises SpecError with the parameter, its value and what
    is allowed."""
    family, settings = parse_spec_settings(spec)
    name, layers = format_canonical_spec(family, settings), LayerPlanBuilder(settings)
    try:
        FAMILIES[family](layers)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None
    return Plan(name, family, settings, tuple(layers.layers))


def parse_spec_settings(spec: str) -> tuple[str, dict[str, int | str]]:
    """Return (family, every parameter with its value). Raises SpecError."""
    family, _, settings_text = spec.partition(":")
    family = family.strip()
    if family not in PARAMETERS:
        raise SpecError(f"unknown family '{family}'; known: {', '.join(PARAMETERS)}")
    parameters = PARAMETERS[family]
    settings: dict[str, int | str] = {}
    for piece in filter(None, (part.strip() for part in settings_text.split(","))):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if name not in parameters:
            close = get_close_matches(name, parameters, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            listed = ", ".join(parameters)
            raise SpecError(f"{family} has no parameter '{name}'{hint}; it has {listed}")
        if not equals:
            raise SpecError(
                f"{family}: {name} has no value; for example {name}={parameters[name].default}"
            )
        if name in settings:
            raise SpecError(f"{family}: {name} is repeated")
        settings[name] = _parse_parameter(family, name, value, parameters[name])
    return family, {name: parameter.default for name, parameter in parameters.items()} | settings


def format_canonical_spec(family: str, settings: Mapping[str, int | str]) -> str:
    """Return the specification without defaults, in the family's order: equal models have equal
    specifications."""
    parts = [
        f"{name}={settings[name]}"
        for name, parameter in PARAMETERS[family].items()
        if settings[name] != parameter.default
    ]
    return f"{family}:{','.join(parts)}" if parts else family


def _parse_parameter(family: str, name: str, text: str, parameter: Parameter) -> int | str:
    wrong = SpecError(
        f"{family}: {name} must be {parameter.allowed_values_text}, got {text} ({parameter.about})"
    )
    if isinstance(parameter, ChoiceParameter):
        if text not in parameter.words:
            raise wrong
        return text
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise wrong
    value = int(text)
    if not parameter.least <= value <= parameter.most or value % parameter.multiple:
        raise wrong
    if parameter.odd and value % 2 == 0:
        uneven = "an even width cannot be padded evenly"
        raise SpecError(
            f"{family}: {name} must be {parameter.allowed_values_text}, got {value}: {uneven}"
        )
    return value
