"""Compile a kernel of a user's file with Triton, for GPUs that need not be there. Imports triton, and runs the user's file."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfctl.records.compiled import KernelAsked
from perfctl.workloads.models.find import load_file
from perfctl.workloads.models.source import MODEL_ERRORS, ModelError
from perfctl.workloads.spec import first_line

ALIGNED = 16
"""What Triton asks of pointers and sizes: whether they are multiples of it."""


def compiled(asked: KernelAsked, folder: Path) -> Iterator[Path]:
    """The .cubin of each target, with Triton's metadata beside it. Raises ModelError, in one line."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = _kernel(asked, triton)
    constants = {name: _value(text) for name, text in asked.constants}
    types = dict(asked.signature)
    _check(asked, kernel, types, constants)
    signature = {name: "constexpr" if name in constants else types[name].partition(":")[0] for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", ALIGNED]]
        for place, name in enumerate(kernel.arg_names) if name in types and _is_aligned(types[name])
    }  # fmt: skip
    options = {"num_warps": asked.warps} | ({"num_stages": asked.stages} if asked.stages is not None else {})
    for arch in asked.targets:
        where = f"{asked.file}:{asked.kernel} for sm_{arch}"
        try:
            found = triton.compile(
                ASTSource(kernel, signature, constants, aligned), target=GPUTarget("cuda", arch, 32), options=options
            )
        except MODEL_ERRORS as error:
            raise ModelError(
                f"Triton cannot compile {where} ({_said(error)})", "Check types and constants", True
            ) from error
        path = folder / f"{kernel.__name__}.sm_{arch}.cubin"
        path.write_bytes(found.asm["cubin"])
        path.with_suffix(".json").write_text(json.dumps({"name": found.metadata.name, "shared": found.metadata.shared}))
        yield path


def versions(targets: Iterable[int]) -> dict[str, str]:
    """Of Triton and the assemblers that it takes for these targets."""
    import triton
    from triton.backends.nvidia.compiler import get_ptxas

    tools = {Path(tool.path).name: str(tool.version) for tool in map(get_ptxas, targets)}
    return {"triton": str(triton.__version__), **tools}


def module_name(asked: KernelAsked) -> str:
    """Under which the kernel's file is imported."""
    return f"perfctl_model_{Path(asked.file).stem}"


def _kernel(asked: KernelAsked, triton: Any) -> Any:
    module = load_file(Path(asked.file))
    found = getattr(module, asked.kernel, None)
    jit = triton.runtime.JITFunction
    while found is not None and not isinstance(found, jit) and hasattr(found, "fn"):
        found = found.fn  # under triton.autotune or triton.heuristics
    if not isinstance(found, jit):
        there = [name for name, one in vars(module).items() if hasattr(one, "fn") and not name.startswith("_")][:8]
        what = "there is no" if found is None else "not a kernel under @triton.jit:"
        raise ModelError(
            f"{asked.file}: {what} {asked.kernel}", f"It has {', '.join(there)}" if there else "It has no kernel"
        )
    return found


def _value(text: str) -> Any:
    if text.startswith("tl."):
        import triton.language

        found = getattr(triton.language, text.removeprefix("tl."), None)
        if found is None:
            raise ModelError(f"constant {text}: triton.language has no such type", "For example tl.float16")
        return found
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _check(asked: KernelAsked, kernel: Any, types: Mapping[str, str], constants: dict[str, Any]) -> None:
    """Takes the defaults of the kernel for constants that are not given. Raises ModelError for arguments that do not fit."""
    where = f"{asked.file}:{asked.kernel}"
    for name in (*types, *constants):
        if name not in kernel.arg_names:
            raise ModelError(f"{where} has no argument '{name}'", f"It has {', '.join(kernel.arg_names)}")
    for one in kernel.params:
        if one.name not in constants and one.name not in types and one.has_default:
            constants[one.name] = one.default
    both = [name for name in types if name in constants]
    if both:
        raise ModelError(f"{where}: '{both[0]}' has a type and a value", "Give it a value only where it is a constant")
    lacking = [one.name for one in kernel.params if one.name not in types and one.name not in constants]
    if lacking:
        wanted = [one.name for one in kernel.params if one.name in lacking and one.is_constexpr]
        advice = f"`constants` {wanted[0]}=VALUE" if wanted else f"`signature` {lacking[0]}=*fp32"
        raise ModelError(f"{where}: nothing says what {', '.join(lacking)} is", f"For instance {advice}")
    untyped = [one.name for one in kernel.params if one.is_constexpr and one.name in types]
    if untyped:
        raise ModelError(f"{where}: '{untyped[0]}' is a constexpr", f"Give its value: `constants` {untyped[0]}=VALUE")


def _is_aligned(kind: str) -> bool:
    kind, _, hint = kind.partition(":")
    return int(hint) % ALIGNED == 0 if hint else kind.startswith("*")


def _said(error: BaseException) -> str:
    """Where Triton shows the source: the place and the last line; else the first."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if lines and lines[0].startswith("at ") and len(lines) > 1:
        return f"{lines[0].rstrip(':')}: {lines[-1]}"
    errors = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    return f"{type(error).__name__}: {(errors or [first_line(error)])[0]}"[:240]


def lacking(targets: Iterable[int]) -> str | None:
    """What is missing to compile, in one line; None: nothing. Imports triton."""
    try:
        from triton.backends.nvidia.compiler import get_ptxas
    except MODEL_ERRORS as error:
        return f"triton cannot be imported ({type(error).__name__}: {first_line(error)})"
    for arch in targets:
        try:
            get_ptxas(arch)
        except MODEL_ERRORS as error:
            return f"Triton's assembler for sm_{arch} is not there ({first_line(error)})"
    return None
