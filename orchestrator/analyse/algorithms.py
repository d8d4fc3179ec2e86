"""Which algorithm a kernel is, read off its name (cuDNN, cuBLAS, CUTLASS, Triton, ATen, ...; 2017 to today)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from perfctl.orchestrator.analyse import kernel_details as details
from perfctl.orchestrator.analyse.kernel_names import DIRECTIONS, FAMILIES, LIBRARIES, METHODS, ROLES, TRITON

_LONGEST = 4000
Table = tuple[tuple[str, re.Pattern[str]], ...]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What a kernel's name says; every field is None where it says nothing."""

    family: str | None
    """A word of ``FAMILIES``: conv, winograd, fft, depthwise, gemm, attention, layout, ..."""
    method: str | None = None
    """In words: "implicit gemm", "winograd F(2x2,3x3)", "gemm", "split-k reduction", "flash attention"."""
    tile: tuple[int, int, int | None] | None = None
    """Outputs of one thread block (m, n) and the step along the sum (k, None where not said)."""
    split_k: bool | None = None
    """True when the name says that the sum is split over blocks; cuBLAS does so without saying (None): see the grid."""
    tensor_core: bool | None = None
    instruction: str | None = None
    """Tensor instruction by accumulator and shape: "s884", "h884", "s16816" (m16 n8 k16, fp32 accumulation)."""
    math: str | None = None
    """Type of the multiplied numbers: fp32, tf32, fp16, bf16, int8, fp64, fp8, fp4."""
    direction: str | None = None
    """forward, grad_input or grad_weight."""
    role: str = "main"
    """main, transform, layout, offsets, epilogue or reduction."""
    library: str | None = None
    architecture: str | None = None
    """The chip it was written for ("volta", "sm80"), often older than the chip it runs on."""
    winograd: tuple[int, int] | None = None
    """(outputs, filter) along one side: (2, 3) for F(2x2,3x3)."""
    winograd_block: tuple[int, int, int] | None = None
    """(images, rows, columns) of Winograd tiles that one thread block works on."""


NOTHING = Algorithm(None)


def family(name: str) -> str | None:
    """The family of a kernel name; None when no pattern fits."""
    return recognise(name).family


def _compiled(table: Iterable[tuple[str, str]]) -> Table:
    return tuple((word, re.compile(pattern)) for word, pattern in table)


_FAMILIES, _TRITON, _ROLES = _compiled(FAMILIES), _compiled(TRITON), _compiled(ROLES)
_LIBRARIES, _DIRECTIONS = _compiled(LIBRARIES), _compiled(DIRECTIONS)
_METHODS = tuple((family, method, re.compile(pattern)) for family, method, pattern in METHODS)
_DIRECTED = ("conv", "winograd", "fft", "depthwise", "attention", "norm", "pool", "softmax", "rnn")
_ARITHMETIC = ("conv", "depthwise", "attention", "gemm", "rnn")
"""What a layer is called after, before norms, reductions and elementwise kernels beside it."""
_TILED = ("conv", "gemm", "attention")


@lru_cache(maxsize=65536)
def recognise(name: str) -> Algorithm:
    """What a kernel's name says about its algorithm.

    The function's own name decides the family before its template arguments do, so that a copy kernel whose functor
    mentions "add" stays a copy.
    """
    lowered = name[:_LONGEST].lower()
    own = _own_name(lowered)
    found = _family(lowered, own)
    if found is None:
        return Algorithm(None, library=_first(_LIBRARIES, lowered), architecture=details.architecture(lowered))
    role = _role(found, own, lowered)
    math, tensor_core = details.math(lowered, found) if role == "main" else (None, None)
    return Algorithm(
        family=found,
        method=_method(found, own, lowered),
        tile=details.tile(lowered) if found in _TILED else None,
        split_k=_split_k(lowered),
        tensor_core=tensor_core,
        instruction=details.instruction(lowered) if tensor_core else None,
        math=math,
        direction=_first(_DIRECTIONS, lowered) if found in _DIRECTED else None,
        role=role,
        library=_first(_LIBRARIES, lowered),
        architecture=details.architecture(lowered),
        winograd=_winograd(lowered) if found == "winograd" else None,
        winograd_block=details.winograd_block(lowered),
    )


def of_layer(names: Iterable[str]) -> Algorithm:
    """The algorithm of a layer that several kernels serve: its main kernel, or what the transforms around it say.

    A product between Winograd or Fourier transforms is part of that algorithm, whatever it is called.
    """
    known = [recognise(name) for name in names]
    for word in ("winograd", "fft"):
        for algorithm in known:
            if algorithm.family == word and algorithm.role != "offsets":
                return algorithm
    main = [item for item in known if item.role == "main" and item.family]
    arithmetic = [item for item in main if item.family in _ARITHMETIC]
    return next(iter(arithmetic or main or known), NOTHING)


def _first(table: Table, *texts: str) -> str | None:
    for text in texts:
        for word, pattern in table:
            if pattern.search(text):
                return word
    return None


def _method(family: str, own: str, lowered: str) -> str:
    for text in (own, lowered):
        for word, method, pattern in _METHODS:
            if word == family and pattern.search(text):
                return method
    return family


def _role(family: str, own: str, lowered: str) -> str:
    if lowered.startswith("triton_"):
        return "main"
    qualified = re.split(r"[<(]", lowered, maxsplit=1)[0]
    return _first(_ROLES, own, qualified) or ("layout" if family == "layout" else "main")


def _split_k(lowered: str) -> bool | None:
    """True for a kernel whose name says so; "segment_k_off" and silence say nothing of the launch."""
    return True if re.search(r"split_?k(?!v)|stream_?k|segment_?k_on", lowered) else None


def _winograd(lowered: str) -> tuple[int, int] | None:
    """(outputs, filter) along one side."""
    if "9x9_5x5" in lowered:
        return 9, 5
    if "4x4" in lowered:
        return 4, 3
    return (2, 3) if "winograd_128x128" in lowered or "generatewinogradtiles" in lowered else None


def _family(lowered: str, own: str) -> str | None:
    if lowered.startswith("triton_"):
        return _first(_TRITON, lowered) or _first(_FAMILIES, lowered)
    if "elementwise_kernel" in own and re.search(r"direct_copy_kernel|copy_device_to_device", lowered):
        return "copy"
    return _first(_FAMILIES, own, lowered)


def _own_name(name: str) -> str:
    """Up to the first template argument or parameter; CUTLASS's "Kernel<X<...>>" is told by X instead."""
    text = re.sub(r"^(void|static|__global__)\s+", "", name)
    text = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", text)
    pieces = re.split(r"[<(>]", text)
    own = pieces[0].rpartition("::")[2] or text
    if own.startswith(("kernel", "device_kernel")) and len(pieces) > 1:
        return pieces[1]
    return own
