"""Kernels that Inductor fused: elements, bytes and FLOPs of a call, and the modules they are of.

The call (an operation of the kernel's own name) has the arguments of the launch: shapes and types
of the tensors, and the numbers behind them. The last of these are the sizes of the loops (xnumel,
or ynumel and xnumel, or xnumel and r0_numel for a reduction), followed in older versions by the
block sizes that ``kernel_kwargs`` names. Sizes count where they fit a tensor.

Of a template (``triton_tem_fused_addmm_...``) the tensors say what it multiplies. Weights come as
they lie in memory, so the sizes of one product follow from numbers of elements: A has M x K, B has
K x N and the output M x N. ``kernel_flop`` and ``kernel_num_gb`` are Inductor's own figures, which
it writes where TORCHINDUCTOR_BENCHMARK_KERNEL=1 (bytes also where TORCHINDUCTOR_PROFILE=1); torch's
profile_analysis adds them, too.

Modules: PyTorch writes the Python stacks of a fused kernel's origins into the kernel's arguments
("stack") where the program ran with ``TORCH_COMPILE_DEBUG_EXTEND=1``: one text for each operation
of the program, the outermost frame first, with marks under the expression that was running (Python
3.11 and later). Frames of modules are those of functions named ``forward``; a call ``self.fc(x)``
in one is of its part ``fc``, and ``block(x)`` of one that the source names only ``block``. What a
module computes itself (``x + y``) is its own.

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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import isnan, isqrt, prod
from typing import Any, NamedTuple

from perfctl.parsers.kineto.events import Events
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.parsers.kineto.stream import read_int64
from perfctl.parsers.operators import TYPES, Shape, shape_in
from perfctl.records.report import CompiledKernel, Gap, Kernel, KernelPart

TEMPLATE = "triton_tem_"
_ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "uint64", "complexfloat"), 8),
    "complex64": 8,
    "complexdouble": 16,
    "complex128": 16,
}
"""torch's and c10's names of types, in small letters -> bytes of an element."""
_PRODUCT = re.compile(r"(?:^|_)(addmm|baddbmm|bmm|mm|convolution)(?=_|\Z)")
_NO_FORMULA = re.compile(r"(?:^|_)(flex_attention|grouped_mm|scaled_mm|int_mm)")
_PARTLY = re.compile(
    r"(?:^|_)(cat|where|pad|index|scatter|gather|embedding|stack|masked|nonzero|slice)(?:_|\Z)"
)
"""Operators beside which not every operation runs on every element."""
_NO_ARITHMETIC = (
    "_to_copy clone copy view t transpose permute expand unsqueeze squeeze slice select detach "
    "reshape alias full zeros ones empty constant scalar_tensor lift_fresh_copy "
    "convert_element_type bitwise_and bitwise_or bitwise_not bitwise_xor logical_and logical_or "
    "logical_not arange iota split unbind"
)
"""Aten operators in names of kernels that move or convert data, as far as names are recognised."""
BLOCKS = {
    "XBLOCK": "x",
    "YBLOCK": "y",
    "ZBLOCK": "z",
    "R0_BLOCK": "r",
    "RBLOCK": "r",
    "R1_BLOCK": "r",
}

_ARITHMETIC = (
    "add sub rsub mul div pow sqrt rsqrt reciprocal neg abs exp exp2 expm1 log log2 log1p sin cos "
    "tan tanh sigmoid silu gelu relu leaky_relu hardtanh hardswish erf sum mean prod amax amin max "
    "min maximum minimum clamp clamp_min clamp_max sign floor ceil round square threshold_backward "
    "ge gt le lt eq ne"
)
_KNOWN = re.compile(
    rf"(?<=_)(?:{'|'.join(sorted(_ARITHMETIC.split(), key=len, reverse=True))})(?=_)"
)
"""Operators of one operation an element; softmax, norms and the like are several, and are
not counted."""


_FRAME = re.compile(
    r'^\s*File "[^"\n]*", line \d+, in (\S+)\n([^\n]*)(?:\n([ \t~^]*[~^][ \t~^]*)(?=\n|\Z))?',
    re.MULTILINE,
)
_CALL = re.compile(r"(self\.)?([A-Za-z_]\w*(?:\.\w+|\[\w+\])*)\s*\(")
NAMED_MAX = 5
"""Kernels that a gap names."""
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


class CallFacts(NamedTuple):
    """Of one call; None is not stated."""

    file: str | None
    hash: str | None
    backend: str | None
    elements: int | None = None
    """Elements that the loops run over, those of a reduction included; of a template those of
    its output."""
    reduced: int | None = None
    """Elements that are reduced into one result; None where nothing is."""
    argument_bytes: int | None = None
    """Of all tensors that it is given, once each."""
    flops: int | None = None
    """Of its product; 1 multiply-add is 2 FLOPs."""
    stated_flops: int | None = None
    stated_bytes: int | None = None
    why: str | None = None
    """Why a template's FLOPs are not known."""


def read_call_facts(events: Events) -> dict[int, CallFacts]:
    """Return position in ``events.spans`` of each call of a compiled kernel -> what it says."""
    known: dict[tuple[str, int], CallFacts] = {}
    facts = {}
    for index, args in events.compiled.items():
        key = events.spans[index].name, id(args)
        if key not in known:
            known[key] = read_facts(key[0], args)
        facts[index] = known[key]
    return facts


def read_facts(name: str, args: Mapping[str, Any]) -> CallFacts:
    """Return what the arguments of a call of the kernel ``name`` say."""
    file, key, backend = (
        text if isinstance(text := args.get(word), str) and text else None
        for word in ("kernel_file", "kernel_hash", "kernel_backend")
    )
    facts = CallFacts(
        file,
        key,
        backend,
        stated_flops=read_int64(args.get("kernel_flop")),
        stated_bytes=_read_gigabytes(args.get("kernel_num_gb")),
    )
    is_template = name.startswith(TEMPLATE)
    dims, types, values = (
        args.get(word) for word in ("Input Dims", "Input type", "Concrete Inputs")
    )
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        why = "the trace has no shapes (record_shapes=True)" if is_template else None
        return facts._replace(why=why)
    if not isinstance(values, list) or len(values) != len(dims):
        values = [""] * len(dims)
    tensors = [
        (shape, TYPES[kind])
        for sizes, kind in zip(dims, types, strict=True)
        if isinstance(kind, str) and kind in TYPES and (shape := shape_in(sizes)) is not None
    ]
    scalars = [
        read_int64(value) for value, kind in zip(values, types, strict=True) if kind == "Scalar"
    ]
    shapes = [shape for shape, _ in tensors]
    elements, reduced = _read_loops(name, scalars, args.get("kernel_kwargs"), shapes)
    flops, why = template_flops(name, shapes) if is_template else (None, None)
    argument_bytes = None
    if tensors and len(tensors) + len(scalars) == len(dims):
        argument_bytes = sum(prod(shape) * (element_bytes(kind) or 1) for shape, kind in tensors)
    return facts._replace(
        elements=elements if flops is None else prod(shapes[-1]),
        reduced=reduced,
        argument_bytes=argument_bytes,
        flops=flops,
        why=why,
    )


def element_bytes(dtype: str | None) -> int | None:
    """Return the bytes of an element; None for a type that is not known."""
    name = (dtype or "").lower()
    return 1 if name.startswith("float8") else _ELEMENT_BYTES.get(name)


def _read_gigabytes(value: object) -> int | None:
    """Return bytes of a number of 10^9 bytes, or of the text of one."""
    try:
        size = round(float(value) * 1e9)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return size if 0 < size < 1 << 62 else None


def _read_loops(
    name: str, scalars: Sequence[int | None], kwargs: object, shapes: Sequence[Shape]
) -> tuple[int | None, int | None]:
    """Return (elements, those reduced into one) by the last numbers of a call, where a tensor has
    as many; else None for both.

    ``kwargs``: block sizes, "XBLOCK=1,R0_BLOCK=128". Whether they follow the loops' sizes is tried
    both ways. Where both fit a tensor, the larger one is right: the loops run over the largest
    tensor that is not looked up in.
    """
    is_reduction = name.startswith(("triton_red_", "triton_per_"))
    if not is_reduction and not name.startswith("triton_poi_"):
        return None, None
    pairs = (pair.partition("=") for pair in kwargs.split(",")) if isinstance(kwargs, str) else ()
    blocks = {
        key: size
        for key, _, value in pairs
        if key in BLOCKS and (size := read_int64(value)) is not None
    }
    loops = 1 + len({BLOCKS[key] for key in blocks} & {"y", "z"}) + is_reduction
    sizes = set(map(prod, shapes))
    fitting: list[tuple[int, int | None]] = []
    for tail in ([], list(blocks.values())):
        rest = scalars[: len(scalars) - len(tail)]
        counts = [count for count in rest[-loops:] if count is not None]
        if list(scalars[len(rest) :]) == tail and len(counts) == loops and prod(counts) in sizes:
            fitting.append((prod(counts), counts[-1] if is_reduction else None))
    return max(fitting, key=lambda fit: fit[0], default=(None, None))


def template_flops(name: str, shapes: Sequence[Shape]) -> tuple[int | None, str | None]:
    """Return (FLOPs of the product, None), or (None, why they are not known)."""
    if blocked := _NO_FORMULA.search(name):
        return None, f"the work of {blocked[1]} does not follow from shapes alone"
    operator = _PRODUCT.search(name)
    if operator is None:
        return None, "its name has no operator that multiplies"
    if len(shapes) < 3:
        return None, "the call has fewer than three tensors"
    output = shapes[-1]
    products = {
        _convolution_flops(left, right, output)
        if operator[1] == "convolution"
        else _product_flops(left, right, output, "bmm" in operator[1])
        for left, right in pairwise(shapes[:-1])
    } - {None}
    if len(products) == 1:
        return products.pop(), None
    return None, f"its tensors fit {'more than one' if products else 'no'} product"


def _product_flops(left: Shape, right: Shape, output: Shape, batched: bool) -> int | None:
    """Return 2 x M x N x K, for each matrix of a batch; None where the numbers of elements are of
    no such product."""
    batch = output[0] if batched and len(output) > 2 else 1
    sizes = [prod(left), prod(right), prod(output)]
    if not batch or not all(sizes) or any(size % batch for size in sizes):
        return None
    a, b, c = (size // batch for size in sizes)
    depth = isqrt(a * b // c)
    if depth * depth * c != a * b or a % depth or b % depth or (a // depth) * (b // depth) != c:
        return None
    # some dimensions that follow one another have as many elements together
    for shape in (left, right):
        ends = range(len(shape) + 1)
        if all(prod(shape[begin:end]) != depth for end in ends for begin in range(end)):
            return None
    return 2 * batch * c * depth


def _convolution_flops(data: Shape, weight: Shape, output: Shape) -> int | None:
    """Return 2 x outputs x inputs of each; None where the shapes are of no convolution."""
    if not len(data) == len(weight) == len(output) > 2 or 0 in weight:
        return None
    fits = data[0] == output[0] and weight[0] == output[1] and data[1] % weight[1] == 0
    return 2 * prod(output) * prod(weight[1:]) if fits else None


def elementwise_flops(origins: str | None, elements: int | None) -> int | None:
    """Return the operations beside products: each operator that a name lists and that computes,
    once on each element.

    An estimate: a name lists an operator once, and what follows a reduction runs once a row. None
    where the name lists none that is known to compute, or one beside which the others do not run on
    every element.
    """
    if origins is None or elements is None or _PARTLY.search(origins):
        return None
    rest = f"_{origins}_"
    for word in sorted(_NO_ARITHMETIC.split(), key=len, reverse=True):
        rest = rest.replace(f"_{word}_", "_")
    count = len(_KNOWN.findall(rest))
    return count * elements if count and not _KNOWN.sub("", rest).strip("_") else None


def compiled_kernels(
    events: Events, facts: Mapping[int, CallFacts], device_ns: Sequence[float]
) -> list[CompiledKernel]:
    """Return the kernels that Inductor wrote: file, hash, backend, work of a call, calls, time. One
    name may be several kernels, and one kernel may be called with several sizes.

    The time is not known where no launch was recorded, as inside the capture of a graph.
    """
    totals: dict[tuple[str, CallFacts], list[float]] = {}
    for index, call in facts.items():
        total = totals.setdefault((events.spans[index].name, call), [0, 0])
        total[0] += 1
        total[1] += device_ns[index]
    return [
        CompiledKernel(
            name,
            call.file,
            call.hash,
            call.backend,
            origins := _listed_operators(name),
            int(calls),
            None if isnan(ns) or not ns else int(ns),
            call.elements,
            call.reduced,
            call.argument_bytes,
            call.flops,
            call.stated_flops,
            call.stated_bytes,
            None if name.startswith(TEMPLATE) else elementwise_flops(origins, call.elements),
        )
        for (name, call), (calls, ns) in totals.items()
    ]


def compiled_gaps(events: Events, facts: Mapping[int, CallFacts]) -> Iterator[Gap]:
    """Yield why FLOPs of templates are not known, and where Inductor's own figure is another."""
    names: defaultdict[str | None, set[str]] = defaultdict(set)
    unlike = set()
    for index, call in facts.items():
        name = events.spans[index].name
        names[call.why].add(name)
        if call.stated_flops and call.flops is not None and call.flops != call.stated_flops:
            unlike.add(name)
    for reason in sorted(reason for reason in names if reason is not None):
        text = f"{reason}: {_join_names(names[reason])}"
        yield Gap("compiled_kernel.flops", "not_available", text)
    if unlike:
        reason = "Inductor states other FLOPs (stated_flops) than follow from the shapes"
        yield Gap("compiled_kernel.flops", "ambiguous", f"{reason}: {_join_names(unlike)}")


def _join_names(names: set[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(name[:60] for name in sorted(names)[:NAMED_MAX]) + more


def _listed_operators(name: str) -> str | None:
    """Return the operators that Inductor fused, as it writes them in the name: "add_mul" of
    triton_poi_fused_add_mul_0."""
    _, fused, rest = name.partition("_fused_")
    operators, _, number = rest.rpartition("_")
    return operators if fused and operators and number.isdecimal() else None


@lru_cache(maxsize=4096)
def read_paths(stack: str) -> tuple[str, ...]:
    """Return the path below the model of the module that ran an origin, "" for the model itself;
    none where the lines do not say.

    Two where they do not say which of both: torch's marks (2.14) begin where the expression does
    and may reach over what is done with its value, so ``self.norm(x) * 2`` is the call of ``norm``
    or the product of its result, in this order.
    """
    frames = [
        (function, _marked_expression(line, marks))
        for function, line, marks in _FRAME.findall(stack)
    ]
    functions = [function for function, _ in frames]
    if "forward" not in functions:
        return ()
    path: list[str] = []
    for index in range(functions.index("forward"), len(frames)):
        text = frames[index][1]
        is_last = index + 1 == len(frames)
        if not is_last and functions[index + 1] != "forward":
            continue  # a function that the module calls: no module of its own
        if not is_last:
            text = _leading_call(text) or text
        called = _called_name(text)
        if called is None:
            return ()
        is_own, name = called
        # in the innermost frame, others than self.fc(...) are functions: F.relu(...)
        if name and (is_own or not is_last):
            path.append(name)
        elif not is_last:
            return ()
        elif not name and (part := _called_name(_leading_call(text))) and part[0]:
            return ".".join((*path, part[1])), ".".join(path)
    return (".".join(path),)


def read_path(stack: str, kernel: str = "") -> str | None:
    """Return the one path of an origin; where it has two readings, that which fits the operators in
    the name of its kernel, if one does."""
    paths = read_paths(stack)
    if len(paths) < 2:
        return paths[0] if paths else None
    text = _innermost_expression(stack) or ""
    rest = text.removeprefix(_leading_call(text) or "").strip()
    symbols = re.findall(r"\*\*|[-+*/@]", _outside_brackets(rest))
    operators = {_OPERATORS.get(symbol) for symbol in symbols}
    if not operators or None in operators or rest.startswith("."):
        return None
    fused = ""
    if kernel.startswith("triton_"):
        fused = kernel.partition("_fused_")[2].rpartition("_")[0]
    in_kernel = sorted(f"{operator}" for operator in operators if f"_{operator}_" in f"_{fused}_")
    if kernel and not in_kernel:
        return paths[0]  # nothing in this kernel is done with the value of the call
    return paths[1] if fused and fused == "_".join(in_kernel) else None


def _innermost_expression(stack: str) -> str | None:
    *_, (_, line, marks) = _FRAME.findall(stack)
    return _marked_expression(line, marks)


def _marked_expression(line: str, marks: str) -> str | None:
    """Return the expression under the marks; without marks the whole line, where only one call can
    be meant.

    torch's marks (2.14) may reach over brackets that close calls around the expression:
    ``self.fc(x)))``.
    """
    if marks.strip():
        begin = len(marks) - len(marks.lstrip())
        text, depth = line[begin : len(marks.rstrip())].strip(), 0
        for index, letter in enumerate(text):
            depth += (letter in "([") - (letter in ")]")
            if depth < 0:
                return text[:index]
        return text
    target, _, value = line.strip().removeprefix("return ").partition(" = ")
    expression = (value or target).strip()
    return expression if expression.count("(") == 1 else None


def _called_name(text: str | None) -> tuple[bool, str] | None:
    """Return (whether it is an attribute of self, its name) of an expression that is one call; name
    "" for any other expression."""
    if text is None:
        return None
    match = _CALL.match(text)
    if match is None or _leading_call(text) != text:
        return False, ""
    return match[1] is not None, re.sub(r"\[(\w+)\]", r".\1", match[2])


def _leading_call(text: str | None) -> str | None:
    """Return ``self.norm(x)`` of ``self.norm(x) * 2``; None where it begins with no call."""
    match = _CALL.match(text or "")
    if match is None or text is None:
        return None
    depth = 0
    for index in range(match.end() - 1, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return text[: index + 1]
    return None


def _outside_brackets(text: str) -> str:
    outside, depth = "", 0
    for letter in text:
        depth += letter in "(["
        outside += letter if not depth else " "
        depth -= letter in ")]"
    return outside


def share_kernels(
    events: Events,
    nesting: Nesting,
    facts: Mapping[int, CallFacts],
    spans: Sequence[int],
    kernels: list[Kernel],
) -> tuple[list[Kernel], list[KernelPart], list[Gap]]:
    """Return the kernels with the modules of their origins, the parts of those shared between
    modules, and what is not known.

    ``spans``: of each kernel, the span that launched it, -1 for none. A kernel whose parts are of
    several modules has no layer of its own; one whose lines do not say keeps the module around it,
    if there is one.
    """
    new, parts, unknown = list(kernels), list[KernelPart](), list[Kernel]()
    paths_of = {
        index: Counter(read_path(stack, kernels[index].name) for stack in stacks)
        for index, stacks in events.origins.items()
    }
    multiplying = {
        path
        for index, paths in paths_of.items()
        for path in paths
        if len(paths) == 1 and _LIBRARY.search(kernels[index].name) and path
    }
    """Paths of the modules that some kernel which multiplies is of alone."""
    for index, paths in paths_of.items():
        kernel = kernels[index]
        around = [*nesting.spans_around(spans[index])]
        work: Mapping[str | None, int] | None = paths
        if None not in paths and len(paths) > 1 and kernel.name.startswith(TEMPLATE):
            calls = [span for span in around if events.spans[span].name == kernel.name]
            call = next((facts[span] for span in calls if span in facts), None)
            work = _template_work(kernel.name, call, events.origins[index], paths, multiplying)
        if None in paths or work is None:
            unknown.append(kernel)
            continue
        layers, works = Counter[str | None](), Counter[str | None]()
        for path, count in paths.items():
            layer = ".".join(filter(None, (kernel.layer, path))) or None
            layers[layer] += count
            works[layer] += work[path]
        is_backward = any(events.spans[span].name == BACKWARD for span in around)
        direction = kernel.direction or ("backward" if is_backward else "forward")
        if len(layers) > 1:
            new[index] = kernel._replace(layer=None, direction=None, layer_source="shared")
            for layer, count in layers.items():
                share = works[layer] / works.total()
                side = None if layer is None else direction
                parts.append(KernelPart(kernel.launch, layer, side, count, share))
        elif layer is not None and layer != kernel.layer:
            new[index] = kernel._replace(layer=layer, direction=direction, layer_source="origins")
    gaps = []
    if unknown:
        reason = (
            "the source lines of fused kernels do not say which modules their parts belong to"
            + name_longest(kernels, unknown)
        )
        gaps.append(Gap("kernel_part", "ambiguous", reason))
    return new, parts, gaps


def _template_work(
    name: str,
    call: CallFacts | None,
    stacks: Sequence[str],
    paths: Counter[str | None],
    multiplying: set[str],
) -> dict[str | None, int] | None:
    """Return FLOPs of each path in a template; None where it is not known which one multiplies, or
    how much."""
    if call is None or call.flops is None or call.elements is None:
        return None
    answers: defaultdict[str | None, set[bool | None]] = defaultdict(set)
    for stack in stacks:
        answers[read_path(stack, name)].add(_multiplies(stack))
    product_paths = [path for path in answers if True in answers[path]] or [
        path for path in answers if None in answers[path]
    ]
    if len(product_paths) > 1:
        product_paths = [path for path in product_paths if path in multiplying]
    if len(product_paths) != 1:
        return None
    work: dict[str | None, int] = {path: count * call.elements for path, count in paths.items()}
    work[product_paths[0]] += call.flops - call.elements
    return work


def _multiplies(stack: str) -> bool | None:
    """Return whether an origin multiplies matrices, by its innermost expression; None where that
    does not say."""
    text = _innermost_expression(stack)
    called = _called_name(text)
    if text is None or called is None or len(read_paths(stack)) > 1:
        return None
    if not called[1]:
        outside = _outside_brackets(text)
        if "@" not in outside:
            return False
        return None if re.search(r"[-+*/]", outside) else True
    last = called[1].rpartition(".")[2]
    return True if _MULTIPLIES.fullmatch(last) else False if _POINTWISE.fullmatch(last) else None


def name_longest(kernels: Sequence[Kernel], chosen: Iterable[Kernel]) -> str:
    """Return the share of the kernel time that some kernels have, with the longest of them; empty
    where no time is known."""
    total_ns = sum(kernel.duration_ns or 0 for kernel in kernels)
    if not total_ns:
        return ""
    times = Counter[str]()
    for kernel in chosen:
        times[kernel.name[:60]] += int(kernel.duration_ns or 0)
    names = [f"{name} ({ns / total_ns * 100:.1f} %)" for name, ns in times.most_common(NAMED_MAX)]
    more = f" and {len(times) - NAMED_MAX} more" if len(times) > NAMED_MAX else ""
    share = times.total() / total_ns * 100
    return f", with {share:.1f} % of the kernel time: {', '.join(names)}{more}"
