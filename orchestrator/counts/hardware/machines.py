"""GPUs from Pascal to Blackwell and from Vega 20 to CDNA 4: peaks, worked out from units x clock,
and data sheets (gpus.json). Machines for the predictor are made from this table, from stated peaks,
or from measured ones.

FLOP/s = SMs x FLOPs per SM and cycle x clock. docs/reference/devices.md states sources; values
without a reliable one are left out. AMD's compute units (CUs) stand where NVIDIA has SMs, its
matrix cores where NVIDIA has tensor cores, and the name of the instruction set ("gfx942") where
NVIDIA has a compute capability.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

TENSOR = ("fp16", "bf16", "tf32", "int8", "fp8", "fp64", "fp32", "fp6", "fp4")
"""Input types of tensor and matrix cores; the paths are "tensor fp16" and so on. fp32 (AMD calls
TF32 XF32), fp6 and fp4 are of AMD's matrix cores."""


_MAKERS = {
    "nvidia",
    "amd",
    "instinct",
    "tesla",
    "geforce",
    "quadro",
    "rtx",
    "gtx",
    "generation",
    "gpu",
}

CHOICE_RULE = "the SXM variant if there is one, with the smallest memory"

_PATHS = {
    "fp32_tflops": "fp32",
    "fp64_tflops": "fp64",
    "fp16_tflops": "fp16",
    "tensor_fp16_tflops": "tensor fp16",
    "tensor_bf16_tflops": "tensor bf16",
    "tensor_tf32_tflops": "tensor tf32",
}
_NEEDED = ("name", "fp32_tflops", "bandwidth_gbs", "memory_gb")
EXAMPLE = (
    "For example `device_spec` name=X1,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24,"
    "tensor_fp16_tflops=160"
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """FLOPs of one SM in one cycle (1 multiply-add = 2), fp16 without tensor cores (HFMA2)."""

    name: str
    capability: str
    fp32: int
    fp64: int
    fp16: int | None
    """None where no data sheet states it."""
    tensor: Mapping[str, int]
    """Dense, with fp32 accumulation, of server and workstation chips; GeForce chips may
    have half."""
    l1_bytes: int | None = None
    """Bytes that the L1 cache of one SM gives in a cycle; None without a reliable source."""
    process_nm: int | None = None
    """Process of the generation's chips, as its maker names it (NVIDIA's architecture papers; TSMC
    4N is 4 nm); None: not known."""

    def compute_non_tensor_peak_flops(self, sm_cycles_per_second: float) -> dict[str, float]:
        """Return path -> FLOP/s without tensor cores, of SMs x clock."""
        rates = {"fp32": self.fp32, "fp64": self.fp64, "fp16": self.fp16}
        return {
            path: rate * sm_cycles_per_second for path, rate in rates.items() if rate is not None
        }


@dataclass(frozen=True, eq=False, slots=True)
class Gpu:
    """One product. Clocks in MHz, bandwidth in GB/s."""

    name: str
    pattern: str
    """Regular expression for the lower-case name that nvidia-smi, nsys, ncu and torch report."""
    capability: str
    sms: int
    boost_mhz: int
    bandwidth_gbs: float
    memory_gb: list[int]
    """One for each variant of the product, as its name has it."""
    power_w: int | None
    """Highest board power; None if the data sheet states it for more than the device that
    programs see."""
    link: str
    link_gbs: float
    """GB/s one way of NVLink if it reaches all GPUs of the board, else of 16 PCIe lanes."""
    l2_mb: float | None
    """MiB of the last-level cache; None without a reliable source."""
    source: str
    """Data sheet or white paper of these figures."""
    tensor_mhz: int | None = None
    """Clock of the published tensor figures, if not the boost clock."""
    tensor: Mapping[str, int] | None = None
    """FLOPs per SM and cycle, if not the architecture's; of fp64 likewise."""
    fp64: int | None = None
    laptop: bool = False
    """True for a laptop part: its clock and power are those of the fastest variant, which makers
    may lower."""
    memory_mib: list[int] | None = None
    """Total that nvidia-smi prints for each variant, in MiB (driver R510 and later; with ECC where
    it is on by default); None where no published table shows it."""
    l2_bytes_per_cycle: int | None = None
    """Bytes that the SMs read from L2 in a cycle; None where no white paper states it."""

    @property
    def architecture(self) -> Architecture:
        return _BY_CAPABILITY[self.capability]


_TABLE = json.loads(Path(__file__).with_name("gpus.json").read_text(encoding="utf-8"))
ARCHITECTURES = tuple(Architecture(**row) for row in _TABLE["architectures"])
_BY_CAPABILITY = {item.capability: item for item in ARCHITECTURES}


def _load_gpu_table(table_key: str) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(**{**row, "source": _TABLE["sources"][row["source"]]}) for row in _TABLE[table_key]
    )


GPUS = _load_gpu_table("gpus")
AMD = _load_gpu_table("amd")


@lru_cache(maxsize=256)
def find_gpu_product(name: str | None) -> Gpu | None:
    """The product of a device name; None for an unknown name or a slice (MIG)."""
    lowered = " ".join((name or "").lower().split())
    match = next((gpu for gpu in (*GPUS, *AMD) if re.search(gpu.pattern, lowered)), None)
    return match if match is not None and (match.laptop or not is_slice_or_laptop(name)) else None


def list_ambiguous_gpu_candidates(name: str | None) -> tuple[Gpu, ...]:
    """Products that a name without form factor or memory may mean ("Tesla V100": three); empty if
    :func:`find_gpu_product` has one."""
    if find_gpu_product(name) is not None or is_slice_or_laptop(name):
        return ()
    text = " ".join(
        re.findall(
            r"[a-z0-9]+", re.sub(r"\b(nvidia|tesla|geforce|quadro)\b", " ", (name or "").lower())
        )
    )
    start = re.compile(rf"{text}(?![a-z0-9])")
    return tuple(gpu for gpu in GPUS if re.search(r"\d", text) and start.match(gpu.name.lower()))


def is_slice_or_laptop(name: str | None) -> bool:
    """True for a slice of a GPU (MIG, vGPU) and for laptop GPUs; not for NVIDIA's Max-Q
    workstation cards."""
    return is_laptop_gpu(name) or bool(re.search(r"\bmig\b|\bgrid\b", (name or "").lower()))


def is_laptop_gpu(name: str | None) -> bool:
    return bool(re.search(r"laptop|mobile|max-q(?! workstation)", (name or "").lower()))


def find_architecture_by_capability(capability: str | None) -> Architecture | None:
    return _BY_CAPABILITY.get(capability or "")


def compute_peak_flops(gpu: Gpu) -> dict[str, float]:
    """path ("fp32", "tensor tf32", ...) -> FLOP/s, dense, at the published clocks."""
    chip = gpu.architecture
    plain = gpu.sms * gpu.boost_mhz * 1e6
    tensor = gpu.sms * (gpu.tensor_mhz or gpu.boost_mhz) * 1e6
    flops = chip.compute_non_tensor_peak_flops(plain)
    if gpu.fp64 is not None:
        flops["fp64"] = gpu.fp64 * plain
    rates = chip.tensor if gpu.tensor is None else gpu.tensor
    # fp64 on tensor cores runs at the boost clock, the others may not
    return flops | {
        f"tensor {kind}": rates[kind] * (plain if kind == "fp64" else tensor)
        for kind in TENSOR
        if kind in rates
    }


@dataclass(frozen=True, slots=True)
class Board:
    """One product at one size of memory."""

    gpu: Gpu
    memory_gb: int

    @property
    def name(self) -> str:
        """With the memory if the product has several sizes."""
        return (
            self.gpu.name
            if len(self.gpu.memory_gb) == 1
            else f"{self.gpu.name} {self.memory_gb} GB"
        )

    @property
    def memory_bytes(self) -> float:
        """Memory that programs see: nvidia-smi's total, else 10^9 bytes per GB of the name, which
        is less."""
        if self.gpu.memory_mib is None:
            return self.memory_gb * 1e9
        return self.gpu.memory_mib[self.gpu.memory_gb.index(self.memory_gb)] * float(1 << 20)


def classify_gpu(gpu: Gpu) -> str:
    """ "data centre, Hopper", "workstation", "consumer" or "AMD"."""
    if gpu in AMD:
        return "AMD"
    if re.match(r"(RTX [A-Z]*A\d|Quadro|RTX PRO|RTX \d+ Ada|T\d+ Laptop)", gpu.name):
        return "workstation"
    if gpu.name.startswith(("RTX", "GTX", "Titan")):
        return "consumer"
    return f"data centre, {gpu.architecture.name}"


BOARDS = tuple(Board(gpu, size) for gpu in (*GPUS, *AMD) for size in gpu.memory_gb)


def _split_chip_and_form_factor(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """(words of the chip, words of form factor and memory), lower case, without makers' and
    series' names."""
    cleaned = re.sub(r"(?<![a-z0-9])(\d+) ?g(?:i?b)?\b", r"\1gb", text.lower())
    cleaned = re.sub(r"\b(rtx|gtx|titan)(?=[a-z0-9])", r"\1 ", cleaned)
    cleaned = re.sub(r"(\d{4})(ti|super)\b", r"\1 \2", cleaned)
    name_parts = set(re.findall(r"[a-z0-9]+", cleaned)) - (
        _MAKERS - ({"rtx"} if "titan" in cleaned else set())
    )
    form = {
        part for part in name_parts if re.fullmatch(r"sxm\d?|pcie|nvl|hgx|hbm\d\w?|\d+gb", part)
    }
    return frozenset(name_parts - form), frozenset(
        "sxm" if part == "hgx" else part for part in form
    )


def extract_device_name_tokens(name: str) -> frozenset[str]:
    """Words of a device's name that tell products apart: chip, form factor and memory,
    lower case."""
    return frozenset().union(*_split_chip_and_form_factor(name))


@lru_cache(maxsize=1024)
def find_boards(name: str) -> tuple[Board, ...]:
    """The boards that a name may mean, in table order: "A100" four, "T4" one, "A11" none; none for
    slices and most laptop GPUs."""
    chip, form = _split_chip_and_form_factor(name)
    sizes = {int(part[:-2]) for part in form if part.endswith("gb")}
    exact = find_gpu_product(name)
    if exact is None and is_slice_or_laptop(name):
        return ()
    if exact is not None:
        every = tuple(board for board in BOARDS if board.gpu == exact)
        # All of them if none has the stated memory: a GH200's name states its host's.
        return tuple(board for board in every if board.memory_gb in sizes) or every
    forms = {part for part in form if not part.startswith("hbm")}
    boards = []
    for board in BOARDS:
        its_chip, its_form = _split_chip_and_form_factor(board.name)
        its_form |= {f"{board.memory_gb}gb"}
        if chip == its_chip and all(
            any(its.startswith(part) for its in its_form) for part in forms
        ):
            boards.append(board)
    return tuple(boards)


def choose_sxm_or_smallest_board(boards: Iterable[Board]) -> Board:
    """One of several boards, by ``CHOICE_RULE``. Raises ValueError for none."""
    return min(boards, key=lambda board: ("SXM" not in board.gpu.name, board.memory_gb))


def suggest_board_names(name: str) -> tuple[str, ...]:
    """Names of boards similar to ``name``, the closest first."""
    spelled: dict[str, str] = {}
    for board in BOARDS:
        spelled.setdefault(board.gpu.name.lower(), board.name)
        spelled.setdefault(
            " ".join(sorted(_split_chip_and_form_factor(board.gpu.name)[0])), board.name
        )
    close = get_close_matches(" ".join(name.lower().split()), spelled, 8, 0.5)
    return tuple(dict.fromkeys(spelled[spelling] for spelling in close))[:4]


@dataclass(frozen=True, slots=True)
class Machine:
    """A device as a predictor sees it. Figures are peaks (dense, sustained clock)
    unless measured."""

    name: str
    kind: str
    flops_per_second: Mapping[str, float]
    """By path: fp32, fp16, "tensor tf32", "tensor fp16", ... (1 multiply-add = 2 FLOPs)."""
    bytes_per_second: float
    memory_bytes: float | None = None
    sms: int | None = None
    """Streaming multiprocessors; of a CPU its cores. None: not known."""
    clock_hz: float | None = None
    launch_seconds: float | None = None
    """Host time to start one operation. None: not known."""
    power_w: float | None = None
    """Board power. None: not known."""
    process_nm: int | None = None
    """Process that the chip is made in. None: not known."""


class DeviceError(ValueError):
    """An unknown device name or a wrong description. ``remedy``: what to use instead."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Device:
    """A machine with its source, and its board for cost and memory; None: given by hand, or
    a CPU."""

    JSON_KEYS = ("machine", "source")
    JSON_INLINED = ("machine",)

    machine: Machine
    source: str
    board: Board | None = None
    note: str | None = None

    @property
    def power_w(self) -> float | None:
        return self.board.gpu.power_w if self.board is not None else None


CPU = Machine(
    "Core i9-10940X",
    "cpu",
    {"fp32": 14 * 64 * 3.3e9},
    94e9,
    sms=14,
    clock_hz=3.3e9,
    power_w=165.0,
    process_nm=14,
)
"""The one CPU that published steps are of. 14 cores of two AVX-512 units (64 fp32 FLOPs a cycle; 1
multiply-add = 2 FLOPs) at the base clock, four channels of DDR4-2933: figures of Intel's data sheet
from memory, not looked up."""


def find_device(name: str) -> Device:
    """The machine of a device name; of several boards one, by ``CHOICE_RULE``. Raises
    DeviceError for an unknown name."""
    if re.fullmatch(r"(intel )?(core )?i9[ -]?10940x", name.strip(), re.IGNORECASE):
        return Device(CPU, f"data sheet of the {CPU.name}, base clock")
    boards = find_boards(name)
    if not boards:
        close = suggest_board_names(name)
        near = f"Similar names: {', '.join(close)}. " if close else ""
        remedy = (
            f"{near}Give its peaks instead: `device_spec` "
            "name=...,fp32_tflops=...,bandwidth_gbs=...,memory_gb=..."
        )
        problem = "not in the table of devices"
        if is_slice_or_laptop(name):
            problem = "a slice of a GPU, or a laptop GPU that the table does not have"
        raise DeviceError(f"`device`: '{name}' is {problem}", remedy)
    board = choose_sxm_or_smallest_board(boards)
    note = None
    if len(boards) > 1:
        names = ", ".join(other.name for other in boards if other != board)
        note = f"'{name}' matches several GPUs: using {board.name} ({CHOICE_RULE}); others: {names}"
    elif board.gpu.laptop:
        note = f"{board.name}: clock and power of the fastest variant; laptops may lower both"
    return Device(
        build_board_machine(board), f"published values of the {board.gpu.name}, dense", board, note
    )


def build_board_machine(board: Board) -> Machine:
    """Peaks and memory from the table of devices."""
    gpu = board.gpu
    return Machine(
        name=board.name,
        kind="gpu",
        flops_per_second=compute_peak_flops(gpu),
        bytes_per_second=gpu.bandwidth_gbs * 1e9,
        memory_bytes=board.memory_bytes,
        sms=gpu.sms,
        clock_hz=gpu.boost_mhz * 1e6,
        power_w=gpu.power_w,
        process_nm=gpu.architecture.process_nm,
    )


def parse_device_spec(text: str) -> Device:
    """From ``name=X1,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24``: TFLOP/s dense (1
    multiply-add = 2), GB/s, GB.

    tensor_bf16_tflops defaults to tensor_fp16_tflops, kind to gpu. Raises DeviceError.
    """
    known_keys = dict.fromkeys(
        (*_NEEDED, *_PATHS, "kind", "sms", "clock_mhz", "power_w", "process_nm")
    )
    values: dict[str, str] = {}
    for piece in text.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or key in values:
            wrong = "given twice" if equals else "not key=value"
            raise DeviceError(f"`device_spec`: '{piece.strip()}' is {wrong}", EXAMPLE)
        if key not in known_keys:
            raise DeviceError(
                f"`device_spec`: '{key}' is not known", f"Known: {', '.join(known_keys)}"
            )
        values[key] = value
    missing = [key for key in _NEEDED if not values.get(key)]
    if missing:
        raise DeviceError(f"`device_spec`: {', '.join(missing)} missing", EXAMPLE)
    kind = values.get("kind", "gpu")
    if kind not in ("gpu", "cpu"):
        raise DeviceError(f"`device_spec`: kind is gpu or cpu, got '{kind}'", EXAMPLE)
    figure = {
        key: _parse_positive_number(key, value)
        for key, value in values.items()
        if key not in ("name", "kind")
    }
    paths = {path: figure[key] * 1e12 for key, path in _PATHS.items() if key in figure}
    if "tensor fp16" in paths:
        paths.setdefault("tensor bf16", paths["tensor fp16"])
    integers = {key: int(figure[key]) for key in ("sms", "process_nm") if key in figure}
    machine = Machine(
        values["name"],
        kind,
        paths,
        figure["bandwidth_gbs"] * 1e9,
        float(round(figure["memory_gb"] * 1e9)),
        clock_hz=figure["clock_mhz"] * 1e6 if "clock_mhz" in figure else None,
        power_w=figure.get("power_w"),
        **integers,
    )
    return Device(machine, "user-given peaks")


def _parse_positive_number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise DeviceError(f"`device_spec`: {key} must be a number above 0, got '{value}'", EXAMPLE)
    return number


def build_measured_device(record: Mapping[str, Any], memory_bytes: int | None = None) -> Device:
    """From the JSON of ``python -m perfctl.workloads.run.peaks``. Raises KeyError, TypeError
    or ValueError."""
    threads = record.get("threads")
    machine = Machine(
        name=format_machine_name(str(record["device"]), str(record["kind"]), threads),
        kind=str(record["kind"]),
        flops_per_second={str(path): float(value) for path, value in record["flops"].items()},
        bytes_per_second=float(record["bandwidth_bps"]),
        memory_bytes=memory_bytes,
        sms=threads,
    )
    return Device(machine, f"peaks measured on {str(record['at'])[:10]}: large GEMMs and a triad")


def format_machine_name(device: str, kind: str, threads: int | None = None) -> str:
    """A machine's name in stored times: of a GPU its board; of a CPU with its threads ("AMD EPYC,
    2 threads")."""
    if kind == "gpu":
        boards = find_boards(device)
        return boards[0].name if len(boards) == 1 else device
    return f"{device}, {threads} thread{'s' * (threads != 1)}" if threads else device


def parse_machine_name_thread_count(cpu_name: str, machine_name: str) -> int | None:
    """Threads in the name of a machine with this CPU; None for another machine, or
    without threads."""
    match = re.fullmatch(r"(.*), (\d+) threads?", machine_name)
    return int(match[2]) if match is not None and match[1] == cpu_name else None
