"""What an elementwise kernel of PyTorch computes: its functor, read out of the kernel's name.

nsys and Kineto write ``{lambda(float)#1}`` and ``(anonymous namespace)``, ncu writes ``[lambda(float) (instance 1)]`` and
``<unnamed>``; the table of counts and the kernels of a report must come to the same word.
"""

from __future__ import annotations

import re
from functools import lru_cache

_NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\bunnamed>::|_global__n__\w+?::|_internal_\w+?::|\(int\)|\(bool\)|\bat::native::|"
    r"\bc10::|binary_internal::|\bat::|\boperator ?\(\) ?\(\) ?(?:const)?(?:::)?|\bconst\b"
)
_NCU_LAMBDA = re.compile(r"(?:\[|\{|(?<=::)|(?<= ))lambda\(([^()]*)\) \(instance (\d+)\)\]?")
_LAMBDA = re.compile(r"\{lambda\(([^()]*)\)#(\d+)\}")
_HEAD = re.compile(
    r"(?:^|[ :])(?:vectorized_elementwise_kernel<\d+, ?|unrolled_elementwise_kernel<"
    r"|elementwise_kernel<\d+, ?\d+, ?(?:void )?gpu_kernel_impl(?:_nocast)?<)"
)
_FOREACH = re.compile(r"(?:^|[ :])multi_tensor_apply_kernel<(?:\w+::)*\w+<[\w ,]+>, ?")
_DISPATCH = re.compile(r"\{#\d+\}(?=\{[a-z])")


@lru_cache(maxsize=4096)
def functor_of(name: str) -> str | None:
    """``gelucudakernelimpl{#2}{float#1}``, ``cudafunctor_add<float>``, ...; None where ``name`` is no elementwise kernel.

    The numbers of lambdas tell the variants of one function (GELU exact or by tanh) apart, but for the last without
    arguments: it stands for the type, which the innermost lambda's arguments say again. Kernels of optimizers and ``_foreach_``
    operations give ``foreach `` and the template's arguments: ``foreach unaryopfunctor<float,2,1,1>,sqrt<float>``.
    """
    plain = _NOISE.sub("", _NCU_LAMBDA.sub(r"{lambda(\1)#\2}", name.lower().replace("(anonymous namespace)::", "")))
    if (foreach := _FOREACH.search(plain)) is not None:
        return "foreach " + _arguments(plain[foreach.end() :]).replace(" ", "")
    if (head := _HEAD.search(plain)) is None:
        return None
    functor = _first_argument(plain[head.end() :])
    marked = _LAMBDA.sub(lambda found: f"{{{found[1]}#{found[2]}}}", functor)
    marked = re.sub(r"\([^()]*\)", "", marked).replace("::", "").replace(" ", "")
    return _DISPATCH.sub("", marked)


def without_variant(functor: str) -> str:
    """``functor`` without the numbers of its lambdas: ``gelucudakernelimpl{float}``."""
    return re.sub(r"#\d+(?=\})", "", re.sub(r"\{#\d+\}", "", functor))


def _first_argument(text: str) -> str:
    """``text`` up to the comma or bracket that ends the first template argument."""
    return _until(text, ",")


def _arguments(text: str) -> str:
    """``text`` up to the bracket that ends the template's arguments."""
    return _until(text, "")


def _until(text: str, end: str) -> str:
    depth = 0
    for place, letter in enumerate(text):
        if letter in "<({[":
            depth += 1
        elif letter in ">)}]":
            depth -= 1
        if depth < 0 or (letter == end and depth == 0):
            return text[:place]
    return text
