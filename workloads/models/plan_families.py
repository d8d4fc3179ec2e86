"""Build the layers of each family from its settings: one function per family. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfctl.records.paper import PlanLayer, Shape
from perfctl.workloads.spec import SpecError

Settings = Mapping[str, int | str]

_LARGE_FROM = 128
"""Images from this width on get the large stem, where the stem is "auto"."""
_KNOWN = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks of each stage of the published residual networks (He et al. 2015, table 1), which have four stages."""


class LayerList:
    """The layers so far. A method appends one that reads layer ``of``, and returns its number."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.layers: list[PlanLayer] = []
        self.given: Shape = (number(settings, "channels"), number(settings, "image"), number(settings, "image"))

    def shape(self, of: int) -> Shape:
        """The output shape of layer ``of``; -1 is the model's input."""
        return self.given if of < 0 else self.layers[of].gives

    def conv(self, name: str, of: int, out: int, kernel: int, stride: int = 1, bias: bool = False) -> int:
        """A square kernel, padded by half its width: stride 1 keeps the image's size, 2 halves it, rounded up."""
        size = (self.shape(of)[1] - 1) // stride + 1
        return self._add(name, "conv", (of,), (out, size, size), kernel, stride, kernel // 2, bias)

    def linear(self, name: str, of: int, out: int) -> int:
        return self._add(name, "linear", (of,), (out, 1, 1), bias=True)

    def norm(self, name: str, of: int) -> int:
        """Batch normalisation. Raises SpecError for a 1x1 image, where a channel has one value at batch 1."""
        if self.shape(of)[1] < 2:
            raise self._too_small(f"{name} would normalise a single value", "image, fewer stages, or a small stem")
        return self._add(name, "norm", (of,), self.shape(of))

    def _too_small(self, why: str, larger: str) -> SpecError:
        return SpecError(f"image={self.settings['image']} is too small: {why}; use a larger {larger}")

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

    def conv_norm_activation(self, name: str, of: int, out: int, kernel: int, stride: int = 1) -> int:
        of = self.conv(f"{name}.conv", of, out, kernel, stride)
        return self.activation(f"{name}.act", self.norm(f"{name}.norm", of))

    def _add(
        self, name: str, kind: str, of: tuple[int, ...], gives: Shape,
        kernel: int = 1, stride: int = 1, padding: int = 0, bias: bool = False,
    ) -> int:  # fmt: skip
        self.layers.append(PlanLayer(name, kind, of, self.shape(of[0]), gives, kernel, stride, padding, bias))
        return len(self.layers) - 1


def vgg(settings: Settings) -> tuple[PlanLayer, ...]:
    """Stages of convolutions, each ending in a pool, and three linear layers (Simonyan and Zisserman 2014).

    Depths 11, 13, 16 and 19 with 5 stages are the published ones: the first two stages have two convolutions at most.
    """
    layers, stages, width = LayerList(settings), number(settings, "stages"), number(settings, "width")
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
        at = layers.activation(f"act{block}", layers.linear(f"fc{block}", at, number(settings, "hidden")))
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


def _residual(layers: LayerList, name: str, of: int, inner: int, stride: int, bottleneck: bool) -> int:
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
        beside = layers.norm(f"{name}.down.norm", layers.conv(f"{name}.down.conv", of, out, 1, stride))
    return layers.activation(f"{name}.act", layers.add(f"{name}.add", at, beside))


def resnet_counts(depth: int, stages: int, bottleneck: bool) -> list[int]:
    """Blocks of each stage. Raises SpecError when the depth gives a fraction of a block, or too few blocks."""
    layers, kind = (3, "bottleneck") if bottleneck else (2, "basic")
    if (depth - 2) % layers:
        near = max(depth - (depth - 2) % layers, 2 + layers * stages)
        possible = f"depth is 2 + {layers} x blocks; use depth={near} or depth={near + layers}"
        raise SpecError(f"depth={depth} is impossible with {kind} blocks of {layers} convolutions: {possible}")
    blocks = (depth - 2) // layers
    if blocks < stages:
        needed = f"{kind} blocks have {layers} convolutions and each stage needs a block"
        small = f"depth={depth} is too small for stages={stages}"
        raise SpecError(f"{small}: {needed}; use depth={2 + layers * stages} or more")
    if stages == 4 and depth in _KNOWN and sum(_KNOWN[depth]) == blocks:
        return list(_KNOWN[depth])
    return spread(blocks, stages)


def inception(settings: Settings) -> tuple[PlanLayer, ...]:
    """Modules of four parallel branches with batch normalisation (Szegedy et al. 2014; Ioffe and Szegedy 2015).

    With width 64 the first module is GoogLeNet's 3a, its 1x1 reductions rounded to 96 and 16.
    """
    layers, stages, blocks = LayerList(settings), number(settings, "stages"), number(settings, "blocks")
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
    four = layers.conv_norm_activation(f"{name}.b4.2", layers.pool(f"{name}.b4.1", of, 3, 1, 1), width // 2, 1)
    return layers.concat(f"{name}.concat", (one, two, three, four))


def mlp(settings: Settings) -> tuple[PlanLayer, ...]:
    layers, depth = LayerList(settings), number(settings, "depth")
    at = layers.flatten("flatten", -1)
    for place in range(1, depth):
        at = layers.activation(f"act{place}", layers.linear(f"fc{place}", at, number(settings, "width")))
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
    "vgg": vgg, "resnet": resnet, "inception": inception, "mlp": mlp,
}  # fmt: skip
