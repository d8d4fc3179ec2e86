"""Turn the specification of a parametric model into its layers, with all sizes, without torch.

A specification is FAMILY, or FAMILY:NAME=VALUE,NAME=VALUE,... with the names of ``PARAMETERS`` in any order::

    resnet                                                     all defaults
    resnet:depth=26,width=32,image=64,classes=10
    resnet:depth=50,width=64,image=224,classes=1000            as torchvision's resnet50
    vgg:depth=16,width=64,image=224,classes=1000,hidden=4096   as torchvision's vgg16
    inception:blocks=6,width=32,kernel=3,activation=gelu
    mlp:depth=4,width=512,image=28,channels=1,optimizer=adam

Values are whole numbers or words. The model (``perfctl.workloads.models.families``), the estimate and the predictions all
use the layers from ``plan``, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from perfctl.records.paper import Plan
from perfctl.workloads.models.plan_families import FAMILIES
from perfctl.workloads.spec import SpecError


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
        more = ", odd" if self.odd else f", a multiple of {self.multiple}" if self.multiple > 1 else ""
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

ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
OPTIMIZERS = ("sgd", "momentum", "adam")

_SHARED: dict[str, Parameter] = {
    "image": Number(64, 1, 1024, "width and height of the input"),
    "channels": Number(3, 1, 1024, "channels of the input"),
    "classes": Number(10, 2, 100_000, "outputs of the last layer"),
    "activation": Word(ACTIVATIONS, "activation function"),
    "optimizer": Word(OPTIMIZERS, "momentum is SGD with momentum 0.9"),
}
_KERNEL = Number(3, 1, 11, "width of the convolutions that are not 1x1, padded to keep the image's size", True)
_STEM = Word(("auto", "small", "large"), "small: 3x3; large: 7x7 and pool, 4 times smaller; auto: large from 128 on")

PARAMETERS: Mapping[str, Mapping[str, Parameter]] = {
    "vgg": {
        "depth": Number(11, 4, 200, "convolutions, plus three linear layers"),
        "width": Number(64, 1, 4096, "channels of the first stage; each stage doubles them, up to 8 times"),
        "stages": Number(5, 1, 8, "each ends in a pool that halves the image"),
        "kernel": _KERNEL,
        "hidden": Number(512, 1, 65_536, "units of the first two linear layers"),
        "batchnorm": Word(("no", "yes"), "batch normalisation after each convolution"),
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
        "width": Number(32, 4, 4096, "a quarter of a module's channels; each stage doubles it", multiple=4),
        "stages": Number(3, 1, 8, "a pool between two of them halves the image"),
        "kernel": Number(3, 1, 9, "width of the second branch's convolution; the third's is 2 more", True),
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
    """The plan of a specification. Raises SpecError with the parameter, its value and what is allowed."""
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
            raise SpecError(f"{family}: {name} has no value; for example {name}={known[name].default}")
        if name in given:
            raise SpecError(f"{family}: {name} is repeated")
        given[name] = _read(family, name, value, known[name])
    return family, {name: given.get(name, parameter.default) for name, parameter in known.items()}


def canonical(family: str, settings: Mapping[str, int | str]) -> str:
    """The specification without defaults, in the family's order: equal models have equal specifications."""
    defaults = {name: parameter.default for name, parameter in PARAMETERS[family].items()}
    words = [f"{name}={settings[name]}" for name, default in defaults.items() if settings[name] != default]
    return f"{family}:{','.join(words)}" if words else family


def _read(family: str, name: str, text: str, parameter: Parameter) -> int | str:
    wrong = SpecError(f"{family}: {name} must be {parameter.allowed}, got {text} ({parameter.about})")
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
