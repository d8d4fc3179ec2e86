"""Steps that others measured and published, with their operations: what publish.py learns from and
accuracy_published.py judges by.

Sources: timm's results (training on an RTX 3090, inference on an RTX 3090 and 4090), NeuSight's
language models on GPUs of NVIDIA and AMD (both in --shared), and published.csv beside this file
(PUBLISHED.md states its sources). Networks are traced without weights; the traces are kept in
build/accuracy/, because tracing 2,500 networks takes a quarter of an hour of one core.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from perfctl.orchestrator.counts.hardware.machines import (
    CPU,
    Machine,
    find_device,
    parse_device_spec,
)
from perfctl.orchestrator.predict.operations import (
    Operation,
    StepSpec,
    list_forward_operations_per_sample,
)
from perfctl.orchestrator.predict.step_parts import get_peak_flops_or_raise, merge_equal_operations
from perfctl.workloads.tracing.recorder import trace_step

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[2] / "build" / "accuracy" / "published_works.json.gz"
TIMM = (
    ("infer", "nchw", "RTX 3090", "benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv", 2024),
    ("infer", "nchw", "RTX 4090", "benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv", 2024),
    ("infer", "nchw", "RTX 4090", "benchmark-infer-amp-nchw-pt291-cu128-4090.csv", 2025),
    ("train", "nchw", "RTX 3090", "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv", 2022),
    ("train", "nhwc", "RTX 3090", "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv", 2022),
)
TIMM_CPU = ("benchmark-infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo.csv", 2024)
"""Inference in fp32 of one sample on :data:`machines.CPU`, under torch.compile ("dynamo" in timm's
names), PyTorch 2.4."""
NEUSIGHT = {
    "Tesla_P4": "P4",
    "NVIDIA_L4": "L4",
    "Tesla_T4": "T4",
    "Tesla_V100-PCIE-32GB": "V100 PCIe 32 GB",
    "Tesla_P100-PCIE-16GB": "P100 PCIe 16 GB",
    "NVIDIA_A100-PCIE-40GB": "A100 PCIe 40 GB",
    "NVIDIA_A100_80GB_PCIe": "A100 PCIe 80 GB",
    "NVIDIA_H100_80GB_HBM3": "H100 SXM5",
}
AMD = {
    "AMD_Instinct_MI100": (46.1, 1228, 300, 7),
    "AMD_Instinct_MI210": (45.3, 1638, 300, 6),
    "AMD_Instinct_MI250": (45.3, 1638, 280, 6),
}
"""fp32 TFLOP/s of the matrix cores, GB/s, W and nm of what a program sees as one device (AMD's
data sheets)."""
LANGUAGE = {
    "bert_large": ("BertForMaskedLM", 512),
    "gpt2_large": ("gpt 1280 36 20", 1024),
    "gpt3_xl": ("gpt 3072 24 24", 2048),
    "opt_13": ("opt", 2048),
    "gpt3_27": ("gpt 2560 32 32", 2048),
}
"""NeuSight's networks: class or "gpt width layers heads", and tokens. Its times say that gpt3_xl is
3072 wide."""
TRACED_AT = 2
"""Batch of the trace: normalisation over 1x1 maps needs two samples."""
MODES = {"": "train", "infer": "infer", "fused": "infer"}
"""Last word of a trace's key -> mode of the trace. "fused" also has timm's fused attention, as
PyTorch 2 runs it."""
TRIED = 200
"""One of so many kept traces is traced again before any is used."""
MAY_FIT = ("Apache-2.0", "BSD-3-Clause", "MIT")
SAME = 0.02
"""Parameters of the traced network may differ from the published count by this share. Beyond it
timm builds another network under the name today (ig_resnext101_32x48d gives the 32x8d one), or the
published one had its branches merged (RepVGG, MobileOne)."""
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One published step."""

    source: str
    may_fit: bool
    """Its licence allows to learn from it."""
    machine: Machine
    case: StepSpec
    seconds: float
    module: str
    """Of its network: relatives share it."""
    year: int
    """In which it was published."""
    neusight: float | None = None
    """Seconds that NeuSight predicts."""
    habitat: float | None = None
    """Seconds that Habitat predicts, as NeuSight's authors ran it."""


def trace_one(name: str, size: int, mode: str = "") -> dict[str, Any] | None:
    """Module, parameters and merged operations of one architecture; None when this timm no longer
    has it.

    ``mode``: one of MODES; training ran with PyTorch 1.12.
    """
    fused = mode == "fused"
    os.environ["TIMM_FUSED_ATTN"] = "1" if fused else "0"
    warnings.filterwarnings("ignore")
    import timm
    import torch
    from timm.layers import set_fused_attn

    set_fused_attn(fused)
    torch.set_num_threads(1)
    for options in ({}, {"img_size": size}):
        try:
            with torch.device("meta"):
                model = timm.create_model(name, pretrained=False, **options)
        except (RuntimeError, TypeError, ValueError):
            continue
        seen = trace_step(
            model,
            (torch.empty(TRACED_AT, 3, size, size, device="meta"),),
            mode=MODES[mode],
            runs_backward=False,
        )
        if seen.problem is None:
            return _found(type(model).__module__.rpartition(".")[2], model, seen.ops)
    return None


def _found(module: str, model: Any, ops: Iterable[Any]) -> dict[str, Any]:
    forward = _forward(ops)
    works = merge_equal_operations(list_forward_operations_per_sample(forward, TRACED_AT))
    parameters = sum(each.numel() for each in model.parameters())
    return {
        "module": module,
        "parameters": parameters,
        "works": [work[1:] for work in works],
    }


def _forward(ops: Iterable[Any]) -> list[Any]:
    return [op for op in sorted(ops, key=lambda op: op.position) if op.direction == "forward"]


def language_model(name: str, tokens: int) -> Any:
    """A network of transformers without weights, by the names of LANGUAGE and published.csv. None:
    not one of them."""
    import transformers as hf

    eager = {"attn_implementation": "eager"}
    if name.startswith("gpt ") or name == "gpt2":
        width, layers, heads = map(int, name.split()[1:]) if " " in name else (768, 12, 12)
        kind = eager if " " in name else {"attn_implementation": "sdpa"}
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(
                n_positions=max(tokens, 1024), n_embd=width, n_layer=layers, n_head=heads, **kind
            )
        )
    if name == "opt":
        return hf.OPTForCausalLM(
            hf.OPTConfig(
                hidden_size=2048,
                num_hidden_layers=24,
                ffn_dim=8192,
                num_attention_heads=32,
                word_embed_proj_dim=2048,
                **eager,
            )
        )
    if name == "BertForMaskedLM":
        return hf.BertForMaskedLM(hf.BertConfig(**LARGE, **eager))
    if name == "bert-large-uncased":
        kind = hf.BertForQuestionAnswering if tokens == 384 else hf.BertForPreTraining
        return kind(hf.BertConfig(**LARGE, **eager))
    if name == "bert-base-uncased":
        return hf.BertForQuestionAnswering(hf.BertConfig(**eager))
    if name.startswith("roberta-"):
        size = LARGE if name.endswith("large") else {}
        config = hf.RobertaConfig(vocab_size=50265, max_position_embeddings=514, **size, **eager)
        return hf.RobertaForSequenceClassification(config)
    if name == "philschmid/MiniLM-L6-H384-uncased-sst2":
        small = {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
        }
        return hf.BertForSequenceClassification(hf.BertConfig(**small, **eager))
    return None


def traced(key: str) -> dict[str, Any] | None:
    """Of "timm:NAME SIZE", "torchvision:NAME 224" or "hf:NAME TOKENS", each with a word of MODES or
    none: what was traced.

    None: cannot be.
    """
    warnings.filterwarnings("ignore")
    import torch

    kind, _, rest = key.partition(":")
    mode = next((word for word in MODES if word and rest.endswith(f" {word}")), "")
    name, _, size = rest.removesuffix(f" {mode}").rpartition(" ")
    if kind == "timm":
        return trace_one(name, int(size), mode)
    torch.set_num_threads(1)
    with torch.device("meta"):
        if kind == "torchvision":
            import torchvision

            model: Any = getattr(torchvision.models, name)(weights=None)
        else:
            model = language_model(name, int(size))
    if model is None:
        return None
    shape = (
        (TRACED_AT, 3, int(size), int(size)) if kind == "torchvision" else (TRACED_AT, int(size))
    )
    sample = torch.ones(
        shape, dtype=torch.float32 if kind == "torchvision" else torch.long, device="meta"
    )
    return _found(
        name, model, trace_step(model, (sample,), mode=MODES[mode], runs_backward=False).ops
    )


def key_of(model: str, size: int | str, training: bool, fused: bool = False) -> str:
    """Of a network and its input: what :func:`traced` takes."""
    return f"{model} {size}{'' if training else ' fused' if fused else ' infer'}"


class Traces:
    """Traced networks by key, kept in a file. What perfctl no longer traces alike is not used."""

    def __init__(self, path: Path = KEPT) -> None:
        self.path, self.made = path, dict[str, Any]()
        if path.is_file():
            with gzip.open(path, "rt", encoding="utf-8") as file:
                self.made = json.load(file)
        self.works: dict[str, tuple[Operation, ...]] = {}

    def prepare(self, keys: Iterable[str], jobs: int | None = None) -> None:
        """Traces what is not kept yet, in several processes; everything, where a sample of what is
        kept is outdated."""
        keys = list(keys)
        if self._outdated(sorted(key for key in keys if key in self.made)):
            print(
                f"{self.path} is of another perfctl or another library: all networks are traced "
                "again",
                file=sys.stderr,
            )
            self.made = {}
        missing = [key for key in dict.fromkeys(keys) if key not in self.made]
        if not missing:
            return
        with ProcessPoolExecutor(
            jobs or os.cpu_count() or 1, mp_context=get_context("spawn")
        ) as pool:
            for place, found in enumerate(pool.map(traced, missing, chunksize=4)):
                self.made[missing[place]] = found
                if (place + 1) % 100 == 0:
                    print(f"traced {place + 1} of {len(missing)} networks", file=sys.stderr)
                    self.write()
        self.write()

    def _outdated(self, kept: list[str]) -> bool:
        """Is any of a sample traced differently now?"""
        try:
            return any(
                json.loads(json.dumps(traced(key))) != self.made[key] for key in kept[::TRIED]
            )
        except ImportError:  # without the library, a kept trace is all there is
            return False

    def of(self, key: str) -> tuple[dict[str, Any], tuple[Operation, ...]] | None:
        """(module and parameters, operations) of a key that was prepared."""
        found = self.made[key]
        if found is None:
            return None
        if key not in self.works:
            self.works[key] = tuple(Operation("", *figures) for figures in found["works"])
        return found, self.works[key]

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(self.path, "wt", encoding="utf-8") as file:
            json.dump(self.made, file, separators=(",", ":"))


class Keys(list[str]):
    """Stands in for Traces: notes which networks are asked for, and knows none."""

    def of(self, key: str) -> None:
        self.append(key)


def rows(shared: Path, path: Path = KEPT) -> list[Row]:
    """All rows whose network can be traced. Raises OSError when the published files are
    not there."""
    keys = Keys()
    for made in (_timm(shared, keys), _neusight(shared, keys), _published(keys)):
        assert not list(made)
    traces = Traces(path)
    traces.prepare(keys)
    return [*_timm(shared, traces), *_neusight(shared, traces), *_published(traces)]


def cpu_rows(shared: Path, path: Path = KEPT) -> list[Row]:
    """Rows of a CPU, under torch.compile, whose network can be traced. Raises OSError when the
    published file is not there."""
    keys, traces = Keys(), Traces(path)
    assert not list(_timm_cpu(shared, keys))
    traces.prepare(keys)
    return list(_timm_cpu(shared, traces))


def _timm_cpu(shared: Path, traces: Traces | Keys) -> Iterator[Row]:
    name, year = TIMM_CPU
    for row in _read(shared / "datasets" / "timm" / name):
        found = traces.of(
            key_of(f"timm:{row['model']}", row["infer_img_size"], training=False, fused=True)
        )
        if found is None or not _is_same(found[0], row):
            continue
        facts, works = found
        case = StepSpec(
            f"timm:{row['model']}",
            facts["module"],
            works,
            int(row["infer_batch_size"]),
            False,
            "fp32",
            "",
            facts["parameters"],
            compiled=True,
        )
        yield Row(
            "timm infer cpu",
            True,
            CPU,
            case,
            float(row["infer_step_time"]) / 1e3,
            facts["module"],
            year,
        )


def _is_same(facts: Mapping[str, Any], row: Mapping[str, str]) -> bool:
    """Does the traced network have the published one's parameters? See :data:`SAME`."""
    published = float(row["param_count"])
    return abs(facts["parameters"] / 1e6 - published) <= max(SAME * published, 0.01)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _timm(shared: Path, traces: Traces | Keys) -> Iterator[Row]:
    for mode, layout, device, name, year in TIMM:
        machine, training = find_device(device).machine, mode == "train"
        for row in _read(shared / "datasets" / "timm" / name):
            size = row[f"{mode}_img_size"]
            found = traces.of(key_of(f"timm:{row['model']}", size, training, fused=True))
            if found is None:
                continue
            facts, works = found
            if not _is_same(facts, row):
                continue
            case = StepSpec(
                f"timm:{row['model']}",
                facts["module"],
                works,
                int(row[f"{mode}_batch_size"]),
                training,
                "fp16",
                "momentum" if training else "",
                facts["parameters"],
                layout == "nhwc",
            )
            yield Row(
                f"timm {mode} {layout} {device}",
                True,
                machine,
                case,
                float(row[f"{mode}_step_time"]) / 1e3,
                facts["module"],
                year,
            )


def amd(name: str) -> Machine:
    fp32, bandwidth, watts, process = AMD[name]
    said = (
        f"name={name.rpartition('_')[2]},fp32_tflops={fp32},bandwidth_gbs={bandwidth},memory_gb=64"
    )
    return replace(parse_device_spec(said).machine, power_w=float(watts), process_nm=process)


def _neusight(shared: Path, traces: Traces | Keys) -> Iterator[Row]:
    for row in _read(shared / "datasets" / "neusight" / "summary" / "summary.csv"):
        name = row["model_name"]
        if row["option"] or name not in LANGUAGE:
            continue
        (kind, tokens), training = LANGUAGE[name], row["mode"] == "train"
        found = traces.of(key_of(f"hf:{kind}", tokens, training))
        if found is None:
            continue
        facts, works = found
        device = row["device"]
        machine = find_device(NEUSIGHT[device]).machine if device in NEUSIGHT else amd(device)
        case = StepSpec(
            f"hf:{name}",
            "llm",
            works,
            int(row["batch"]),
            training,
            "fp32",
            "sgd" if training else "",
            facts["parameters"],
        )
        measured, theirs, habitat = (
            float(row[f"{who}_all_e2e_latency"]) / 1e3 if row[f"{who}_all_e2e_latency"] else None
            for who in ("label", "neusight", "habitat")
        )
        assert measured is not None
        yield Row("neusight", True, machine, case, measured, name, 2025, theirs, habitat)


def _published(traces: Traces | Keys) -> Iterator[Row]:
    for row in _read(HERE / "published.csv"):
        compiled = (
            row["engine"] == "pytorch compiled"
            and row["mode"] == "infer"
            and row["licence"] in MAY_FIT
        )
        if (
            not (compiled or row["engine"] == "pytorch eager")
            or not row["batch"]
            or "prompt" in row["input"]
        ):
            continue
        training, batch, value = row["mode"] == "train", int(row["batch"]), float(row["value"])
        size = row["input"].split("x")[-1]
        found = traces.of(key_of(row["model"], size, training, fused=row["id"].startswith("timm")))
        if found is None or row["unit"] not in ("images/s", "sequences/s", "tokens/s", "ms"):
            continue
        if row["unit"] == "tokens/s":
            value /= int(size)
        facts, works = found
        optimizer = "" if not training else "adam" if row["model"].startswith("hf:") else "momentum"
        case = StepSpec(
            row["model"],
            facts["module"],
            works,
            batch,
            training,
            row["precision"],
            optimizer,
            facts["parameters"],
            row["layout"] == "nhwc",
            compiled,
        )
        seconds = value / 1e3 if row["unit"] == "ms" else batch / value
        source = row["id"].split("-")[0]
        machine = find_device(row["device"]).machine
        if _is_fast_in(machine, case.precision):
            yield Row(
                source,
                row["licence"] in MAY_FIT,
                machine,
                case,
                seconds,
                facts["module"],
                int(row["published"][:4]),
            )


def _is_fast_in(machine: Machine, precision: str) -> bool:
    """What a chip has no fast path for is refused, whether it was measured or not: fp16 on a GTX
    1080 Ti."""
    try:
        get_peak_flops_or_raise(machine, precision)
    except ValueError:
        return False
    return True
