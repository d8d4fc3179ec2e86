"""What perfctl says today of cases that were written without a look at its rules, beside the truth:
``python scripts/proof/verdicts/cases.py [a01 d2 estimates ...] [--sentences] [--shared FOLDER]``.

``shared/cases/causes`` has scenarios: a network, its kernels, grids and counters, and the truth in
words. They are written for an older simulator, whose names ``LIBRARY`` gives them. Each ledger row
is one line: ratio, open share, causes. What can be judged without a reader is counted at the end:
with which confidence a difference is named, and whether the factors and the open share of a row
agree. Whether a cause is the true one, the reader sees from the two texts. ``shared/cases/
estimates`` has modules with the right value of each. Exits 1 when a case cannot be analysed, a
row contradicts itself, or an estimate has another value.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import ceil, log, prod
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))

from perfctl.orchestrator.estimate.flops.engine import count_layer_calls
from perfctl.orchestrator.ledger.analysis import Analysis, analyse_study
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report.ledger.causes import describe_cause
from perfctl.records import report as records
from perfctl.records.paper import OpShape
from perfctl.records.run import Run
from scripts.proof.accuracy.accuracy_lines import parser_for
from scripts.proof.verdicts import networks
from scripts.proof.verdicts.effects import ALGORITHMS, Effect, Task
from scripts.proof.verdicts.kernels import FAMILIES, Kernel, Launch, plain, tiled
from scripts.proof.verdicts.networks import BACKWARD, FORWARD, Scene
from scripts.proof.verdicts.records import count, make_run

GAP = log(1.05)
"""A ratio nearer to 1, as a logarithm, needs no cause."""
AGREEMENT = 0.02
"""Largest error of an open share."""
FILES = "abcdf"


class OldLayer(networks.Layer):
    """The methods of layers that the scenarios call."""

    __slots__ = ()

    def wanted(self, batch: int) -> list[networks.Product]:
        """Return the products of backward that run."""
        return [item for item in self.gradients(batch) if not (self.first and item.part == "dgrad")]

    def ops(  # type: ignore[override]
        self, batch: int, position: int, train: bool = True, fused: bool = True
    ) -> tuple[OpShape, ...]:
        every = super().ops(batch, position, fused)
        return every if train else tuple(op for op in every if op.direction == FORWARD)


class Conv(OldLayer, networks.Conv):
    __slots__ = ()


class Linear(OldLayer, networks.Linear):
    __slots__ = ()


class Lstm(OldLayer, networks.Lstm):
    __slots__ = ()


class Attention(OldLayer, networks.Attention):
    __slots__ = ()


Placed = tuple[Any, ...]
"""Layer, direction, launch, and where a record differs: {"device": 1}."""


@dataclass
class Library:
    """What the scenarios import, and the runs and lines that they leave."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)
    sentences: bool = False

    def make(
        self,
        name: str,
        batches: Sequence[int],
        works: Callable[[int], list[Any]],
        ops: Any,
        chip: str = "70",
        prec: str = "fp32",
        mode: str = "train",
        env: dict[str, str | None] | None = None,
        ncu: str = "2025.1.1",
        drop: Sequence[str] = (),
        none: Sequence[str] = (),
        profiler: str = "ncu",
        reset: bool = True,
        **other: Any,
    ) -> None:
        """Keep the runs of a scenario, one of each batch size."""
        if reset:
            self.runs[name] = []
        scene = Scene(0, (), tuple(batches), chip, prec, mode == "train", ncu, False)
        tf32 = "on" if prec == "tf32" else "off"
        environment = {"torch": "2.8.0", "cuda": "12.8", "tf32_conv": tf32, "tf32_matmul": tf32}
        environment |= {"cudnn_benchmark": "off", **(env or {})}  # type: ignore[dict-item]
        environment = {key: value for key, value in environment.items() if value is not None}
        for batch in batches:
            steps = works(batch)
            steps = [steps] if steps and isinstance(steps[0], tuple) else steps
            placed = [(number, *item) for number, step in enumerate(steps) for item in step]
            launches, graphs = [], []
            for number, layer, direction, launch, *more in placed:
                places = {"step": number, **(more[0] if more else {})}
                graphs.append(places.pop("graph", None))
                launches.append(replace(launch, layer=layer, direction=direction, **places))
            run = make_run(
                scene,
                batch,
                len(self.runs[name]) + 1,
                launches,
                environment,
                profiler=profiler,
                collected="no counter",
                summaries=tuple(other["summaries"](batch)) if "summaries" in other else (),
                command=tuple(other.get("command", ("python", "train.py"))),
                sweep_command=other.get("tool", "perfctl ingest b*"),
            )
            shapes = tuple(ops(batch) if callable(ops) else ops)
            counters = [
                counter
                for index, launch in enumerate(launches)
                if profiler == "ncu" and launch.counted
                for counter in count_scenario(scene, index, launch, drop, none)
            ]
            kernels = [
                kernel._replace(graph_id=graph, layer_source="capture") if graph else kernel
                for kernel, graph in zip(run.report.kernels, graphs, strict=True)
            ]
            report = replace(run.report, ops=shapes, counters=counters, kernels=kernels)
            self.runs[name].append(
                replace(run, report=report, layer_calls=count_layer_calls(shapes))
            )

    def out(
        self,
        name: str,
        truth: str,
        layers: Sequence[str] = (),
        batches: Sequence[int] = (),
        **_: Any,
    ) -> None:
        """Print what is said of a scenario beside its truth."""
        studies = group_into_studies(self.runs[name])
        print(f"\n{name}\n  truth: {truth}")
        for study in studies:
            analysis = analyse_study(study)
            for line in self.list_rows(analysis, layers, batches):
                print(line)

    def list_rows(
        self, analysis: Analysis, layers: Sequence[str], batches: Sequence[int]
    ) -> Iterator[str]:
        """Yield a line for each row that the scenario is about, and for each cause of the sweep."""
        for row in analysis.ledger.rows:
            judged = analysis.judgement.at(row.batch, row.layer, row.direction)
            is_asked = row.layer in layers if layers else judged.causes or is_gap(row.ratio)
            if not is_asked or (batches and row.batch not in batches):
                continue
            outcome = judge_row(row.ratio, judged.causes, judged.unexplained)
            self.tally[outcome] += 1
            ratio = "no count" if row.ratio is None else f"{row.ratio:.3f}"
            ratio = f">= {ratio}" if row.executed.lower_bound and row.ratio is not None else ratio
            is_open = judged.unexplained is not None and is_gap(row.ratio)
            left = f"{judged.unexplained:.0%} open" if is_open else ""
            shown = [cause for cause in judged.causes if cause.factor != 1 or self.sentences]
            causes = "; ".join(map(name_cause, shown)) or "-"
            where = f"{row.layer} {row.direction}, batch {row.batch}"
            yield f"  {where:<32}{ratio:>10} {left:>10}  {outcome:<14} {causes}"
            for cause in judged.causes if self.sentences else ():
                yield f"      {describe_cause(cause)}"
        for cause in analysis.judgement.sweep:
            yield f"  {'sweep':<32}{'':>23}{'':>15} {name_cause(cause)}"
            if self.sentences:
                yield f"      {describe_cause(cause)}"


def is_gap(ratio: float | None) -> bool:
    return ratio is not None and (ratio == 0 or abs(log(ratio)) > GAP)


def name_cause(cause: Any) -> str:
    """Return "certain tile padding x1.50 (by tiles)"."""
    confidence = {"likely": "probably", "plausible": "maybe"}.get(cause.confidence, "certain")
    factor = "" if cause.factor is None else f" x{cause.factor:.3g}"
    return f"{confidence} {cause.rule}{factor}" + (f" ({cause.variant})" if cause.variant else "")


def judge_row(ratio: float | None, causes: Sequence[Any], unexplained: float | None) -> str:
    """Return with which confidence the row's difference is named, or that the row contradicts
    itself."""
    if ratio is None:
        return "no count"
    factors = [cause.factor for cause in causes if cause.factor]
    if ratio and is_gap(ratio) and unexplained is not None:
        left = min(abs(log(ratio / prod(factors))) / abs(log(ratio)), 1.0)
        if abs(left - unexplained) > AGREEMENT:
            return "contradictory"
    if not is_gap(ratio):
        if not any(map(is_gap, factors)):
            return "no difference"
        unexplained = 1.0 if ratio is None or is_gap(ratio / prod(factors)) else 0.0
    whole = [cause.factor for cause in causes if cause.rule == "whole step" and cause.factor]
    if len(whole) > 1 and abs(log(prod(whole))) < AGREEMENT:
        return "contradictory"
    if unexplained is None or unexplained > 0.05:
        return "open"
    named = {cause.confidence for cause in causes if cause.factor}
    return "possible" if "plausible" in named else "likely" if "likely" in named else "certain"


def count_scenario(
    scene: Scene, index: int, launch: Launch, drop: Sequence[str], none: Sequence[str]
) -> Iterator[records.Counter]:
    """Yield the counters of a launch, those of fp8 and int8 too, without ``drop``; ``none`` have no
    value."""
    tensor, integer = launch.counts.get("tensor", 0), launch.counts.get("int8", 0)
    counters = count(scene, index, replace(launch, counts=launch.counts | {"tensor": tensor}))
    if scene.ncu >= "2023" and scene.is_ampere:
        operations = tensor * (launch.kind == "fp8")
        metrics = {"sm__ops_path_tensor_src_int8.sum": integer}
        if scene.chip in ("89", "90"):
            metrics["sm__ops_path_tensor_src_fp8_dst_fp32.sum"] = operations
        counters += [records.Counter(index, name, value, None) for name, value in metrics.items()]
    patterns = {
        "ops": "ops_path_tensor_src_[^i]",
        "int8": "src_int8",
        "fp8": "src_fp8",
        "pipe": "pipe",
    }
    for counter in counters:
        if any(re.search(patterns.get(key, f"_op_{key}_"), counter.name) for key in drop):
            continue
        if "pipe_tensor" in counter.name:
            counter = counter._replace(value=counter.value + integer // launch.each)
        is_empty = any(f"_op_{key}_" in counter.name for key in none)
        yield counter._replace(value=None) if is_empty else counter


# The older simulator's functions


def make_launch(
    name: str,
    grid: Sequence[int] = (1, 1, 1),
    kind: str = "",
    each: int = 4096,
    counted: bool = True,
    **counts: float,
) -> Launch:
    columns, rows, layers = (*grid, 1, 1, 1)[:3]
    values = {key: int(value) for key, value in counts.items()}
    return Launch(name, (columns, rows, layers), values, kind, each, counted=counted)


def make_scene(chip: str, precision: str = "fp32") -> Scene:
    return Scene(0, (), (), chip, precision, True, "2025.1.1", False)


def choose_plain(
    chip: str, precision: str, layer: Any, product: networks.Product, random: Random
) -> Launch:
    launch = plain(make_scene(chip, precision), layer, product, random)
    launch.counts.pop("moves", None)
    return launch


def run_usual(
    layer: Any, batch: int, precision: str, chip: str, train: bool = True
) -> list[Placed]:
    """Return the usual kernels of a layer, with their directions."""
    products = [(FORWARD, item) for item in layer.forward(batch)]
    products += [(BACKWARD, item) for item in layer.wanted(batch)] if train else []
    return [
        (
            layer.name,
            direction,
            choose_plain(chip, precision, layer, item, Random(layer.name + item.part)),  # noqa: S311
        )
        for direction, item in products
    ]


def run_step(
    network: Sequence[Any],
    batch: int,
    precision: str = "fp32",
    chip: str = "70",
    over: dict[tuple[str, str], Callable[[Any, int], list[Any]]] | None = None,
    train: bool = True,
) -> list[Placed]:
    """Return a step; ``over``: (layer, direction) -> its launches in place of the usual ones."""
    launches: list[Placed] = []
    for direction in (FORWARD, BACKWARD) if train else (FORWARD,):
        for layer in network if direction == FORWARD else reversed(network):
            if works := (over or {}).get((layer.name, direction)):
                launches += [
                    item if isinstance(item, tuple) else (layer.name, direction, item)
                    for item in works(layer, batch)
                ]
            else:
                every = run_usual(layer, batch, precision, chip)
                launches += [item for item in every if item[1] == direction]
    return launches


def list_ops(
    network: Sequence[Any], batch: int, train: bool = True, fused: bool = True, first: int = 0
) -> tuple[OpShape, ...]:
    return tuple(
        op
        for position, layer in enumerate(network, first)
        for op in layer.ops(batch, position, train, fused)
    )


def realise(name: str) -> Callable[..., list[Launch]]:
    """Return an algorithm with the older signature."""

    def launch(scene: Any, effect: Effect, layer: Any, part: str, batch: int) -> list[Launch]:
        return ALGORITHMS[name](Task(make_scene(scene.chip), layer, part, batch, effect.settings))

    return launch


def build_library(library: Library) -> dict[str, Any]:
    """Return what the scenarios import from "lib" and "effects"."""
    float_families = {
        f"{chip} fp32": [
            replace(family, path="fp32")
            for kind in ("gemm", "conv")
            for family in FAMILIES[f"{chip} fp32 {kind}"]
        ]
        for chip in ("volta", "ampere")
    }
    algorithms = {name: realise(name) for name in ("winograd2", "winograd4", "fourier")}
    algorithms["fourier"] = realise("fft")
    modules = {"json": json, "os": os, "sys": sys, "re": re, "ROOT": "", "Path": Path}
    shapes = {"Conv": Conv, "Linear": Linear, "Lstm": Lstm, "Attention": Attention}
    shapes |= {"Product": networks.Product, "OpShape": OpShape, "Summary": records.Summary}
    return (
        modules
        | shapes
        | algorithms
        | {
            **{"ceil": ceil, "prod": prod, "Random": Random, "replace": replace, "Effect": Effect},
            **{"F": FORWARD, "B": BACKWARD, "FAMILIES": float_families, "W": make_launch},
            **{"norm": run_usual, "base": run_step, "ops_of": list_ops, "plain": choose_plain},
            **{"make": library.make, "out": library.out},
            "tiled": lambda family, tile, product, flip: tiled(Kernel(family, tile, flip), product),
        }
    )


def load_scenarios(folder: Path, library: Library) -> dict[str, Callable[[], None]]:
    """Return the scenarios by name; each file clears those of the file that it imports."""
    module = types.ModuleType("lib")
    vars(module).update(build_library(library))
    sys.modules |= {"lib": module, "effects": module}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    scenarios: dict[str, Callable[[], None]] = {}
    for name in FILES:
        scenarios |= import_module(name).S
    return scenarios


# Estimates


def compare_estimates(folder: Path, tally: Counter[str]) -> None:
    """Print what ``perfctl estimate`` says of each module of the README."""
    options: list[str] = []
    for line in (folder / "README.md").read_text().splitlines():
        if network := re.search(r"`(\w+)` \(`(--input.*?)`\):", line):
            options = [f"nets.py:{network[1]}", *network[2].split()]
        elif value := re.match(r"  (\w+)(?: \(\w+\))? +([\d,]+) (.*)", line):
            right = re.search(r"right ([\d,]+)", value[3])
            check = ["--layer", value[1], "--check", f"{value[2]} MAC"]
            text = " ".join(ask_estimate(folder, [*options, *check]).split())
            if right is not None:
                is_right = f"Correct: {right[1]} MAC" in text
                tally["estimate right" if is_right else "estimate differs"] += 1
            print(f"\n{options[0]} {value[1]}\n  truth: {value[2]} {value[3]}\n  says:  {text}")
        elif module := re.match(r"(\w+) (--input \S+(?: --mode \w+)?) {2,}(.*)", line):
            extra = ["--batch", "4", "--device", "cpu", "--json"]
            answer = ask_estimate(folder, [f"odd.py:{module[1]}", *module[2].split(), *extra])
            print(f"\nodd.py:{module[1]} {module[2]}\n  truth: {module[3]}")
            try:
                batch = json.loads(answer)["batches"]["4"]
            except ValueError:
                tally["estimate differs"] += 1
                print(f"  says:  {answer}")
                continue
            forward = batch["forward"]
            bound = "at least " * forward["is_lower_bound"]
            macs = f"{bound}{forward['macs']:,} multiply-adds at batch 4"
            integers = f", {batch['integer_macs']:,} of integers" * bool(batch["integer_macs"])
            print(f"  says:  {macs}{integers}; {batch['parameters']:,} parameters")


def ask_estimate(folder: Path, arguments: Sequence[str]) -> str:
    """Return what ``perfctl estimate`` prints."""
    command = [str(Path(sys.executable).with_name("perfctl")), "estimate", *arguments]
    environment = {**os.environ, "COLUMNS": "400", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    return result.stdout or result.stderr


def main() -> int:
    parser = parser_for(__doc__, "cases")
    parser.add_argument("names", nargs="*", help="beginnings of scenarios; estimates: the modules")
    parser.add_argument("--sentences", action="store_true", help="print the causes' sentences too")
    arguments = parser.parse_args()
    folder = arguments.shared / "cases"
    if not folder.is_dir():
        print(f"skipped: {folder} is not here; --shared names the folder that holds cases")
        return 0
    library = Library(sentences=arguments.sentences)
    for name, scenario in load_scenarios(folder / "causes", library).items():
        if arguments.names and not name.startswith(tuple(arguments.names)):
            continue
        try:
            with contextlib.suppress(FileNotFoundError):  # of one that reads 1.0's output again
                scenario()
        except Exception:
            # a scenario that cannot be analysed is a result, and the others are run
            library.tally["ERROR"] += 1
            traceback.print_exc()
    if not arguments.names or "estimates" in arguments.names:
        compare_estimates(folder / "estimates", library.tally)
    print("\n" + ", ".join(f"{outcome}: {n}" for outcome, n in sorted(library.tally.items())))
    return int(bool({"ERROR", "contradictory", "estimate differs"} & {*library.tally}))


if __name__ == "__main__":
    sys.exit(main())
