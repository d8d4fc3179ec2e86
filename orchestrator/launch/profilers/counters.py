"""Choose the counters that ncu is asked for: those that the ncu which will run lists for the GPU
that will be used.

``ncu --query-metrics`` needs no GPU for a chip that it knows. It is asked where the run will be: on
this machine, or inside the image. Where it does not answer, PORTABLE is used, and the reason is
kept with the run.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.images.run import image_environment
from perfctl.orchestrator.launch.machine import devices, tools

SETS = ("flops", "fadd")
"""flops: everything to count executed FLOPs, time and DRAM traffic. fadd: only the counter of the
MNIST study."""

_SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on"
FADD = f"{_SASS.format('fadd')}.sum"
CORE = tuple(
    f"{_SASS.format(width + operation)}.sum"
    for width in ("f", "h", "d")
    for operation in ("add", "mul", "fma")
)
TENSOR = "sm__inst_executed_pipe_tensor.sum"
TRAFFIC = ("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")
PORTABLE = (*CORE, TENSOR, *TRAFFIC)
"""In every ncu since 2020 for every chip from Volta to Hopper."""
_ALWAYS = frozenset(CORE[:3])
"""FADD, FMUL and FFMA, without which there is no count of FLOPs: asked for whatever a
query says."""

_PACKED = re.compile(_SASS.format("[fhd](?:add|mul|fma)2"))
"""Two lanes per instruction: fp32 on Blackwell."""
_TENSOR_PATH = re.compile(r"sm__ops_path_tensor_src_\w+")
"""Operations of the tensor cores. Names ending in sparsity_on and sparsity_off are parts of the one
without; a name without ``_dst_`` is the sum of those with it."""
_TENSOR_MEMORY = re.compile(
    r"sm__ops_path_tensor_op_utc[a-z]+mma_src_\w+?(?<!_sparsity_on)(?<!_sparsity_off)(?<!_realtime)"
)
"""tcgen05 instructions of data-centre Blackwell (UTCHMMA, UTCQMMA, ...): on a B300 they are 2 x
multiply-adds exactly."""
_SUBPIPES = re.compile(r"sm__inst_executed_pipe_tensor_subpipe_[a-z]mma")
"""The tensor pipe of Blackwell, which has no counter of the whole pipe."""
_SPARSITY = re.compile(r"_sparsity_o(?:n|ff)$")
_CONSTANT_MOVES = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2"
"""HFMA2.MMA instructions, which compilers use to move constants: not arithmetic (ga100, gh100)."""

CHIPS = {
    "7.0": "gv100",
    "7.2": "gv11b",
    "7.5": "tu102",
    "8.0": "ga100",
    "8.6": "ga102",
    "8.7": "ga10b",
    "8.9": "ad102",
    "9.0": "gh100",
    "10.0": "gb100",
    "10.3": "gb110",
    "11.0": "gb10b",
    "12.0": "gb202",
    "12.1": "gb20b",
}
"""Compute capability -> name in ``ncu --list-chips``; chips of one capability have the same
counters. An ncu that does not know the name is asked for the GPU itself."""

QUERY_S = 60.0
"""Longest wait for an answer. ncu 2022.3 and 2024.1 take 0.3 s; an image may have to be
unpacked first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Counters to ask for, and why these."""

    names: tuple[str, ...]
    reason: str
    queried: bool = True
    """False when ncu should have been asked and did not answer: the portable list stands in."""


def check_metrics(asked: str) -> None:
    """Raises UsageError unless ``asked`` is a set or a list of well-formed names."""
    if not all(re.fullmatch(r"[A-Za-z0-9_.:]+", name) for name in asked.split(",")):
        remedy = (
            f"Use {' or '.join(SETS)}, or names printed by ncu --query-metrics, separated by commas"
        )
        raise UsageError(f"`metrics`: {asked!r} is not a list of metric names", remedy)


def choose(asked: str, visible: str | None = None, within: tuple[str, ...] = ()) -> Choice:
    """The counters for ``asked``: a set's name, or names separated by commas. Raises UsageError
    like ``check_metrics``.

    ``visible``: the program's CUDA_VISIBLE_DEVICES, None where it is not set; ``within``: the words
    that run a command in the image where ncu will run.
    """
    check_metrics(asked)
    if asked == "fadd":
        return Choice((FADD,), "--metrics fadd selected only the counter of the MNIST study")
    if asked != "flops":
        return Choice(tuple(asked.split(",")), "set by the user")
    entries = devices.visible_entries(visible)
    return _flops_of(entries[0] if entries else None, within)


@cache
def _flops_of(entry: str | None, within: tuple[str, ...]) -> Choice:
    capability, gpu = devices.capability(entry)
    chip = CHIPS.get(capability or "")
    subject = (
        f"{gpu}, compute capability {capability}"
        if capability
        else f"{gpu}, of unknown compute capability"
    )
    failures = []
    location = " in the image" if within else ""
    if chip is not None:
        metrics, why = query(("--chips", chip), within)
        if metrics:
            return Choice(
                flops(metrics), f"those that ncu{location} lists for chip {chip} ({subject})"
            )
        failures.append(f"ncu --query-metrics --chips {chip}: {why}")
    if chip is None or failures:
        metrics, why = query(("--devices", "0"), within, entry)
        if metrics:
            return Choice(
                flops(metrics), f"those that ncu{location} lists for the device itself ({subject})"
            )
        failures.append(f"ncu --query-metrics --devices 0: {why}")
    problems = "; ".join(failures)
    return Choice(
        PORTABLE,
        f"the portable list, because ncu{location} lists no counters for {subject} ({problems})",
        queried=False,
    )


def flops(known: frozenset[str]) -> tuple[str, ...]:
    """The counters that give FLOPs, of those that a chip has. FADD, FMUL, FFMA and the tensor path
    are always among them."""
    paths = [*_tensor_paths(known), *sorted(filter(_TENSOR_MEMORY.fullmatch, known))]
    packed = sorted(filter(_PACKED.fullmatch, known))
    pipes = [f"{name}.sum" for name in sorted(filter(_SUBPIPES.fullmatch, known))]
    tensor = [TENSOR] if TENSOR.removesuffix(".sum") in known or not pipes else pipes
    candidates = (*CORE, *TRAFFIC, *(f"{name}.sum" for name in (*packed, *paths, _CONSTANT_MOVES)))
    names = [name for name in candidates if name in _ALWAYS or name.removesuffix(".sum") in known]
    return (*names[: (count := sum(name in CORE for name in names))], *tensor, *names[count:])


def _tensor_paths(known: frozenset[str]) -> list[str]:
    """Each type once: its names with ``_dst_`` if it has any, its sparsity parts if it has no
    total (fp8)."""
    paths = {
        name for name in filter(_TENSOR_PATH.fullmatch, known) if not name.endswith("_realtime")
    }
    totals = [
        name for name in paths if (bare := _SPARSITY.sub("", name)) == name or bare not in paths
    ]
    return sorted(
        name for name in totals if not any(other.startswith(f"{name}_dst_") for other in totals)
    )


def query(
    words: tuple[str, ...], within: tuple[str, ...] = (), entry: str | None = None
) -> tuple[frozenset[str], str]:
    """(base names of the counters, why there are none). ``words``: of which chip or device;
    ``entry``: the GPU that is to be device 0."""
    argv = (*within, "ncu", "--query-metrics", *words)
    own = {} if entry is None else {devices.VISIBLE: entry}
    environment = {**os.environ, **(image_environment(own) if within else own)}
    if not within and tools.find("ncu") is None:
        return frozenset(), "ncu is not installed here"
    try:
        code, out, err = tools.run(argv, QUERY_S, environment)
    except subprocess.TimeoutExpired:
        return frozenset(), f"no response within {QUERY_S:.0f} s"
    except (OSError, subprocess.SubprocessError) as error:
        return frozenset(), str(error)
    metrics = read_metrics("\n".join(out))
    if metrics:
        return metrics, ""
    message = next(
        (line for line in (*out, *err) if not line.startswith("Use --help")),
        f"exit code {code}, no output",
    )
    return frozenset(), message.removeprefix("==ERROR== ").strip()


def read_metrics(text: str) -> frozenset[str]:
    """Metric names in the output of ``ncu --query-metrics``: first column of a table whose
    descriptions wrap."""
    return frozenset(re.findall(r"^([a-z][a-z0-9]*__\w+)\s", text, re.MULTILINE))
