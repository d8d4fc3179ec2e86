"""Modules of the kernels that Inductor fused, from the source lines of their origins.

PyTorch writes the Python stacks of a fused kernel's origins into the kernel's arguments ("stack")
where the program ran with ``TORCH_COMPILE_DEBUG_EXTEND=1``: one text for each operation of the
program, the outermost frame first, with marks under the expression that was running (Python 3.11
and later). Frames of modules are those of functions named ``forward``; a call ``self.fc(x)`` in one
is of its part ``fc``, and ``block(x)`` of one that the source names only ``block``. What a module
computes itself (``x + y``) is its own.

A kernel with origins in one module is of that module. One with origins in several is shared out
between them: in a pointwise or reducing kernel all origins work on the same elements, so each
counts alike, as one operation an element does in FLOPs and in bytes. In a template
(``triton_tem_``) one of them multiplies: it has the FLOPs of the product, and each other origin one
operation for each element of the output. That is an estimate. Which one multiplies follows from the
lines (F.linear, ``@``), else from the others, which do not (a sum, a norm, an activation by its
name), else from library kernels of the same trace that are of one of the modules alone. Where that
does not leave one module, the kernel is not shared out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from perfctl.parsers.kineto.events import CallFacts, Events
from perfctl.parsers.kineto.fused import TEMPLATE
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.records.report import Gap, Kernel, KernelPart

_FRAME = re.compile(
    r'^\s*File "[^"\n]*", line \d+, in (\S+)\n([^\n]*)(?:\n([ \t~^]*[~^][ \t~^]*)(?=\n|\Z))?',
    re.MULTILINE,
)
_CALL = re.compile(r"(self\.)?([A-Za-z_]\w*(?:\.\w+|\[\w+\])*)\s*\(")
_NAMED = 5
"""Kernels without modules that are named."""
BACKWARD = "CompiledFunctionBackward"
_MULTIPLIES = re.compile(
    "(?:bi)?linear|conv(?:_transpose)?[123]d|matmul|(?:b|add|badd)?mm|baddbmm|mv|dot|einsum|"
    "tensordot",
)
"""Functions of torch that multiply matrices, and parts that are called like them."""
_POINTWISE = re.compile(
    r"(?:act|activation|act_fn|\w*relu\d*|\w*gelu|silu|swish|hardswish|\w*norm|ln|bn|dropout|drop|"
    "drop_path|softmax|sigmoid|tanh|exp)"
    r"(?:_?\d+)?"
)
"""Names of parts and functions that do not."""
_OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow"}
"""Of Python -> as names of kernels have them."""
_LIBRARY = re.compile(
    "gemm|cutlass|xmma|nvjet|cublas|Cijk_|triton_tem_|implicit_convolve|fprop|wgrad|dgrad",
    re.IGNORECASE,
)
"""In names of kernels that multiply."""


@lru_cache(maxsize=4096)
def readings(stack: str) -> tuple[str, ...]:
    """Path below the model of the module that ran an origin, "" for the model itself; none where
    the lines do not say.

    Two where they do not say which of both: torch's marks (2.14) begin where the expression does
    and may reach over what is done with its value, so ``self.norm(x) * 2`` is the call of ``norm``
    or the product of its result, in this order.
    """
    frames = [(function, _marked(line, marks)) for function, line, marks in _FRAME.findall(stack)]
    begin = next((at for at, (function, _) in enumerate(frames) if function == "forward"), None)
    if begin is None:
        return ()
    path: list[str] = []
    for at, (_, text) in enumerate(frames[begin:], begin):
        is_last = at + 1 == len(frames)
        if not is_last and frames[at + 1][0] != "forward":
            continue  # a function that the module calls: no module of its own
        if not is_last:
            text = _leading_call(text) or text
        called = _called(text)
        if called is None:
            return ()
        is_own, name = called
        if name and (
            is_own or not is_last
        ):  # in the innermost frame, others than self.fc(...) are functions: F.relu(...)
            path.append(name)
        elif not is_last:
            return ()
        elif (
            not name
            and (first := _leading_call(text)) is not None
            and (part := _called(first))
            and part[0]
        ):
            return ".".join((*path, part[1])), ".".join(path)
    return (".".join(path),)


def path_of(stack: str, kernel: str = "") -> str | None:
    """The one path of an origin; where it has two readings, that which fits the operators in the
    name of its kernel, if one does."""
    found = readings(stack)
    if len(found) < 2:
        return found[0] if found else None
    *_, (_, line, marks) = _FRAME.findall(stack)
    text = _marked(line, marks) or ""
    rest = text.removeprefix(_leading_call(text) or "").strip()
    done = [_OPERATORS.get(one) for one in re.findall(r"\*\*|[-+*/@]", _outside(rest))]
    if not done or None in done or rest.startswith("."):
        return None
    fused = (
        kernel.partition("_fused_")[2].rpartition("_")[0] if kernel.startswith("triton_") else ""
    )
    there = [one for one in done if one is not None and f"_{one}_" in f"_{fused}_"]
    if kernel and not there:
        return found[0]  # nothing in this kernel is done with the value of the call
    return found[1] if fused and fused == "_".join(sorted(set(there))) else None


def _marked(line: str, marks: str) -> str | None:
    """The expression under the marks; without marks the whole line, where only one call can
    be meant.

    torch's marks (2.14) may reach over brackets that close calls around the expression:
    ``self.fc(x)))``.
    """
    if marks.strip():
        begin = min(at for at in (marks.find("^"), marks.find("~")) if at >= 0)
        text, depth = line[begin : len(marks.rstrip())].strip(), 0
        for at, letter in enumerate(text):
            depth += (letter in "([") - (letter in ")]")
            if depth < 0:
                return text[:at]
        return text
    target, _, value = line.strip().removeprefix("return ").partition(" = ")
    whole = (value or target).strip()
    return whole if whole.count("(") == 1 else None


def _called(text: str | None) -> tuple[bool, str] | None:
    """(whether it is an attribute of self, its name) of an expression that is one call; name "" for
    any other expression."""
    if text is None:
        return None
    match = _CALL.match(text)
    if match is None or not _closes_at_end(text, match.end() - 1):
        return False, ""
    name = re.sub(r"\[(\w+)\]", r".\1", match[2])
    return match[1] is not None, name


def _closes_at_end(text: str, opening: int) -> bool:
    return _closing(text, opening) == len(text) - 1


def _closing(text: str, opening: int) -> int | None:
    """Where the bracket at ``opening`` closes."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    return None


def parted(
    events: Events, nesting: Nesting, spans: Sequence[int], kernels: list[Kernel]
) -> tuple[list[Kernel], tuple[KernelPart, ...], tuple[Gap, ...]]:
    """The kernels with the modules of their origins, the parts of those shared between modules, and
    what is not known.

    ``spans``: of each kernel, the span that launched it, -1 for none. A kernel whose parts are of
    several modules has no layer of its own; one whose lines do not say keeps the module around it,
    if there is one.
    """
    found, parts, unknown = list(kernels), list[KernelPart](), Counter[str]()
    multiplying = _multiplying(events, kernels)
    for at, stacks in events.origins.items():
        kernel = kernels[at]
        paths = Counter(path_of(stack, kernel.name) for stack in stacks)
        work: dict[str | None, int] | None = dict(paths)
        if None not in paths and len(paths) > 1 and kernel.name.startswith(TEMPLATE):
            work = _work(
                kernel.name,
                _called_as(events, nesting, spans[at], kernel.name),
                stacks,
                paths,
                multiplying,
            )
        if None in paths or work is None:
            unknown[kernel.name] += int(kernel.duration_ns or 0)
            continue
        layers: Counter[str | None] = Counter()
        works: Counter[str | None] = Counter()
        for path, count in paths.items():
            layer = ".".join(filter(None, (kernel.layer, path))) or None
            layers[layer] += count
            works[layer] += work[path]
        direction = kernel.direction or _direction(events, nesting, spans[at])
        if len(layers) == 1:
            (layer,) = layers
            if layer is not None and layer != kernel.layer:
                found[at] = kernel._replace(
                    layer=layer, direction=direction, layer_source="origins"
                )
            continue
        found[at] = kernel._replace(layer=None, direction=None, layer_source="shared")
        for layer, count in layers.items():
            share = works[layer] / works.total()
            parts.append(
                KernelPart(kernel.launch, layer, None if layer is None else direction, count, share)
            )
    return found, tuple(parts), _gaps(kernels, unknown)


def _multiplying(events: Events, kernels: Sequence[Kernel]) -> set[str]:
    """Paths of the modules that some kernel which multiplies is of alone."""
    found = set()
    for at, stacks in events.origins.items():
        paths = {path_of(stack, kernels[at].name) for stack in stacks}
        if len(paths) == 1 and _LIBRARY.search(kernels[at].name):
            found |= paths
    return {path for path in found if path}


def _called_as(events: Events, nesting: Nesting, span: int, name: str) -> CallFacts | None:
    """What the call that launched a kernel says of it."""
    while span >= 0:
        facts = events.compiled.get(span)
        if facts is not None and events.spans[span].name == name:
            return facts
        span = nesting.parents[span]
    return None


def _work(
    name: str,
    facts: CallFacts | None,
    stacks: Sequence[str],
    paths: Counter[str | None],
    multiplying: set[str],
) -> dict[str | None, int] | None:
    """FLOPs of each path in a template; None where it is not known which one multiplies, or
    how much."""
    if facts is None or facts.flops is None or facts.elements is None:
        return None
    said: dict[str | None, bool | None] = {}
    for stack in stacks:
        path, does = path_of(stack, name), _multiplies(stack)
        said[path] = (
            True
            if True in (does, said.get(path))
            else None
            if None in (does, said.get(path, does))
            else False
        )
    those = [path for path, does in said.items() if does] or [
        path for path, does in said.items() if does is None
    ]
    if len(those) > 1:
        those = [path for path in those if path in multiplying]
    if len(those) != 1:
        return None
    return {
        path: (count - (path in those)) * facts.elements + (facts.flops if path in those else 0)
        for path, count in paths.items()
    }


def _multiplies(stack: str) -> bool | None:
    """Whether an origin multiplies matrices, by its innermost expression; None where that does
    not say."""
    *_, (_, line, marks) = _FRAME.findall(stack)
    text = _marked(line, marks)
    called = _called(text)
    if text is None or called is None or len(readings(stack)) > 1:
        return None
    _, name = called
    if not name:
        outside = _outside(text)
        return False if "@" not in outside else None if re.search(r"[-+*/]", outside) else True
    last = name.rpartition(".")[2]
    return True if _MULTIPLIES.fullmatch(last) else False if _POINTWISE.fullmatch(last) else None


def _leading_call(text: str | None) -> str | None:
    """``self.norm(x)`` of ``self.norm(x) * 2``; None where it begins with no call."""
    match = _CALL.match(text or "")
    if match is None or text is None:
        return None
    end = _closing(text, match.end() - 1)
    return None if end is None else text[: end + 1]


def _outside(text: str) -> str:
    """What is in no brackets."""
    kept, depth = [], 0
    for letter in text:
        depth += letter in "(["
        kept.append(letter if not depth else " ")
        depth -= letter in ")]"
    return "".join(kept)


def _direction(events: Events, nesting: Nesting, span: int) -> str:
    while span >= 0:
        if events.spans[span].name == BACKWARD:
            return "backward"
        span = nesting.parents[span]
    return "forward"


def _gaps(kernels: Sequence[Kernel], unknown: Counter[str]) -> tuple[Gap, ...]:
    if not unknown:
        return ()
    whole = sum(kernel.duration_ns or 0 for kernel in kernels) or 1
    named = ", ".join(
        f"{name[:60]} ({ns / whole * 100:.1f} %)" for name, ns in unknown.most_common(_NAMED)
    )
    reason = (
        f"the source lines of fused kernels do not say which modules their parts belong to, with "
        f"{unknown.total() / whole * 100:.1f} % of the kernel time: {named}"
    )
    return (Gap("kernel_part", "ambiguous", reason),)
