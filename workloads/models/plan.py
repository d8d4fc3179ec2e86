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
and the predictions all use the layers from ``plan``, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from perfctl.records.paper import Plan, PlanLayer, Shape
from perfctl.workloads.spec import SpecError

Settings = Mapping[str, int | str]

_LARGE_FROM = 128
"""Images from this width on get the large stem, where the stem is "auto"."""
_KNOWN = {
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


class LayerList:
    """The layers so far. A method appends one that reads layer ``of``, and returns its number."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.layers: list[PlanLayer] = []
        self.given: Shape = (
            number(settings, "channels"),
            number(settings, "image"),
            number(settings, "image"),
        )

    def shape(self, of: int) -> Shape:
        """The output shape of layer ``of``; -1 is the model's input."""
        return self.given if of < 0 else self.layers[of].gives

    def conv(
        self, name: str, of: int, out: int, kernel: int, stride: int = 1, bias: bool = False
    ) -> int:
        """A square kernel, padded by half its width: stride 1 keeps the image's size, 2 halves it,
        rounded up."""
        size = (self.shape(of)[1] - 1) // stride + 1
        return self._add(name, "conv", (of,), (out, size, size), kernel, stride, kernel // 2, bias)

    def linear(self, name: str, of: int, out: int) -> int:
        return self._add(name, "linear", (of,), (out, 1, 1), bias=True)

    def norm(self, name: str, of: int) -> int:
        """Batch normalisation. Raises SpecError for a 1x1 image, where a channel has one value at
        batch 1."""
        if self.shape(of)[1] < 2:
            raise self._too_small(
                f"{name} would normalize a single value", "image, fewer stages, or a small stem"
            )
        return self._add(name, "norm", (of,), self.shape(of))

    def _too_small(self, why: str, larger: str) -> SpecError:
        return SpecError(
            f"image={self.settings['image']} is too small: {why}; use a larger {larger}"
        )

    def activation(self, name: str, of: int) -> int:
        return self._add(name, "activation", (of,), self.shape(of))

    def pool(self, name: str, of: int, kernel: int, stride: int, padding: int = 0) -> int:
        """Max pooling. Raises SpecError for an image smaller than the window."""
        channels, before, _ = self.shape(of)
        size = (before + 2 * padding - kernel) // stride + 1
        if size < 1:
            window = f"{kernel}x{kernel} from {before}x{before}"
            raise self._too_small(f"{name} would pool {window}", "image or fewer stages")
        return self._add(name, "max_pool", (of,), (channels, size, size), kernel, stride, padding)

    def mean(self, name: str, of: int) -> int:
        return self._add(name, "mean_pool", (of,), (self.shape(of)[0], 1, 1), self.shape(of)[1])

    def flatten(self, name: str, of: int) -> int:
        channels, height, width = self.shape(of)
        return self._add(name, "flatten", (of,), (channels * height * width, 1, 1))

    def add(self, name: str, one: int, other: int) -> int:
        return self._add(name, "add", (one, other), self.shape(one))

    def concat(self, name: str, of: tuple[int, ...]) -> int:
        _, height, width = self.shape(of[0])
        return self._add(name, "concat", of, (sum(self.shape(one)[0] for one in of), height, width))

    def conv_norm_activation(
        self, name: str, of: int, out: int, kernel: int, stride: int = 1
    ) -> int:
        of = self.conv(f"{name}.conv", of, out, kernel, stride)
        return self.activation(f"{name}.act", self.norm(f"{name}.norm", of))

    def _add(
        self,
        name: str,
        kind: str,
        of: tuple[int, ...],
        gives: Shape,
        kernel: int = 1,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
    ) -> int:
        self.layers.append(
            PlanLayer(name, kind, of, self.shape(of[0]), gives, kernel, stride, padding, bias)
        )
        return len(self.layers) - 1


def vgg(settings: Settings) -> tuple[PlanLayer, ...]:
    """Stages of convolutions, each ending in a pool, and three linear layers (Simonyan and
    Zisserman 2014).

    Depths 11, 13, 16 and 19 with 5 stages are the published ones: the first two stages have two
    convolutions at most.
    """
    layers, stages, width = (
        LayerList(settings),
        number(settings, "stages"),
        number(settings, "width"),
    )
    counts = vgg_counts(number(settings, "depth") - 3, stages)
    at = -1
    for stage in range(stages):
        out = width * min(2**stage, 8)
        for block in range(counts[stage]):
            name = f"stage{stage + 1}.{block}"
            at = layers.conv(f"{name}.conv", at, out, number(settings, "kernel"), bias=True)
            if settings["batchnorm"] == "yes":
                at = layers.norm(f"{name}.norm", at)
            at = layers.activation(f"{name}.act", at)
        at = layers.pool(f"stage{stage + 1}.pool", at, 2, 2)
    at = layers.flatten("flatten", at)
    for block in (1, 2):
        at = layers.activation(
            f"act{block}", layers.linear(f"fc{block}", at, number(settings, "hidden"))
        )
    layers.linear("fc3", at, number(settings, "classes"))
    return tuple(layers.layers)


def vgg_counts(convolutions: int, stages: int) -> list[int]:
    if convolutions < stages:
        needed = "every stage needs a convolution, and there are three linear layers"
        small = f"depth={convolutions + 3} is too small for stages={stages}"
        raise SpecError(f"{small}: {needed}; use depth={stages + 3} or more")
    first = min(2, stages - 1)
    counts = [min(2, convolutions // stages)] * first
    return counts + spread(convolutions - sum(counts), stages - first)


def resnet(settings: Settings) -> tuple[PlanLayer, ...]:
    """Residual blocks (He et al. 2015); the stride of a bottleneck is in its middle convolution."""
    layers, width, depth = LayerList(settings), number(settings, "width"), number(settings, "depth")
    bottleneck = settings["block"] == "bottleneck" or (settings["block"] == "auto" and depth >= 50)
    counts = resnet_counts(depth, number(settings, "stages"), bottleneck)
    at = _stem(layers, width)
    for stage, blocks in enumerate(counts):
        inner = width * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            at = _residual(layers, f"stage{stage + 1}.{block}", at, inner, stride, bottleneck)
    at = layers.flatten("flatten", layers.mean("pool", at))
    layers.linear("fc", at, number(settings, "classes"))
    return tuple(layers.layers)


def _residual(
    layers: LayerList, name: str, of: int, inner: int, stride: int, bottleneck: bool
) -> int:
    kernel, out = number(layers.settings, "kernel"), inner * 4 if bottleneck else inner
    if bottleneck:
        at = layers.conv_norm_activation(f"{name}.1", of, inner, 1)
        at = layers.conv_norm_activation(f"{name}.2", at, inner, kernel, stride)
        at = layers.norm(f"{name}.3.norm", layers.conv(f"{name}.3.conv", at, out, 1))
    else:
        at = layers.conv_norm_activation(f"{name}.1", of, inner, kernel, stride)
        at = layers.norm(f"{name}.2.norm", layers.conv(f"{name}.2.conv", at, out, kernel))
    beside = of
    if stride > 1 or layers.shape(of)[0] != out:
        beside = layers.norm(
            f"{name}.down.norm", layers.conv(f"{name}.down.conv", of, out, 1, stride)
        )
    return layers.activation(f"{name}.act", layers.add(f"{name}.add", at, beside))


def resnet_counts(depth: int, stages: int, bottleneck: bool) -> list[int]:
    """Blocks of each stage. Raises SpecError when the depth gives a fraction of a block, or too
    few blocks."""
    layers, kind = (3, "bottleneck") if bottleneck else (2, "basic")
    if (depth - 2) % layers:
        near = max(depth - (depth - 2) % layers, 2 + layers * stages)
        possible = f"depth is 2 + {layers} x blocks; use depth={near} or depth={near + layers}"
        raise SpecError(
            f"depth={depth} is impossible with {kind} blocks of {layers} convolutions: {possible}"
        )
    blocks = (depth - 2) // layers
    if blocks < stages:
        needed = f"{kind} blocks have {layers} convolutions and each stage needs a block"
        small = f"depth={depth} is too small for stages={stages}"
        raise SpecError(f"{small}: {needed}; use depth={2 + layers * stages} or more")
    if stages == 4 and depth in _KNOWN and sum(_KNOWN[depth]) == blocks:
        return list(_KNOWN[depth])
    return spread(blocks, stages)


def inception(settings: Settings) -> tuple[PlanLayer, ...]:
    """Modules of four parallel branches with batch normalisation (Szegedy et al. 2014; Ioffe and
    Szegedy 2015).

    With width 64 the first module is GoogLeNet's 3a, its 1x1 reductions rounded to 96 and 16.
    """
    layers, stages, blocks = (
        LayerList(settings),
        number(settings, "stages"),
        number(settings, "blocks"),
    )
    if blocks < stages:
        needed = f"each needs a block; use blocks={stages} or more"
        raise SpecError(f"blocks={blocks} is too small for stages={stages}: {needed}")
    width, kernel = number(settings, "width"), number(settings, "kernel")
    at = _stem(layers, width)
    for stage, count in enumerate(spread(blocks, stages)):
        if stage:
            at = layers.pool(f"stage{stage + 1}.pool", at, 2, 2)
        for block in range(count):
            at = _module(layers, f"stage{stage + 1}.{block}", at, width * 2**stage, kernel)
    at = layers.flatten("flatten", layers.mean("pool", at))
    layers.linear("fc", at, number(settings, "classes"))
    return tuple(layers.layers)


def _module(layers: LayerList, name: str, of: int, width: int, kernel: int) -> int:
    one = layers.conv_norm_activation(f"{name}.b1", of, width, 1)
    two = layers.conv_norm_activation(f"{name}.b2.1", of, width * 3 // 2, 1)
    two = layers.conv_norm_activation(f"{name}.b2.2", two, width * 2, kernel)
    three = layers.conv_norm_activation(f"{name}.b3.1", of, width // 4, 1)
    three = layers.conv_norm_activation(f"{name}.b3.2", three, width // 2, kernel + 2)
    four = layers.conv_norm_activation(
        f"{name}.b4.2", layers.pool(f"{name}.b4.1", of, 3, 1, 1), width // 2, 1
    )
    return layers.concat(f"{name}.concat", (one, two, three, four))


def mlp(settings: Settings) -> tuple[PlanLayer, ...]:
    layers, depth = LayerList(settings), number(settings, "depth")
    at = layers.flatten("flatten", -1)
    for place in range(1, depth):
        at = layers.activation(
            f"act{place}", layers.linear(f"fc{place}", at, number(settings, "width"))
        )
    layers.linear(f"fc{depth}", at, number(settings, "classes"))
    return tuple(layers.layers)


def _stem(layers: LayerList, out: int) -> int:
    kind = layers.settings["stem"]
    if kind == "large" or (kind == "auto" and number(layers.settings, "image") >= _LARGE_FROM):
        return layers.pool("stem.pool", layers.conv_norm_activation("stem", -1, out, 7, 2), 3, 2, 1)
    return layers.conv_norm_activation("stem", -1, out, 3)


def spread(count: int, places: int) -> list[int]:
    """``count`` divided over ``places`` as evenly as possible; the last ones get one more."""
    return [count // places + (place >= places - count % places) for place in range(places)]


def number(settings: Settings, name: str) -> int:
    return int(settings[name])


FAMILIES: Mapping[str, Callable[[Settings], tuple[PlanLayer, ...]]] = {
    "vgg": vgg,
    "resnet": resnet,
    "inception": inception,
    "mlp": mlp,
}


@dataclass(frozen=True, slots=True)
class Number:
    """A parameter whose value is a whole number."""

    default: int
    least: int
    most: int
    about: str
    odd: bool = False
    multiple: int = 1

    @property
    def allowed(self) -> str:
        """Text such as "1 to 11, odd"."""
        more = (
            ", odd" if self.odd else f", a multiple of {self.multiple}" if self.multiple > 1 else ""
        )
        return f"{self.least} to {self.most}{more}"


@dataclass(frozen=True, slots=True)
class Word:
    """A parameter whose value is one of ``words``; the first is the default."""

    words: tuple[str, ...]
    about: str

    @property
    def default(self) -> str:
        return self.words[0]

    @property
    def allowed(self) -> str:
        return f"one of {', '.join(self.words)}"


Parameter = Number | Word

_SHARED: dict[str, Parameter] = {
    "image": Number(64, 1, 1024, "width and height of the input"),
    "channels": Number(3, 1, 1024, "channels of the input"),
    "classes": Number(10, 2, 100_000, "outputs of the last layer"),
    "activation": Word(ACTIVATIONS, "activation function"),
    "optimizer": Word(OPTIMIZERS, "momentum is SGD with momentum 0.9"),
}
_KERNEL = Number(
    3, 1, 11, "width of the convolutions that are not 1x1, padded to keep the image's size", True
)
_STEM = Word(
    ("auto", "small", "large"),
    "small: 3x3; large: 7x7 and pool, 4 times smaller; auto: large from 128 on",
)

PARAMETERS: Mapping[str, Mapping[str, Parameter]] = {
    "vgg": {
        "depth": Number(11, 4, 200, "convolutions, plus three linear layers"),
        "width": Number(
            64, 1, 4096, "channels of the first stage; each stage doubles them, up to 8 times"
        ),
        "stages": Number(5, 1, 8, "each ends in a pool that halves the image"),
        "kernel": _KERNEL,
        "hidden": Number(512, 1, 65_536, "units of the first two linear layers"),
        "batchnorm": Word(("no", "yes"), "batch normalization after each convolution"),
        **_SHARED,
    },
    "resnet": {
        "depth": Number(18, 4, 1202, "convolutions on the longest path, plus the linear layer"),
        "width": Number(64, 1, 4096, "channels of the first stage; each stage doubles them"),
        "stages": Number(4, 1, 8, "each after the first halves the image"),
        "block": Word(("auto", "basic", "bottleneck"), "auto: bottleneck from depth 50 on"),
        "kernel": _KERNEL,
        "stem": _STEM,
        **_SHARED,
    },
    "inception": {
        "blocks": Number(6, 1, 200, "modules with four branches"),
        "width": Number(
            32, 4, 4096, "a quarter of a module's channels; each stage doubles it", multiple=4
        ),
        "stages": Number(3, 1, 8, "a pool between two of them halves the image"),
        "kernel": Number(
            3, 1, 9, "width of the second branch's convolution; the third's is 2 more", True
        ),
        "stem": _STEM,
        **_SHARED,
    },
    "mlp": {
        "depth": Number(3, 1, 200, "linear layers"),
        "width": Number(512, 1, 65_536, "units of all but the last layer"),
        **_SHARED,
        "image": Number(28, 1, 1024, "width and height of the input, which is flattened"),
        "channels": Number(1, 1, 1024, "channels of the input"),
    },
}
"""Family -> name of a parameter -> default and range."""


def family_of(spec: str) -> str | None:
    """The family at the start of a specification; None for anything else."""
    name = spec.partition(":")[0].strip()
    return name if name in PARAMETERS else None


def plan(spec: str) -> Plan:
    """The plan of a specification. Raises SpecError with the parameter, its value and what
    is allowed."""
    family, settings = read_settings(spec)
    try:
        layers = FAMILIES[family](settings)
    except SpecError as error:
        raise SpecError(f"{canonical(family, settings)}: {error}") from None
    return Plan(canonical(family, settings), family, settings, layers)


def read_settings(spec: str) -> tuple[str, dict[str, int | str]]:
    """(family, every parameter with its value). Raises SpecError."""
    family, _, rest = spec.partition(":")
    family = family.strip()
    if family not in PARAMETERS:
        raise SpecError(f"unknown family '{family}'; known: {', '.join(PARAMETERS)}")
    known = PARAMETERS[family]
    given: dict[str, int | str] = {}
    for piece in (part.strip() for part in rest.split(",")):
        if not piece:
            continue
        name, equals, value = (part.strip() for part in piece.partition("="))
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise SpecError(f"{family} has no parameter '{name}'{hint}; it has {', '.join(known)}")
        if not equals:
            raise SpecError(
                f"{family}: {name} has no value; for example {name}={known[name].default}"
            )
        if name in given:
            raise SpecError(f"{family}: {name} is repeated")
        given[name] = _read(family, name, value, known[name])
    return family, {name: given.get(name, parameter.default) for name, parameter in known.items()}


def canonical(family: str, settings: Mapping[str, int | str]) -> str:
    """The specification without defaults, in the family's order: equal models have equal
    specifications."""
    defaults = {name: parameter.default for name, parameter in PARAMETERS[family].items()}
    words = [
        f"{name}={settings[name]}"
        for name, default in defaults.items()
        if settings[name] != default
    ]
    return f"{family}:{','.join(words)}" if words else family


def _read(family: str, name: str, text: str, parameter: Parameter) -> int | str:
    wrong = SpecError(
        f"{family}: {name} must be {parameter.allowed}, got {text} ({parameter.about})"
    )
    if isinstance(parameter, Word):
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
        raise SpecError(f"{family}: {name} must be {parameter.allowed}, got {value}: {uneven}")
    return value
