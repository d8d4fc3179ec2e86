"""What perfctl says today of cases that were written without a look at its rules, beside the truth:
``python scripts/proof/verdicts/cases.py [a01 d2 estimates ...] [--sentences] [--shared FOLDER]``.

``shared/cases/causes`` has scenarios: a network, its kernels, grids and counters, and the truth in
words. They are written for an older simulator, whose names ``list_names`` gives them. Each ledger
row is one line: ratio, open share, causes. What can be judged without a reader is counted at the
end: with which confidence a difference is named, and whether the factors and the open share of a
row agree. Whether a cause is the true one, a reader sees. ``shared/cases/estimates`` has modules
with the right value of each. Exits 1 when a case cannot be analysed, a row contradicts itself, or
an estimate has another value.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import ceil, log, prod
from pathlib import Path
from random import Random
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3]))

from perfctl.orchestrator.estimate.flops.engine import build_layer_calls_with_flops
from perfctl.orchestrator.ledger.analysis import Analysis, analyse_study
from perfctl.orchestrator.ledger.causes.rule import Cause
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

GAP_LOG_MIN, AGREEMENT_MAX = log(1.05), 0.02
"""A smaller ratio, as a logarithm, needs no cause; largest error of an open share."""
PREFIXES = {"likely": "probably", "plausible": "maybe"}
COUNTERS = {
    "ops": "ops_path_tensor_src_[^i]",
    "int8": "src_int8",
    "fp8": "src_fp8",
    "pipe": "pipe_tensor",
}
"""Name of counters in a scenario -> pattern of their names, if it is not the instruction's."""


class OldLayer(networks.Layer):
    """The methods of layers that the scenarios call."""

    __slots__ = ()

    def wanted(self, batch: int) -> list[networks.Product]:
        """Return the products of backward that run."""
        gradients = self.gradients(batch)
        return [item for item in gradients if not (self.first and item.part == "dgrad")]

    def ops(  # type: ignore[override]
        self, batch: int, position: int, train: bool = True, fused: bool = True
    ) -> tuple[OpShape, ...]:
        every = super().ops(batch, position, fused)
        return tuple(op for op in every if train or op.direction == FORWARD)


class Conv(OldLayer, networks.Conv):
    __slots__ = ()


class Linear(OldLayer, networks.Linear):
    __slots__ = ()


class Lstm(OldLayer, networks.Lstm):
    __slots__ = ()


class Attention(OldLayer, networks.Attention):
    __slots__ = ()


@dataclass
class Cases:
    """The runs of the scenarios, and how often perfctl gives each kind of answer."""

    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    tally: Counter[str] = field(default_factory=Counter)
    has_sentences: bool = False

    def keep_runs(
        self,
        name: str,
        batches: Sequence[int],
        works: Callable[[int], list[Any]],
        ops: Any,
        chip: str = "70",
        prec: str = "fp32",
        mode: str = "train",
        ncu: str = "2025.1.1",
        **more: Any,
    ) -> None:
        """Keep one run of each batch size. ``works`` returns the launches of one step, or of
        several: layer, direction, launch, and where the record differs."""
        if more.get("reset", True):
            self.runs[name] = []
        scene = Scene(0, (), tuple(batches), chip, prec, mode == "train", ncu, False)
        tf32 = "on" if prec == "tf32" else "off"
        environment = {"torch": "2.8.0", "cuda": "12.8", "tf32_conv": tf32, "tf32_matmul": tf32}
        environment |= {"cudnn_benchmark": "off"} | (more.get("env") or {})
        environment = {key: value for key, value in environment.items() if value is not None}
        profiler = more.get("profiler", "ncu")
        for batch in batches:
            steps = works(batch)
            steps = [steps] if isinstance(steps[0], tuple) else steps
            launches, graphs = [], []
            for number, step in enumerate(steps):
                for layer, direction, launch, *others in step:
                    places = {"step": number, **(others[0] if others else {})}
                    graphs.append(places.pop("graph", None))
                    launches.append(replace(launch, layer=layer, direction=direction, **places))
            run = make_run(
                scene,
                batch,
                len(self.runs[name]) + 1,
                launches,
                environment,
                profiler=profiler,
                collected="none of them",
                summaries=tuple(more["summaries"](batch)) if "summaries" in more else (),
                command=tuple(more.get("command", ())),
                sweep_command=more.get("tool", "perfctl ingest b*"),
            )
            counters = [
                counter
                for index, launch in enumerate(launches)
                if profiler == "ncu" and launch.counted
                for counter in count_launch(scene, index, launch, more)
            ]
            kernels = [
                kernel._replace(graph_id=graph, layer_source="capture") if graph else kernel
                for kernel, graph in zip(run.report.kernels, graphs, strict=True)
            ]
            shapes = tuple(ops(batch) if callable(ops) else ops)
            report = replace(run.report, ops=shapes, counters=counters, kernels=kernels)
            run = replace(run, report=report, layer_calls=build_layer_calls_with_flops(shapes))
            self.runs[name].append(run)

    def print_rows(
        self,
        name: str,
        truth: str,
        layers: Sequence[str] = (),
        batches: Sequence[int] = (),
        **_: Any,
    ) -> None:
        """Print the answers of perfctl to a scenario next to its truth."""
        print(f"\n{name}\n  truth: {truth}")
        for study in group_into_studies(self.runs[name]):
            for line in self.list_lines(analyse_study(study), layers, batches):
                print(line)

    def list_lines(
        self, analysis: Analysis, layers: Sequence[str], batches: Sequence[int]
    ) -> Iterator[str]:
        """Yield a line for each row that the scenario is about, and for each cause of the sweep."""
        for row in analysis.ledger.rows:
            judged = analysis.judgement.get_row_causes(row.batch, row.layer, row.direction)
            is_asked = row.layer in layers if layers else judged.causes or is_gap(row.ratio)
            if not is_asked or (batches and row.batch not in batches):
                continue
            outcome = judge_row(row.ratio, judged.causes, judged.unexplained)
            self.tally[outcome] += 1
            bound = ">= " if row.executed.lower_bound else ""
            ratio = "no count" if row.ratio is None else f"{bound}{row.ratio:.3f}"
            is_open = judged.unexplained is not None and is_gap(row.ratio)
            unexplained = f"{judged.unexplained:.0%} open" if is_open else ""
            causes = [name_cause(cause) for cause in judged.causes if cause.factor != 1]
            yield (
                f"  {f'{row.layer} {row.direction}, batch {row.batch}':<32}{ratio:>10} "
                f"{unexplained:>10}  {outcome:<14} {'; '.join(causes) or '-'}"
            )
            for cause in judged.causes if self.has_sentences else ():
                yield f"      {describe_cause(cause)}"
        for cause in analysis.judgement.sweep:
            yield f"  {'sweep':<71}{name_cause(cause)}"
            if self.has_sentences:
                yield f"      {describe_cause(cause)}"


def is_gap(ratio: float | None) -> bool:
    return ratio is not None and (ratio == 0 or abs(log(ratio)) > GAP_LOG_MIN)


def name_cause(cause: Cause) -> str:
    """Return "certain tile padding x1.50 (by tiles)"."""
    factor = "" if cause.factor is None else f" x{cause.factor:.3g}"
    variant = f" ({cause.variant})" if cause.variant else ""
    return f"{PREFIXES.get(cause.confidence, 'certain')} {cause.rule}{factor}{variant}"


def judge_row(ratio: float | None, causes: Sequence[Cause], unexplained: float | None) -> str:
    """Return with which confidence the row's difference is named, or that the row contradicts
    itself."""
    if ratio is None:
        return "no count"
    factors = [cause.factor for cause in causes if cause.factor]
    if not is_gap(ratio):
        if not any(map(is_gap, factors)):
            return "no difference"
        unexplained = float(is_gap(ratio / prod(factors)))
    elif ratio and unexplained is not None:
        remaining = min(abs(log(ratio / prod(factors))) / abs(log(ratio)), 1.0)
        if abs(remaining - unexplained) > AGREEMENT_MAX:
            return "contradictory"
    steps = [cause.factor for cause in causes if cause.rule == "whole step" and cause.factor]
    if len(steps) > 1 and abs(log(prod(steps))) < AGREEMENT_MAX:
        return "contradictory"
    if unexplained is None or unexplained > 0.05:
        return "open"
    confidences = {cause.confidence for cause in causes if cause.factor}
    return next((word for word in ("plausible", "likely") if word in confidences), "certain")


def count_launch(
    scene: Scene, index: int, launch: Launch, settings: dict[str, Any]
) -> Iterator[records.Counter]:
    """Yield the counters of a launch, also those of fp8 and int8, without those that the scenario
    drops, and without a value those that it calls "none"."""
    tensor, integer = launch.counts.get("tensor", 0), launch.counts.get("int8", 0)
    counters = count(scene, index, launch)
    if scene.ncu >= "2023" and scene.is_ampere:
        values = {"sm__ops_path_tensor_src_int8.sum": integer}
        if scene.chip in ("89", "90"):
            operations = tensor * (launch.kind == "fp8")
            values["sm__ops_path_tensor_src_fp8_dst_fp32.sum"] = operations
        counters += [records.Counter(index, name, value, None) for name, value in values.items()]
    for counter in counters:
        dropped = (COUNTERS.get(key, f"_op_{key}_") for key in settings.get("drop", ()))
        if any(re.search(pattern, counter.name) for pattern in dropped):
            continue
        if "pipe_tensor" in counter.name:
            counter = counter._replace(value=(counter.value or 0) + integer // launch.each)
        is_empty = any(f"_op_{key}_" in counter.name for key in settings.get("none", ()))
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
    columns, rows, depth = (*grid, 1, 1, 1)[:3]
    values = {key: int(value) for key, value in counts.items()}
    return Launch(name, (columns, rows, depth), values, kind, each, counted=counted)


def make_scene(chip: str, precision: str = "fp32") -> Scene:
    return Scene(0, (), (), chip, precision, True, "2025.1.1", False)


def make_plain(chip: str, precision: str, layer: Any, product: Any, random: Random) -> Launch:
    launch = plain(make_scene(chip, precision), layer, product, random)
    launch.counts.pop("moves", None)
    return launch


def run_layer(layer: Any, batch: int, precision: str, chip: str, train: bool = True) -> list[Any]:
    """Return the usual kernels of a layer, with their directions."""
    parts = ((FORWARD, layer.forward(batch)), (BACKWARD, layer.wanted(batch) if train else ()))
    return [
        (
            layer.name,
            direction,
            make_plain(chip, precision, layer, item, Random(layer.name + item.part)),  # noqa: S311
        )
        for direction, products in parts
        for item in products
    ]


def run_step(
    network: Sequence[Any],
    batch: int,
    precision: str = "fp32",
    chip: str = "70",
    over: dict[tuple[str, str], Callable[[Any, int], list[Any]]] | None = None,
    train: bool = True,
) -> list[Any]:
    """Return a step; ``over``: (layer, direction) -> its launches in place of the usual ones."""
    launches: list[Any] = []
    for direction in (FORWARD, BACKWARD) if train else (FORWARD,):
        for layer in network if direction == FORWARD else reversed(network):
            works = (over or {}).get((layer.name, direction))
            every = works(layer, batch) if works else run_layer(layer, batch, precision, chip)
            places = [
                item if isinstance(item, tuple) else (layer.name, direction, item) for item in every
            ]
            launches += [item for item in places if works or item[1] == direction]
    return launches


def list_ops(network: Sequence[Any], batch: int, *how: bool, first: int = 0) -> tuple[OpShape, ...]:
    pairs = enumerate(network, first)
    return tuple(op for position, layer in pairs for op in layer.ops(batch, position, *how))


def realise(name: str) -> Callable[..., list[Launch]]:
    """Return an algorithm with the older signature."""
    return lambda scene, effect, layer, part, batch: ALGORITHMS[name](
        Task(make_scene(scene.chip), layer, part, batch, effect.settings)
    )


def list_names(cases: Cases) -> dict[str, Any]:
    """Return what the scenarios import from "lib" and "effects"."""
    families = [*FAMILIES["volta fp32 gemm"], *FAMILIES["volta fp32 conv"]]
    classes = (Conv, Linear, Lstm, Attention, networks.Product, OpShape, records.Summary, Effect)
    return {item.__name__: item for item in (*classes, ceil, prod, Random, replace, json, sys)} | {
        "ROOT": "",
        "F": FORWARD,
        "B": BACKWARD,
        "FAMILIES": {"volta fp32": [replace(family, path="fp32") for family in families]},
        "W": make_launch,
        "norm": run_layer,
        "base": run_step,
        "ops_of": list_ops,
        "plain": make_plain,
        "tiled": lambda family, tile, product, flip: tiled(Kernel(family, tile, flip), product),
        "winograd2": realise("winograd2"),
        "winograd4": realise("winograd4"),
        "fourier": realise("fft"),
        "make": cases.keep_runs,
        "out": cases.print_rows,
    }


def load_scenarios(folder: Path, cases: Cases) -> dict[str, Callable[[], None]]:
    """Return the scenarios by name; each file clears those of the file that it imports."""
    module = types.ModuleType("lib")
    vars(module).update(list_names(cases))
    sys.modules |= {"lib": module, "effects": module}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    files = (path.stem for path in sorted(folder.glob("?.py")))
    return {name: scenario for file in files for name, scenario in import_module(file).S.items()}


# Estimates


def compare_estimates(folder: Path, tally: Counter[str]) -> None:
    """Print what ``perfctl estimate`` says of each module of the README."""
    network: list[str] = []
    for line in (folder / "README.md").read_text().splitlines():
        if match := re.search(r"`(\w+)` \(`(--input.*?)`\):", line):
            network = [f"nets.py:{match[1]}", *match[2].split()]
        elif match := re.match(r"  (\w+)(?: \(\w+\))? +([\d,]+) (.*)", line):
            check = ["--layer", match[1], "--check", f"{match[2]} MAC"]
            answer = ask_estimate(folder, [*network, *check])
            if right := re.search(r"right ([\d,]+)", match[3]):
                is_right = f"Correct: {right[1]} MAC" in answer
                tally["estimate right" if is_right else "estimate differs"] += 1
            print(f"\n{network[0]} {match[1]}\n  truth: {match[2]} {match[3]}\n  says:  {answer}")
        elif match := re.match(r"(\w+) (--input \S+(?: --mode \w+)?) {2,}(.*)", line):
            extra = ["--batch", "4", "--device", "cpu", "--json"]
            answer = ask_estimate(folder, [f"odd.py:{match[1]}", *match[2].split(), *extra])
            with contextlib.suppress(ValueError):
                batch = json.loads(answer)["batches"]["4"]
                bound = "at least " * batch["forward"]["is_lower_bound"]
                answer = (
                    f"{bound}{batch['forward']['macs']:,} multiply-adds at batch 4, "
                    f"{batch['integer_macs']:,} of integers; {batch['parameters']:,} parameters"
                )
            print(f"\nodd.py:{match[1]} {match[2]}\n  truth: {match[3]}\n  says:  {answer}")


def ask_estimate(folder: Path, arguments: Sequence[str]) -> str:
    """Return what ``perfctl estimate`` prints, in one line."""
    command = [str(Path(sys.executable).with_name("perfctl")), "estimate", *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    return " ".join((result.stdout or result.stderr).split())


def main() -> int:
    parser = parser_for(__doc__, "cases")
    parser.add_argument("names", nargs="*", help="beginnings of scenarios; estimates: the modules")
    parser.add_argument("--sentences", action="store_true", help="print the causes' sentences too")
    arguments = parser.parse_args()
    folder = arguments.shared / "cases"
    if not folder.is_dir():
        print(f"skipped: no folder {folder}; --shared names the folder that holds cases")
        return 0
    cases = Cases(has_sentences=arguments.sentences)
    for name, scenario in load_scenarios(folder / "causes", cases).items():
        if arguments.names and not name.startswith(tuple(arguments.names)):
            continue
        try:
            with contextlib.suppress(FileNotFoundError):  # d06 reads 1.0's output again
                scenario()
        except Exception:
            # a scenario that cannot be analysed is a result, and the others are run
            cases.tally["ERROR"] += 1
            traceback.print_exc()
    if not arguments.names or "estimates" in arguments.names:
        compare_estimates(folder / "estimates", cases.tally)
    print("\n" + ", ".join(f"{outcome}: {n}" for outcome, n in sorted(cases.tally.items())))
    return int(bool({"ERROR", "contradictory", "estimate differs"} & {*cases.tally}))


if __name__ == "__main__":
    sys.exit(main())
