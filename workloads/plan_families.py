"""The layers of each family, from its settings: one function a family, and the sheet they write on. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfctl.parsers.planned import PlanLayer, Shape
from perfctl.workloads.spec import SpecError

Settings = Mapping[str, int | str]

_LARGE_FROM = 128
"""Images from this width on get the large stem, where the stem is "auto"."""
_KNOWN = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks of each stage of the published residual networks (He et al. 2015, table 1), which have four stages."""


class Sheet:
    """The layers so far. A method adds one after layer ``of`` and gives its number."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.layers: list[PlanLayer] = []
        self.given: Shape = (number(settings, "channels"), number(settings, "image"), number(settings, "image"))

    def shape(self, of: int) -> Shape:
        """What layer ``of`` gives; -1 is the network's input."""
        return self.given if of < 0 else self.layers[of].gives

    def conv(self, name: str, of: int, out: int, kernel: int, stride: int = 1, bias: bool = False) -> int:
        """A square window, padded by half of it: stride 1 keeps the image's size, 2 halves it, rounded up."""
        size = (self.shape(of)[1] - 1) // stride + 1
        return self._add(name, "conv", (of,), (out, size, size), kernel, stride, kernel // 2, bias)

    def linear(self, name: str, of: int, out: int) -> int:
        return self._add(name, "linear", (of,), (out, 1, 1), bias=True)

    def norm(self, name: str, of: int) -> int:
        """Over all values of a channel, of which there must be two: also at batch 1."""
        if self.shape(of)[1] < 2:
            raise SpecError(
                f"image={self.settings['image']} is too small: {name} would normalise over one value; "
                "say a larger image, fewer stages, or a small stem"
            )
        return self._add(name, "norm", (of,), self.shape(of))

    def activation(self, name: str, of: int) -> int:
        return self._add(name, "activation", (of,), self.shape(of))

    def pool(self, name: str, of: int, kernel: int, stride: int, padding: int = 0) -> int:
        """The largest value of each window."""
        channels, before, _ = self.shape(of)
        size = (before + 2 * padding - kernel) // stride + 1
        if size < 1:
            raise SpecError(
                f"image={self.settings['image']} is too small: {name} would pool {kernel}x{kernel} from {before}x{before}; "
                "say a larger image or fewer stages"
            )
        return self._add(name, "max_pool", (of,), (channels, size, size), kernel, stride, padding)

    def mean(self, name: str, of: int) -> int:
        """The mean over the image."""
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
    sheet, stages, width = Sheet(settings), number(settings, "stages"), number(settings, "width")
    counts = vgg_counts(number(settings, "depth") - 3, stages)
    at = -1
    for stage in range(stages):
        out = width * min(2**stage, 8)
        for block in range(counts[stage]):
            name = f"stage{stage + 1}.{block}"
            at = sheet.conv(f"{name}.conv", at, out, number(settings, "kernel"), bias=True)
            if settings["batchnorm"] == "yes":
                at = sheet.norm(f"{name}.norm", at)
            at = sheet.activation(f"{name}.act", at)
        at = sheet.pool(f"stage{stage + 1}.pool", at, 2, 2)
    at = sheet.flatten("flatten", at)
    for block in (1, 2):
        at = sheet.activation(f"act{block}", sheet.linear(f"fc{block}", at, number(settings, "hidden")))
    sheet.linear("fc3", at, number(settings, "classes"))
    return tuple(sheet.layers)


def vgg_counts(convolutions: int, stages: int) -> list[int]:
    """Convolutions of each stage. Raises SpecError where there are too few."""
    if convolutions < stages:
        raise SpecError(
            f"depth={convolutions + 3} is too small for stages={stages}: each needs a convolution, beside the three "
            f"linear layers; say depth={stages + 3} or more"
        )
    first = min(2, stages - 1)
    counts = [min(2, convolutions // stages)] * first
    return counts + spread(convolutions - sum(counts), stages - first)


def resnet(settings: Settings) -> tuple[PlanLayer, ...]:
    """Residual blocks (He et al. 2015); the stride of a bottleneck is in its middle convolution."""
    sheet, width = Sheet(settings), number(settings, "width")
    bottleneck = is_bottleneck(settings)
    counts = resnet_counts(number(settings, "depth"), number(settings, "stages"), bottleneck)
    at = _stem(sheet, width)
    for stage, blocks in enumerate(counts):
        inner = width * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            at = _residual(sheet, f"stage{stage + 1}.{block}", at, inner, stride, bottleneck)
    at = sheet.flatten("flatten", sheet.mean("pool", at))
    sheet.linear("fc", at, number(settings, "classes"))
    return tuple(sheet.layers)


def _residual(sheet: Sheet, name: str, of: int, inner: int, stride: int, bottleneck: bool) -> int:
    kernel = number(sheet.settings, "kernel")
    out = inner * 4 if bottleneck else inner
    if bottleneck:
        at = sheet.conv_norm_activation(f"{name}.1", of, inner, 1)
        at = sheet.conv_norm_activation(f"{name}.2", at, inner, kernel, stride)
        at = sheet.norm(f"{name}.3.norm", sheet.conv(f"{name}.3.conv", at, out, 1))
    else:
        at = sheet.conv_norm_activation(f"{name}.1", of, inner, kernel, stride)
        at = sheet.norm(f"{name}.2.norm", sheet.conv(f"{name}.2.conv", at, out, kernel))
    beside = of
    if stride > 1 or sheet.shape(of)[0] != out:
        beside = sheet.norm(f"{name}.down.norm", sheet.conv(f"{name}.down.conv", of, out, 1, stride))
    return sheet.activation(f"{name}.act", sheet.add(f"{name}.add", at, beside))


def is_bottleneck(settings: Settings) -> bool:
    block = settings["block"]
    return block == "bottleneck" or (block == "auto" and number(settings, "depth") >= 50)


def resnet_counts(depth: int, stages: int, bottleneck: bool) -> list[int]:
    """Blocks of each stage. Raises SpecError where the depth is not made of whole blocks, or of too few."""
    layers, kind = (3, "bottleneck") if bottleneck else (2, "basic")
    if (depth - 2) % layers:
        near = max(depth - (depth - 2) % layers, 2 + layers * stages)
        raise SpecError(
            f"depth={depth} is not possible with {kind} blocks of {layers} convolutions: "
            f"depth is 2 + {layers} x blocks; say depth={near} or depth={near + layers}"
        )
    blocks = (depth - 2) // layers
    if blocks < stages:
        raise SpecError(
            f"depth={depth} is too small for stages={stages}: {kind} blocks have {layers} convolutions and each stage "
            f"needs a block; say depth={2 + layers * stages} or more"
        )
    if stages == 4 and depth in _KNOWN and sum(_KNOWN[depth]) == blocks:
        return list(_KNOWN[depth])
    return spread(blocks, stages)


def inception(settings: Settings) -> tuple[PlanLayer, ...]:
    """Modules of four branches set beside each other, normalised (Szegedy et al. 2014; Ioffe and Szegedy 2015).

    With width 64 the first module is GoogLeNet's 3a, its 1x1 reductions rounded to 96 and 16.
    """
    sheet, stages, blocks = Sheet(settings), number(settings, "stages"), number(settings, "blocks")
    if blocks < stages:
        raise SpecError(f"blocks={blocks} is too small for stages={stages}: each needs a module; say blocks={stages}")
    width, kernel = number(settings, "width"), number(settings, "kernel")
    at = _stem(sheet, width)
    for stage, count in enumerate(spread(blocks, stages)):
        if stage:
            at = sheet.pool(f"stage{stage + 1}.pool", at, 2, 2)
        for block in range(count):
            at = _module(sheet, f"stage{stage + 1}.{block}", at, width * 2**stage, kernel)
    at = sheet.flatten("flatten", sheet.mean("pool", at))
    sheet.linear("fc", at, number(settings, "classes"))
    return tuple(sheet.layers)


def _module(sheet: Sheet, name: str, of: int, width: int, kernel: int) -> int:
    one = sheet.conv_norm_activation(f"{name}.b1", of, width, 1)
    two = sheet.conv_norm_activation(f"{name}.b2.1", of, width * 3 // 2, 1)
    two = sheet.conv_norm_activation(f"{name}.b2.2", two, width * 2, kernel)
    three = sheet.conv_norm_activation(f"{name}.b3.1", of, width // 4, 1)
    three = sheet.conv_norm_activation(f"{name}.b3.2", three, width // 2, kernel + 2)
    four = sheet.conv_norm_activation(f"{name}.b4.2", sheet.pool(f"{name}.b4.1", of, 3, 1, 1), width // 2, 1)
    return sheet.concat(f"{name}.concat", (one, two, three, four))


def mlp(settings: Settings) -> tuple[PlanLayer, ...]:
    """Linear layers with an activation between two."""
    sheet, depth = Sheet(settings), number(settings, "depth")
    at = sheet.flatten("flatten", -1)
    for place in range(1, depth):
        at = sheet.activation(f"act{place}", sheet.linear(f"fc{place}", at, number(settings, "width")))
    sheet.linear(f"fc{depth}", at, number(settings, "classes"))
    return tuple(sheet.layers)


def _stem(sheet: Sheet, out: int) -> int:
    kind = sheet.settings["stem"]
    if kind == "large" or (kind == "auto" and number(sheet.settings, "image") >= _LARGE_FROM):
        return sheet.pool("stem.pool", sheet.conv_norm_activation("stem", -1, out, 7, 2), 3, 2, 1)
    return sheet.conv_norm_activation("stem", -1, out, 3)


def spread(count: int, places: int) -> list[int]:
    """``count`` over ``places`` as evenly as can be; the last ones get one more."""
    return [count // places + (place >= places - count % places) for place in range(places)]


def number(settings: Settings, name: str) -> int:
    return int(settings[name])


FAMILIES: Mapping[str, Callable[[Settings], tuple[PlanLayer, ...]]] = {
    "vgg": vgg,
    "resnet": resnet,
    "inception": inception,
    "mlp": mlp,
}
