"""Modules that a kernel which Inductor fused belongs to, by the origins that its arguments list.

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
name). Where that does not leave one module, the kernel is not shared out.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from perfctl.parsers.kineto.events import SortedEvents
from perfctl.parsers.kineto.fused import TEMPLATE, format_first_kernel_names
from perfctl.parsers.kineto.nesting import SpanNesting
from perfctl.records.report import CompiledKernel, Gap, Kernel, KernelPart

BACKWARD = "CompiledFunctionBackward"
_FRAME = re.compile(
    r'^\s*File "[^"\n]*", line \d+, in (\S+)\n([^\n]*)(?:\n([ \t~^]*[~^][ \t~^]*)(?=\n|\Z))?',
    re.MULTILINE,
)
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
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
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
}
"""Of Python -> as names of kernels have them."""


@lru_cache(maxsize=4096)
def _parse_stack_frames(stack: str) -> list[tuple[str, ast.expr | None]]:
    """Return function and running expression of each frame; None where the line does not say."""
    return [
        (function, _parse_caret_marked_expression(line, marks))
        for function, line, marks in _FRAME.findall(stack)
    ]


def _parse_caret_marked_expression(line: str, marks: str) -> ast.expr | None:
    """Return the expression under the marks; without marks that of the whole line, where only one
    call can be meant.

    torch's marks (2.14) may reach over brackets that close calls around the expression:
    ``self.fc(x)))``.
    """
    if marks.strip():
        text = line[len(marks) - len(marks.lstrip()) : len(marks.rstrip())].strip()
    else:
        target, _, value = line.strip().removeprefix("return ").partition(" = ")
        text = (value or target).strip()
        if text.count("(") != 1:
            return None
    while True:
        try:
            with warnings.catch_warnings(action="ignore"):
                return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            if not text.endswith((")", "]")):
                return None
            text = text[:-1]


def _format_dotted_call_name(expression: ast.expr | None) -> str:
    """Return "self.layers.0" of ``self.layers[0](x)``; empty for what is not one such call."""
    if not isinstance(expression, ast.Call):
        return ""
    name = re.sub(r"\[(\w+)\]", r".\1", ast.unparse(expression.func))
    return name if _DOTTED.fullmatch(name) else ""


def _find_leading_call(expression: ast.expr | None) -> ast.Call | None:
    """Return ``self.norm(x)`` of ``self.norm(x) * 2``; None where it begins with no call."""
    nodes = [] if expression is None else ast.walk(expression)
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.col_offset == 0]
    return min(calls, key=lambda call: call.end_col_offset or 0, default=None)


def _split_leading_operators(expression: ast.expr) -> tuple[set[type[ast.operator]], ast.expr]:
    """Return the operators that work on what an expression begins with, and their operand."""
    operators = set()
    while isinstance(expression, ast.BinOp) and expression.col_offset == 0:
        operators.add(type(expression.op))
        expression = expression.left
    return operators, expression


def find_possible_module_paths(stack: str) -> tuple[str, ...]:
    """Return the path below the model of the module that ran an origin, "" for the model itself;
    none where the lines do not say.

    Two where they do not say which of both: torch's marks (2.14) begin where the expression does
    and may reach over what is done with its value, so ``self.norm(x) * 2`` is the call of ``norm``
    or the product of its result, in this order.
    """
    frames = _parse_stack_frames(stack)
    functions = [function for function, _ in frames]
    if "forward" not in functions:
        return ()
    path: list[str] = []
    for (_, expression), (callee, _) in pairwise(frames[functions.index("forward") :]):
        if callee == "forward":  # any other function that the module calls is no module of its own
            name = _format_dotted_call_name(_find_leading_call(expression))
            if not name:
                return ()
            path.append(name.removeprefix("self."))
    innermost = frames[-1][1]
    if innermost is None:
        return ()
    module, called = ".".join(path), _format_dotted_call_name(innermost)
    part = called or _format_dotted_call_name(_find_leading_call(innermost))
    if not part.startswith("self."):  # a function: F.relu(...)
        return (module,)
    inner = ".".join((*path, part.removeprefix("self.")))
    return (inner,) if called else (inner, module)


def find_module_path(stack: str, kernel_name: str = "") -> str | None:
    """Return the one path of an origin; where it has two readings, that which fits the operators in
    the name of its kernel, if one does."""
    paths = find_possible_module_paths(stack)
    innermost = _parse_stack_frames(stack)[-1][1] if paths else None
    if innermost is None or len(paths) == 1:
        return paths[0] if paths else None
    symbols, operand = _split_leading_operators(innermost)
    if not symbols or not symbols <= _OPERATORS.keys() or not _format_dotted_call_name(operand):
        return None
    fused = ""
    if kernel_name.startswith("triton_"):
        fused = kernel_name.partition("_fused_")[2].rpartition("_")[0]
    in_kernel = sorted({_OPERATORS[symbol] for symbol in symbols} & set(fused.split("_")))
    if kernel_name and not in_kernel:
        return paths[0]  # nothing in this kernel is done with the value of the call
    return paths[1] if fused and fused == "_".join(in_kernel) else None


def _is_matrix_product(stack: str) -> bool | None:
    """Return whether an origin multiplies matrices, by its innermost expression; None where that
    does not say."""
    innermost = _parse_stack_frames(stack)[-1][1]
    if innermost is None or len(find_possible_module_paths(stack)) > 1:
        return None
    name = _format_dotted_call_name(innermost).rpartition(".")[2]
    if name:
        return (
            True if _MULTIPLIES.fullmatch(name) else False if _POINTWISE.fullmatch(name) else None
        )
    symbols, _ = _split_leading_operators(innermost)
    if ast.MatMult not in symbols:
        return False
    return True if len(symbols) == 1 else None


def share_fused_kernels_between_modules(
    events: SortedEvents, nesting: SpanNesting, kernels: list[Kernel]
) -> tuple[list[Kernel], list[KernelPart], list[Gap]]:
    """Return the kernels with the modules of their origins, the parts of those shared between
    modules, and what is not known.

    A kernel whose parts are of several modules has no layer of its own; one whose lines do not say
    keeps the module around it, if there is one.
    """
    new, parts, unknown = list(kernels), list[KernelPart](), list[Kernel]()
    for index, event in enumerate(events.kernels):
        if not event.args.stack:
            continue
        kernel = kernels[index]
        outer_spans = [*nesting.iterate_enclosing_spans(event.span)]
        calls = [events.compiled[span].kernel for span in outer_spans if span in events.compiled]
        paths = [find_module_path(stack, kernel.name) for stack in event.args.stack]
        work = _estimate_relative_work_per_origin(kernel.name, paths, event.args.stack, calls)
        if None in paths or work is None:
            unknown.append(kernel)
            continue
        origins, works = Counter[str | None](), Counter[str | None]()
        for path, amount in zip(paths, work, strict=True):
            layer = ".".join(filter(None, (kernel.layer, path))) or None
            origins[layer] += 1
            works[layer] += amount
        is_backward = any(events.spans[span].name == BACKWARD for span in outer_spans)
        direction = kernel.direction or ("backward" if is_backward else "forward")
        if len(works) > 1:
            new[index] = kernel._replace(layer=None, direction=None, layer_source="shared")
            for layer, amount in works.items():
                side = None if layer is None else direction
                share = amount / works.total()
                parts.append(KernelPart(kernel.launch, layer, side, origins[layer], share))
        elif layer is not None and layer != kernel.layer:
            new[index] = kernel._replace(layer=layer, direction=direction, layer_source="origins")
    if not unknown:
        return new, parts, []
    reason = "source lines of fused kernels do not state modules"
    gap = Gap("kernel_part", "ambiguous", reason + describe_kernel_time_share(kernels, unknown))
    return new, parts, [gap]


def _estimate_relative_work_per_origin(
    kernel_name: str,
    paths: Sequence[str | None],
    stacks: Sequence[str],
    calls: Iterable[CompiledKernel],
) -> list[int] | None:
    """Return the work of each origin: one operation an element, and in a template the FLOPs of the
    one that multiplies. None where it is not known which one does, or how much."""
    if len(set(paths)) == 1 or not kernel_name.startswith(TEMPLATE):
        return [1] * len(paths)
    call = next((call for call in calls if call.name == kernel_name), None)
    if call is None or call.flops is None or call.elements is None:
        return None
    answers = [(_is_matrix_product(stack), path) for stack, path in zip(stacks, paths, strict=True)]
    products = {path for multiplies, path in answers if multiplies} or {
        path for multiplies, path in answers if multiplies is None
    }
    if len(products) != 1:
        return None
    work = [call.elements] * len(paths)
    work[paths.index(products.pop())] = call.flops
    return work


def describe_kernel_time_share(kernels: Sequence[Kernel], chosen: Iterable[Kernel]) -> str:
    """Return the share of the kernel time that some kernels have, with the longest of them; empty
    where no time is known."""
    total_ns = sum(kernel.duration_ns or 0 for kernel in kernels)
    if not total_ns:
        return ""
    times = Counter[str]()
    for kernel in chosen:
        times[kernel.name] += int(kernel.duration_ns or 0)
    share = times.total() / total_ns * 100
    names = [name for name, _ in times.most_common()]
    return f" ({share:.1f}% of the kernel time): {format_first_kernel_names(names)}"
