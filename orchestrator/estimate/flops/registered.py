"""FLOPs of operators and kernels that the user registers, with ``perfctl.register_flops`` or in a
file for ``--formulas``."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.flops import engine
from perfctl.orchestrator.estimate.flops.formulas import (
    CallWork,
    Works,
    count_first_output_elements,
    get_work_direction,
    pair_shapes_with_item_bytes,
)
from perfctl.records.paper import OpShape
from perfctl.records.possible import MOST_COUNT

Function = Callable[..., float]

KERNELS: dict[str, Function] = {}
"""Glob of names of kernels (Triton's, CUDA's) or ranges -> function of parameters of the run."""
LOADED: dict[Path, None] = {}
"""Files that were executed."""


def register_flops(name: str, function: Function) -> None:
    """Count the FLOPs of an operator, or of kernels and ranges, by ``function``. 1 multiply-add = 2
    FLOPs.

    For an operator, "mylib::op", the function takes the shapes of its input tensors and those of
    its output tensors: ``lambda inputs, outputs: 2 * prod(inputs[0]) * inputs[1][-1]``. So does a
    function of an autograd.Function, if its parameters have these names; ``name`` is the class, or
    for its backward the class with "Backward". Any other name is a glob of names of kernels (a
    Triton kernel) or ranges (an autograd.Function under emit_nvtx). The function then takes
    parameters of the run by their names, and returns the FLOPs of one launch or range:
    ``lambda N: 2 * N**3``.
    """
    is_operator = "::" in name
    if is_operator or list(inspect.signature(function).parameters) == ["inputs", "outputs"]:
        operator = name.replace("::", ".", 1) if is_operator else f"autograd.{name}"
        engine.TABLE[operator] = partial(_make_registered_work, name, function)
    else:
        KERNELS[name] = function


def execute_formula_file_once(path: Path) -> None:
    """Execute a file that registers formulas, unless it was executed already. Raises UsageError."""
    path = path.absolute()
    if path in LOADED:
        return
    try:
        runpy.run_path(str(path))
    except Exception as error:
        raise UsageError(
            f"`formulas` {path}: {type(error).__name__}: {error}",
            'Write lines such as perfctl.register_flops("mylib::op", function)',
        ) from error
    LOADED[path] = None


def _make_registered_work(name: str, function: Function, op: OpShape) -> Works:
    flops = _call_user_flop_function(name, function, op.inputs, op.outputs)
    macs, remainder = divmod(flops, 2)
    tensors = pair_shapes_with_item_bytes(op)
    return (
        CallWork(
            get_work_direction(op),
            macs,
            tensors.sum_input_bytes(),
            tensors.sum_output_bytes(),
            count_first_output_elements(op),
            f"{flops:,} FLOP, registered",
            odd_flops=remainder,
        ),
    )


def compute_registered_kernel_flops(
    kernel_glob: str, run_parameters: Mapping[str, Fraction]
) -> int:
    """Return the FLOPs of one launch of registered kernels. Raises UsageError."""
    function = KERNELS[kernel_glob]
    names = inspect.signature(function).parameters
    if missing := [name_ for name_ in names if name_ not in run_parameters]:
        known_names = ", ".join(run_parameters) or "none"
        raise UsageError(
            f"the formula of '{kernel_glob}' needs {', '.join(missing)} (known: {known_names})"
        )
    values = {name_: run_parameters[name_] for name_ in names}
    arguments = {
        name_: int(size) if size.denominator == 1 else size for name_, size in values.items()
    }
    return _call_user_flop_function(kernel_glob, function, **arguments)


def _call_user_flop_function(
    name: str, function: Function, *arguments: Any, **parameters: Any
) -> int:
    try:
        flops = round(function(*arguments, **parameters))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"the registered formula of '{name}' failed ({reason})") from error
    if not 0 <= flops <= MOST_COUNT:
        raise UsageError(f"the registered formula of '{name}' gives {flops:g} FLOP")
    return flops
