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
from perfctl.orchestrator.launch.images.run import add_container_prefixed_variables
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
class CounterChoice:
    """Counters to ask for, and why these."""

    names: tuple[str, ...]
    reason: str
    queried: bool = True
    """False when ncu should have been asked and did not answer: the portable list stands in."""


def raise_if_metric_names_malformed(metrics: str) -> None:
    """Raise UsageError unless ``metrics`` is a set or a list of well-formed names."""
    if not all(re.fullmatch(r"[A-Za-z0-9_.:]+", name) for name in metrics.split(",")):
        remedy = (
            f"Use {' or '.join(SETS)}, or names printed by ncu --query-metrics, separated by commas"
        )
        raise UsageError(f"`metrics`: {metrics!r} is not a list of metric names", remedy)


def choose_counters(
    metrics: str, visible_devices: str | None = None, container_prefix: tuple[str, ...] = ()
) -> CounterChoice:
    """Return the counters for ``metrics``: a set's name, or names separated by commas. Raises
    UsageError like ``raise_if_metric_names_malformed``.

    ``visible_devices``: the program's CUDA_VISIBLE_DEVICES, None where it is not set;
    ``container_prefix``: the words that run a command in the image where ncu will run.
    """
    raise_if_metric_names_malformed(metrics)
    if metrics == "fadd":
        return CounterChoice((FADD,), "--metrics fadd selected only the counter of the MNIST study")
    if metrics != "flops":
        return CounterChoice(tuple(metrics.split(",")), "set by the user")
    entries = devices.parse_visible_devices(visible_devices)
    return _choose_flop_counters(entries[0] if entries else None, container_prefix)


@cache
def _choose_flop_counters(
    visible_devices_entry: str | None, container_prefix: tuple[str, ...]
) -> CounterChoice:
    capability, gpu = devices.query_capability_and_gpu_label(visible_devices_entry)
    chip = CHIPS.get(capability or "")
    subject = (
        f"{gpu}, compute capability {capability}"
        if capability
        else f"{gpu}, of unknown compute capability"
    )
    failures = []
    location = " in the image" if container_prefix else ""
    questions = [("--chips", chip, f"chip {chip}", None)] if chip else []
    for option, value, target, device in (
        *questions,
        ("--devices", "0", "the device itself", visible_devices_entry),
    ):
        metrics, problem = query_available_counters_or_reason(
            (option, value), container_prefix, device
        )
        if metrics:
            reason = f"those that ncu{location} lists for {target} ({subject})"
            return CounterChoice(select_flop_counters(metrics), reason)
        failures.append(f"ncu --query-metrics {option} {value}: {problem}")
    problems = "; ".join(failures)
    return CounterChoice(
        PORTABLE,
        f"the portable list, because ncu{location} lists no counters for {subject} ({problems})",
        queried=False,
    )


def select_flop_counters(metrics: frozenset[str]) -> tuple[str, ...]:
    """Return the counters that give FLOPs, of those that a chip has. FADD, FMUL, FFMA and the
    tensor path are always among them."""
    packed, memory, pipes = (
        sorted(filter(pattern.fullmatch, metrics))
        for pattern in (_PACKED, _TENSOR_MEMORY, _SUBPIPES)
    )
    available = {f"{name}.sum" for name in metrics}
    tensor = [TENSOR] if TENSOR in available or not pipes else [f"{name}.sum" for name in pipes]
    optional = (*packed, *_select_tensor_counters(metrics), *memory, _CONSTANT_MOVES)
    return (
        *(name for name in CORE if name in _ALWAYS | available),
        *tensor,
        *(name for name in TRAFFIC if name in available),
        *(f"{name}.sum" for name in optional if f"{name}.sum" in available),
    )


def _select_tensor_counters(metrics: frozenset[str]) -> list[str]:
    """Return each type once: its names with ``_dst_`` if it has any, its sparsity parts if it has
    no total (fp8)."""
    names = filter(_TENSOR_PATH.fullmatch, metrics)
    paths = {name for name in names if not name.endswith("_realtime")}
    totals = [name for name in paths if _SPARSITY.sub("", name) not in paths - {name}]
    return sorted(
        name for name in totals if not any(path.startswith(f"{name}_dst_") for path in totals)
    )


def query_available_counters_or_reason(
    arguments: tuple[str, ...],
    container_prefix: tuple[str, ...] = (),
    visible_devices_entry: str | None = None,
) -> tuple[frozenset[str], str]:
    """Return (base names of the counters, why there are none). ``arguments``: of which chip or
    device; ``visible_devices_entry``: the GPU that is to be device 0."""
    argv = (*container_prefix, "ncu", "--query-metrics", *arguments)
    variables = {} if visible_devices_entry is None else {devices.VISIBLE: visible_devices_entry}
    environment = {
        **os.environ,
        **(add_container_prefixed_variables(variables) if container_prefix else variables),
    }
    if not container_prefix and tools.find_program("ncu") is None:
        return frozenset(), "ncu is not installed here"
    try:
        code, printed, err = tools.run_with_time_limit(argv, QUERY_S, environment)
    except subprocess.TimeoutExpired:
        return frozenset(), f"no response within {QUERY_S:.0f} s"
    except (OSError, subprocess.SubprocessError) as error:
        return frozenset(), str(error)
    messages = [line for line in (*printed, *err) if not line.startswith("Use --help")]
    message = (*messages, f"exit code {code}, no output")[0].removeprefix("==ERROR== ").strip()
    metrics = parse_metric_names("\n".join(printed))
    return metrics, "" if metrics else message


def parse_metric_names(text: str) -> frozenset[str]:
    """Metric names in the output of ``ncu --query-metrics``: first column of a table whose
    descriptions wrap."""
    return frozenset(re.findall(r"^([a-z][a-z0-9]*__\w+)\s", text, re.MULTILINE))
