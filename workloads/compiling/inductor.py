"""Where torch.compile breaks a step into graphs, and which kernels Inductor makes of them: without data, and without a compiler.

Tensors are fake ones on the CPU. Dynamo and AOTAutograd capture the graphs as they do for a GPU; Inductor lowers, fuses and
writes the code of its CPU backend, which is then neither compiled nor run: fusion for a GPU differs, and so do the operators that
autocast casts. Optimizer and loss are not compiled. Imports torch.
"""

from __future__ import annotations

import copy
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch

from perfctl.records.compiled import CompiledGraph, CompiledStep
from perfctl.records.precision import PRECISIONS
from perfctl.workloads.models.source import MODEL_ERRORS, Source
from perfctl.workloads.spec import first_line
from perfctl.workloads.tracing.gradients import tensors_in
from perfctl.workloads.tracing.recorder import cast_inputs, without_data

_THREADS = 4
"""Inductor asks how many there are: a fixed number, so that all machines give the same kernels."""


class _Written(Exception):
    """The code is there: Inductor goes no further."""


def compiled_step(
    source: Source, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], *, train: bool, precision: str
) -> CompiledStep:
    """One step of a model that was built on meta; ``shapes`` include the batch. Raises nothing for what the model does."""
    if precision == "fp8":  # PyTorch itself has no such autocast
        return CompiledStep(None, (), str(torch.__version__), f"torch.compile is not followed in {precision}", True)
    found = _attempt(source, shapes, dtypes, train, precision, lowered=True)
    if found.graphs is None and not found.broke:  # Inductor failed: the breaks alone
        alone = _attempt(source, shapes, dtypes, train, precision, lowered=False)
        return CompiledStep(None, alone.breaks, found.torch, alone.problem or found.problem, alone.broke)
    return found


def _attempt(
    source: Source, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], train: bool, precision: str, lowered: bool
) -> CompiledStep:
    import torch._dynamo
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._dynamo.utils import counters
    from torch._subclasses import FakeTensorMode

    torch._dynamo.reset()
    counters.clear()
    graphs: list[CompiledGraph] = []
    problem, broke = None, False
    cast, weights = PRECISIONS[precision].autocast, PRECISIONS[precision].weights
    around = nullcontext() if cast is None else torch.autocast("cpu", dtype=getattr(torch, cast))
    try:
        model = without_data(source.model).train(train)
        with _settled(), FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            if weights is not None:
                model.to(getattr(torch, weights))
            given = [
                torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)
            ]
            inputs = cast_inputs(tuple(given), weights)
            step = torch.compile(model, backend=_backend(graphs, lowered))
            with around, nullcontext() if train else torch.no_grad():
                output = step(*inputs)
            if train:
                ends = [end for end in tensors_in(output) if end.requires_grad]
                torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    except BackendCompilerFailed as error:
        problem = f"Inductor could not lower a graph ({_line(error)})"
    except MODEL_ERRORS as error:
        problem, broke = f"the step stopped under torch.compile ({_line(error)})", True
    breaks = tuple(sorted((_reason(why), times) for why, times in counters["graph_break"].items()))
    if problem is None and not counters["frames"].get("total"):
        problem, broke = (
            "torch.compile captured nothing: TORCHDYNAMO_DISABLE or torch.compiler.disable may be why",
            True,
        )
    return CompiledStep(tuple(graphs) if problem is None else None, breaks, str(torch.__version__), problem, broke)


def _reason(why: str) -> str:
    """The first line of Dynamo's words, and what it met."""
    lines = [line.strip() for line in str(why).splitlines() if line.strip()]
    met = next((line.partition(":")[2].strip() for line in lines if line.startswith("Developer debug context:")), "")
    return f"{lines[0] if lines else 'no reason'}{f' ({met[:120]})' if met else ''}"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:240]


@contextmanager
def _settled() -> Iterator[None]:
    """Within, nothing of the machine or of caches decides what Inductor makes, and nothing is compiled."""
    from torch._inductor import config

    chosen = {
        "force_disable_caches": True, "compile_threads": 1, "cpp.simdlen": 1, "cpp.threads": _THREADS,
        "shape_padding": False, "max_autotune": False, "freezing": False, "cpp_wrapper": False,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="perfctl-") as made,
        mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": made}),
        config.patch(chosen),
    ):
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # torch's words about a compiler that is not there
        try:
            yield
        finally:
            logging.disable(before)


def _backend(graphs: list[CompiledGraph], lowered: bool) -> Callable[..., Any]:
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._inductor.compile_fx import compile_fx

    def inner(module: Any, inputs: Any, **more: Any) -> Any:
        plain = copy.deepcopy(module)
        if lowered:
            graphs.append(_lowered(module, inputs, more))
        return make_boxed_func(plain.forward)

    def backend(module: Any, inputs: Any) -> Any:
        return compile_fx(module, inputs, inner_compile=inner)

    return backend


def _lowered(module: Any, inputs: Any, more: dict[str, Any]) -> CompiledGraph:
    """Inductor's way up to the written code."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.graph import GraphLowering

    def figures() -> tuple[int, int, int]:
        return metrics.ir_nodes_pre_fusion, metrics.generated_kernel_count, counters["inductor"]["extern_calls"]

    def written(self: Any, *_: Any, **__: Any) -> Any:
        self.codegen()
        raise _Written

    before = figures()
    with mock.patch.object(GraphLowering, "compile_to_module", written):
        try:
            compile_fx_inner(module, inputs, **more)
        except Exception as error:
            if not _is_written(error):
                raise
    nodes, kernels, calls = (now - old for now, old in zip(figures(), before, strict=True))
    return CompiledGraph("backward" if more.get("is_backward") else "forward", nodes, kernels, calls)


def _is_written(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, _Written):
        error = error.__cause__ or getattr(error, "inner_exception", None)
    return error is not None
