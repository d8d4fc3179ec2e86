"""Does `perfctl gate` catch what changed, by the quantity that names it, and keep still where
nothing did?

    python scripts/proof/gate_trials.py [--seeds 100] [--first 0] [--sessions STORE ...]
    [--clean 1000]

Each seed makes one change to a real input: to a model (built by a factory and estimated), or to a
recorded report (examples and tests/data, edited in its records). It is caught where the gate fails,
and its headline is about one of the quantities that the change names. Everything follows from the
seed's number. Clean comparisons read the same inputs once more; with stores of sessions of the same
code (`perfctl torch --repeat 5`, one store a session), sessions are compared with baselines of
others, by counts and by time.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.compare.gate import (
    FAILS,
    NOT_JUDGED,
    SESSIONS_MIN,
    TIME,
    WORSE,
    GateOutcome,
    MeasuredQuantities,
    append_new_session_if_unchanged,
    group_rows_by_study_quantity,
    judge_against_baseline,
)
from perfctl.orchestrator.compare.gate_quantities import (
    collect_model_quantities,
    collect_run_quantities,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.orchestrator.sides import load_comparison_side
from perfctl.records.paper import OpShape
from perfctl.records.report import Counter as Metric
from perfctl.records.report import Device, Kernel, MemoryFigure, Report, Step
from perfctl.records.run import Run

if TYPE_CHECKING:
    import torch
    from torch import nn


Edit = Callable[[Run, random.Random], Run]
ROOT = Path(__file__).resolve().parents[2]
GPU, CPU = ROOT / "examples/mnist_v100_study", ROOT / "tests/data/recorded-cpu"


@dataclass(frozen=True)
class Trial:
    """One seeded change, and what the gate said."""

    seed: int
    change: str
    names: tuple[str, ...]
    """Quantities that name it."""
    outcome: GateOutcome

    @property
    def first(self) -> str:
        """Quantity of the headline; "" where the gate passed."""
        return next(
            (cause.first.quantity for cause in group_rows_by_study_quantity(self.outcome, *FAILS)),
            "",
        )

    @property
    def caught(self) -> bool:
        return self.first in self.names


# --- models
# --------------------------------------------------------------------------------------------------

_EDIT: dict[str, Any] = {}
"""What the factory below builds."""


def network() -> nn.Module:
    """A small network: width, depth and slips as ``_EDIT`` says."""
    import torch
    from torch import nn

    width, hidden = _EDIT["width"], _EDIT["hidden"]

    class Net(nn.Module):
        """A convolution, some linear layers and a head."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(
                3, width, _EDIT.get("kernel", 3), padding=_EDIT.get("kernel", 3) // 2
            )
            bias = bool(_EDIT.get("bias"))
            self.body = nn.ModuleList(
                nn.Linear(hidden, hidden, bias) for _ in range(2 + _EDIT.get("deeper", 0))
            )
            self.into, self.head = (
                nn.Linear(width, hidden),
                nn.Linear(hidden, 10 + _EDIT.get("classes", 0)),
            )

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen = torch.relu(self.conv(images))
            if _EDIT.get("cast"):
                seen = seen.to(torch.float64).to(torch.float32)
            if _EDIT.get("copy"):
                seen = seen.clone()
            at = self.into(seen.mean((2, 3)))
            for _ in range(1 + _EDIT.get("again", 0)):
                for layer in self.body:
                    at = torch.relu(layer(at))
            found: torch.Tensor = self.head(torch.tanh(at) if _EDIT.get("activation") else at)
            return found

    return Net()


def _estimate(batch: int = 8, mode: str = "train", **edit: Any) -> MeasuredQuantities:
    _EDIT.clear()
    _EDIT.update(edit)
    sys.modules["perfctl_gate_trials"] = sys.modules[
        __name__
    ]  # by its path, the factory's file would be imported once more
    request = Request("perfctl_gate_trials:network", ("3x8x8",), mode, memory=True)
    return collect_model_quantities(estimate_model_for_batches(request, [batch]).batches)


def _model(name: str, *names: str) -> Callable[[int, random.Random], Trial]:
    def made(seed: int, dice: random.Random) -> Trial:
        given = {"width": dice.choice((8, 12, 16)), "hidden": dice.choice((16, 24, 32))}
        edits: Mapping[str, Mapping[str, Any]] = {
            "wider layer": {"hidden": given["hidden"] + dice.randint(1, 8)},
            "larger kernel": {"kernel": 5},
            "deeper": {"deeper": dice.randint(1, 2)},
            "cast": {"cast": True},
            "copy": {"copy": True},
            "layers run twice": {"again": 1},
            "activation": {"activation": True},
            "bias": {"bias": True},
            "wider head": {"classes": dice.randint(1, 20)},
            "batch": {"batch": 8 + dice.randint(1, 8)},
        }
        edit = {**given, **edits[name]}
        return Trial(
            seed,
            f"model: {name}",
            names,
            judge_against_baseline("model", _estimate(**given), _estimate(**edit), {}),
        )

    return made


# --- recorded reports
# --------------------------------------------------------------------------------------------------


@cache
def _recorded(path: Path) -> tuple[Run, ...]:
    return tuple(
        run
        for run in load_comparison_side(path, Path("none.db")).runs
        if run.status == "ok" and run.profiler != "none"
    )


def _kernels(run: Run, made: Sequence[Kernel]) -> Run:
    return replace(run, report=replace(run.report, kernels=list(made)))


def _extra(name: str | None = None) -> Edit:
    """One launch more: of a kernel that is there, or of another one with its grid."""

    def edit(run: Run, dice: random.Random) -> Run:
        free = 1 + max(kernel.launch for kernel in run.report.kernels)
        kernel = dice.choice(list(run.report.kernels))._replace(launch=free)
        named = kernel if name is None else kernel._replace(name=name, short_name=name)
        return _kernels(run, [*run.report.kernels, named])

    return edit


def _renamed(new: str) -> Edit:
    def edit(run: Run, dice: random.Random) -> Run:
        at = dice.randrange(len(run.report.kernels))
        every = [
            kernel._replace(name=new, short_name=new) if number == at else kernel
            for number, kernel in enumerate(run.report.kernels)
        ]
        return _kernels(run, every)

    return edit


def _fewer_steps(run: Run, dice: random.Random) -> Run:
    left = max(step.number for step in run.report.steps) - dice.randint(0, 1)
    return replace(
        run,
        report=replace(
            run.report, steps=tuple(one for one in run.report.steps if one.number < left)
        ),
    )


def _wider(run: Run, dice: random.Random) -> Run:
    layer = dice.choice(sorted({call.layer for call in run.layer_calls if call.flops}))
    calls = tuple(
        call._replace(flops=2 * call.flops) if call.layer == layer and call.flops else call
        for call in run.layer_calls
    )
    return replace(run, layer_calls=calls)


def _operations(run: Run, dice: random.Random) -> Run:
    ops = list(run.report.ops)
    at = dice.randrange(len(ops))
    ops[at] = replace(ops[at], calls=ops[at].calls + 1)
    return replace(run, report=replace(run.report, ops=ops))


def _field(name: str, value: str) -> Edit:
    return lambda run, dice: replace(run, **{name: value})


def _batch(run: Run, dice: random.Random) -> Run:
    return replace(run, batch_size=(run.batch_size or 0) * 3)


def _run(path: Path, name: str, edit: Edit, *names: str) -> Callable[..., Trial]:
    def draw(dice: random.Random) -> list[Run]:
        every = _recorded(path)
        if path == CPU:
            every = tuple(run for run in every if run.profiler == "torch")
        batch = dice.choice(sorted({run.batch_size or 0 for run in every}))
        return [run for run in every if run.batch_size == batch]

    return _edited(draw, name, edit, *names)


def _gpu(name: str, counted: bool, edit: Edit, *names: str) -> Callable[..., Trial]:
    return _edited(lambda dice: [gpu_step(counted)], name, edit, *names)


def _edited(
    draw: Callable[[random.Random], list[Run]], name: str, edit: Edit, *names: str
) -> Callable[..., Trial]:
    def made(seed: int, dice: random.Random) -> Trial:
        before = draw(dice)
        after = [edit(run, dice) for run in before]
        return Trial(
            seed,
            f"recording: {name}",
            names,
            judge_against_baseline(
                "runs", collect_run_quantities(before), collect_run_quantities(after), {}
            ),
        )

    return made


ROWS, MLP = 512, (784, 1024, 512, 256)
"""Rows of a batch, and widths of the linear layers of the step below."""
TILE = (128, 64)
FP = ("ffma", "fmul", "fadd", "dfma", "dmul", "dadd", "hfma", "hmul", "hadd")


@cache
def gpu_step(counted: bool) -> Run:
    """SYNTHETIC, and no profiler ran: a forward step of linear layers, one cuBLAS kernel each,
    every number from the dimensions.

    counted: with counters, as ncu gives them; else with the peak of the allocator, as nsys or
    torch do.
    """
    ops, kernels, counters, blocks = [], [], [], []
    for at, (inside, out) in enumerate(pairwise(MLP)):
        layer, name = f"fc{at + 1}", f"ampere_sgemm_{TILE[0]}x{TILE[1]}_tn"
        shapes = ((out,), (ROWS, inside), (inside, out))
        ops.append(
            OpShape(
                layer,
                "Linear",
                "aten.addmm",
                "forward",
                shapes,
                ((ROWS, out),),
                ("float32",) * 4,
                position=at,
            )
        )
        blocks.append((out // TILE[0], ROWS // TILE[1], 1))
        kernels.append(
            Kernel(
                at,
                name,
                name,
                layer,
                "forward",
                0,
                "range",
                grid_x=blocks[at][0],
                grid_y=blocks[at][1],
                grid_z=1,
                block_x=128,
                block_y=1,
                block_z=1,
                start_ns=1000 * at,
                duration_ns=900,
            )
        )
        executed = {"ffma": ROWS * out * inside, "fmul": ROWS * out}
        counters += [
            Metric(
                at,
                f"smsp__sass_thread_inst_executed_op_{one}_pred_on.sum",
                executed.get(one, 0),
                "inst",
            )
            for one in FP
        ]
        counters += [
            Metric(at, "sm__inst_executed_pipe_tensor.sum", 0, "inst"),
            Metric(at, "dram__bytes_read.sum", 4 * (ROWS * inside + inside * out), "byte"),
            Metric(at, "dram__bytes_write.sum", 4 * ROWS * out, "byte"),
        ]
    tool, memory = (
        ("ncu", ()) if counted else ("torch", (MemoryFigure("peak", "allocated", 50_000_000),))
    )
    report = Report(
        tool,
        Path("synthetic"),
        "synthetic",
        kernels=kernels,
        counters=counters if counted else [],
        ops=tuple(ops),
        steps=(Step(0, "step", None, 5000),),
        memory=memory,
    )
    gpu = Device("NVIDIA A100-SXM4-40GB", "gpu", compute_capability="8.0", sm_count=108)
    return Run(
        1,
        1,
        "synthetic",
        None,
        None,
        tool,
        None,
        "mlp",
        ROWS,
        "infer",
        "fp32",
        gpu,
        "ok",
        "synthetic",
        0,
        None,
        None,
        None,
        None,
        None,
        report,
    )


def _counter(part: str, least: float, most: float) -> Edit:
    """A counter of one launch, so many times as large."""

    def edit(run: Run, dice: random.Random) -> Run:
        counters = list(run.report.counters)
        at = dice.choice([place for place, one in enumerate(counters) if part in one.name])
        factor = dice.uniform(least, most)
        counters[at] = counters[at]._replace(value=int((counters[at].value or 0) * factor))
        return replace(run, report=replace(run.report, counters=counters))

    return edit


def _grid(**sides: Sequence[int]) -> Edit:
    """The grid of one launch, so many times as large in a direction."""

    def edit(run: Run, dice: random.Random) -> Run:
        kernels = list(run.report.kernels)
        at = dice.randrange(len(kernels))
        times = {
            side: getattr(kernels[at], side) * dice.choice(factors)
            for side, factors in sides.items()
        }
        kernels[at] = kernels[at]._replace(**times)
        return _kernels(run, kernels)

    return edit


def _more_memory(run: Run, dice: random.Random) -> Run:
    factor = 1.02 + dice.random()
    figures = tuple(one._replace(bytes=int(one.bytes * factor)) for one in run.report.memory)
    return replace(run, report=replace(run.report, memory=figures))


def _slower(seed: int, dice: random.Random) -> Trial:
    """Times of known spread: sessions vary by 2 %, and the new one is 1.4 to 2 times as slow."""
    (base, *_), factor = (
        [run for run in _recorded(CPU) if run.profiler == "torch"],
        1.4 + 0.6 * dice.random(),
    )
    held = _scaled(base, dice.gauss(1, 0.02))
    for _ in range(7):
        held = append_new_session_if_unchanged(held, _scaled(base, dice.gauss(1, 0.02)), {})
    return Trial(
        seed,
        "recording: slower",
        (TIME,),
        judge_against_baseline("runs", held, _scaled(base, factor * dice.gauss(1, 0.02)), {}),
    )


def _scaled(run: Run, factor: float) -> MeasuredQuantities:
    measured = collect_run_quantities([run])
    places = {
        place: {
            name: (float(f"{value[0] * factor:.5g}"),)
            if name == TIME and isinstance(value, tuple)
            else value
            for name, value in values.items()
        }
        for place, values in measured.places.items()
    }
    return replace(measured, places=places)


CHANGES: Sequence[Callable[[int, random.Random], Trial]] = (
    _model("wider layer", "flops"),
    _model("larger kernel", "flops"),
    _model("deeper", "flops"),
    _model("wider head", "flops"),
    _model("layers run twice", "flops"),
    _model("cast", "cast_bytes"),
    _model("copy", "copied_bytes"),
    _model("activation", "operations"),
    _model("batch", "setup"),
    _run(GPU, "a launch more", _extra(), "launches"),
    _run(
        GPU,
        "a cast kernel",
        _extra(
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>()"
        ),
        "launches",
        "algorithm",
    ),
    _run(
        GPU,
        "a lost fusion",
        _extra(
            "void at::native::vectorized_elementwise_kernel"
            "<4, at::native::CUDAFunctor_add<float>>(int)"
        ),
        "launches",
        "algorithm",
    ),
    _run(
        GPU,
        "another algorithm",
        _renamed("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"),
        "algorithm",
    ),
    _run(GPU, "another kernel", _renamed("my_own_kernel(float *)"), "kernels", "algorithm"),
    _run(GPU, "another precision", _field("precision", "tf32"), "setup"),
    _run(GPU, "another batch", _batch, "setup"),
    _run(CPU, "another mode", _field("mode", "infer"), "setup"),
    _run(CPU, "other options", _field("variant", "--conv2 32,128,3,1"), "setup"),
    _run(CPU, "fewer steps", _fewer_steps, "steps"),
    _run(CPU, "twice the FLOPs of a layer", _wider, "flops"),
    _run(CPU, "one more operation", _operations, "operations"),
    _slower,
    _model("bias", "parameters"),
    _gpu("twice the multiply-adds counted", True, _counter("_op_ffma_", 2, 2), "counted_flops"),
    _gpu("a multiply for each value", True, _counter("_op_fmul_", 1.5, 3), "counted_flops"),
    _gpu("more traffic of DRAM", True, _counter("dram__bytes_read", 1.5, 4), "dram_bytes"),
    _gpu("a sum in several parts", False, _grid(grid_z=(2, 4)), "derived_flops"),
    _gpu("a larger grid", False, _grid(grid_x=(2, 4), grid_y=(1, 2)), "threads"),
    _gpu("more memory allocated", False, _more_memory, "allocated"),
)


def trial(seed: int) -> Trial:
    """The change of this number, judged."""
    return CHANGES[seed % len(CHANGES)](seed, random.Random(seed))  # noqa: S311


# --- nothing changed
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clean:
    """Comparisons of the same code."""

    comparisons: int
    by_counts: int
    """Comparisons that failed by anything but time."""
    by_time: int
    judged: int
    """Comparisons in which a time was judged at all."""
    times: int
    """Times judged, in all of them."""


def clean(
    sessions: Sequence[MeasuredQuantities],
    again: Sequence[Callable[[], MeasuredQuantities]],
    count: int,
    seed: int = 0,
) -> Clean:
    """``count`` comparisons: inputs read once more in turn (once each where there are sessions),
    else sessions with others.

    Of sessions, the baseline holds 5 to 8 drawn from all but the judged one, in a drawn order: no
    drift is assumed.
    """
    dice, seen = random.Random(seed), Counter[str]()  # noqa: S311
    first = [read() for read in again]
    outcomes = []
    for number in range(count):
        if len(sessions) <= SESSIONS_MIN or number < 2 * len(again):
            at = number % len(again)
            outcomes.append(judge_against_baseline("again", first[at], again[at](), {}))
            continue
        drawn = dice.sample(sessions, min(len(sessions), dice.randint(SESSIONS_MIN, 8) + 1))
        held = drawn[0]
        for one in drawn[1:-1]:
            held = append_new_session_if_unchanged(held, one, {})
        outcomes.append(judge_against_baseline("session", held, drawn[-1], {}))
    for one in outcomes:
        failed = {row.quantity for row in one.of(*FAILS)}
        timed = [row for row in one.rows if row.quantity == TIME and row.result != NOT_JUDGED]
        seen["counts"] += bool(failed - {TIME})
        seen["time"] += bool([row for row in timed if row.result == WORSE])
        seen["judged"] += bool(timed)
        seen["times"] += len(timed)
    return Clean(len(outcomes), seen["counts"], seen["time"], seen["judged"], seen["times"])


def _again() -> list[Callable[[], MeasuredQuantities]]:
    return [
        *(
            lambda path=path: collect_run_quantities(
                load_comparison_side(path, Path("none.db")).runs
            )
            for path in (GPU, CPU)
        ),  # type: ignore[misc]
        lambda: _estimate(width=8, hidden=16),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--clean", type=int, default=1000)
    parser.add_argument("--sessions", type=Path, nargs="*", default=())
    given = parser.parse_args()
    caught, tried = Counter[str](), Counter[str]()
    named: dict[str, Counter[str]] = {}
    missed = []
    for seed in range(given.first, given.first + given.seeds):
        found = trial(seed)
        tried[found.change] += 1
        caught[found.change] += found.caught
        named.setdefault(found.change, Counter())[found.first or "passed"] += 1
        if not found.caught:
            missed.append(
                f"seed {seed}, {found.change}: {found.first or 'passed'}, not "
                f"{' or '.join(found.names)}"
            )
    print(f"{'change':44}{'seeds':>6}{'caught':>8}  named by")
    for change, count in tried.items():
        print(f"{change:44}{count:6}{caught[change]:8}  {', '.join(named[change])}")
    print(f"{'all':44}{tried.total():6}{caught.total():8}")
    print("\n".join(missed))
    if given.clean:
        sessions = [
            collect_run_quantities(load_comparison_side(store, store).runs)
            for store in given.sessions
        ]
        still = clean(sessions, _again(), given.clean)
        print(
            f"{still.comparisons:,} comparisons of the same code, {len(sessions)} sessions: "
            f"{still.by_counts} alarms from counts;"
        )
        print(
            f"{still.by_time} from time, of {still.judged:,} in which a time was judged "
            f"({still.times:,} times)"
        )
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
