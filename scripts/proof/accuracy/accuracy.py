"""Accuracy and speed of ``perfctl estimate``: published figures and hand values, each line printed
when it is known.

    python scripts/proof/accuracy/accuracy.py [--shared ../shared] [--all]

Nothing is downloaded: models are built without weights, on meta tensors. Detection models, whose
sizes depend on data, have a table of their own: accuracy_detection.py. Other counters have
accuracy_against.py, memory accuracy_memory.py. Exits 1 when a line misses its target.
"""

from __future__ import annotations

import gc
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import accuracy_cases as cases
import torch
from accuracy_lines import Line, count_line, parser_for, print_lines
from torch.utils.flop_counter import FlopCounterMode

from perfctl.orchestrator.estimate import session as estimation
from perfctl.workloads.tracing.recorder import trace_step

LARGEST = "regnet_y_128gf"


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Result and wall time in seconds."""
    start = time.perf_counter()
    found = run()
    return found, time.perf_counter() - start


def counted(model: Any, given: tuple[Any, ...]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*given)
    return counter.get_total_flops()


def worked(model: Any, given: tuple[Any, ...]) -> estimation.Estimate:
    return estimation.estimate_from_trace(trace_step(model, given, mode="infer"))


def published(folder: Path, show: bool) -> list[Line]:
    """The non-detection torchvision models against ``_ops`` and ``num_params``, beside
    FlopCounterMode."""
    wanted = [case for case in cases.published(folder) if case.family != "detection"]
    right = parameters = 0
    ratios, theirs_right = [], 0
    for place, case in enumerate(wanted):
        model, given = (
            cases.build(case.name, case.family, train=False).eval(),
            cases.inputs(case.name, 1),
        )
        gc.collect()
        if place % 2:  # alternately: the second one finds warm caches
            found, mine = timed(partial(worked, model, given))
            flops, theirs = timed(partial(counted, model, given))
        else:
            flops, theirs = timed(partial(counted, model, given))
            found, mine = timed(partial(worked, model, given))
        good = (
            inside(found.forward.macs, case) and not found.forward.missing and found.problem is None
        )
        right, parameters = right + good, parameters + (found.parameters == case.parameters)
        theirs_right += inside(flops // 2, case)
        ratios.append(mine / theirs)
        if show or not good:
            print(
                f"{case.name:36}{case.gmac:12.3f}{found.forward.macs / 1e9:14.6f}{mine:8.3f}s"
                f"{theirs:8.3f}s  {good}"
            )
    count = len(wanted)
    return [
        count_line("multiply-adds inside the published rounding", right, count, 109),
        count_line("parameters as published", parameters, count, 109),
        Line(
            "  beside it: FlopCounterMode on meta",
            f"{theirs_right} of {count}",
            "",
            True,
            "FLOP/2, forward only",
        ),
        Line(
            "median time against FlopCounterMode",
            f"{statistics.median(ratios):.2f} x",
            "<= 1.5 x",
            statistics.median(ratios) <= 1.5,
            f"same model, same run; largest {max(ratios):.2f} x",
        ),
    ]


def inside(macs: int, case: cases.Published) -> bool:
    """Whether the figure rounds to the published one."""
    return abs(macs / 1e9 - case.gmac) <= cases.ROUNDING + 1e-12


def backward(folder: Path, show: bool) -> Line:
    """Training, batch 2, against the exact column."""
    families = {case.name: case.family for case in cases.published(folder)}
    right = count = 0
    for row in cases.rows(folder / "backward_flopcounter.csv"):
        name = row["model"]
        model = cases.build(name, families[name], train=True)
        found = estimation.estimate_from_trace(trace_step(model, cases.inputs(name, 2)))
        wanted = int(row["fwd_FLOP"]), int(row["bwd_exact_FLOP(groups fixed)"])
        good = (found.forward.flops, found.backward.flops) == wanted and found.problem is None
        count, right = count + 1, right + good
        if show or not good:
            print(
                f"{name:36} backward {found.backward.flops:,} wanted {wanted[1]:,} "
                f"{found.problem or ''} {good}"
            )
    return count_line("forward and backward equal to the exact column", right, count)


def layers(folder: Path) -> Line:
    """train_layers.csv, each layer and direction."""
    right = count = 0
    done: dict[str, dict[tuple[str, str], int]] = {}
    for row in cases.rows(folder / "train_layers.csv"):
        name = row["model"]
        if name not in done:
            make, shape = cases.HAND[name]
            with torch.device("meta"):
                found = estimation.estimate(make(), shape)
            done[name] = {
                (call.layer, call.direction): call.flops or 0 for call in found.calls if call.macs
            }
        for direction, column in (
            ("forward", "fwd"),
            ("grad_input", "bwd_input"),
            ("grad_weight", "bwd_weight"),
        ):
            count += 1
            mine, hand = (
                done[name].get((row["layer"], direction), 0),
                int(row[f"hand_{column}_FLOP"]),
            )
            right += mine == hand
            if mine != hand:
                print(f"{name} {row['layer']} {direction}: {mine:,}, by hand {hand:,}")
    return count_line("layers and directions equal to hand values", right, count)


def devices() -> Iterator[Line]:
    """LSTM, GRU, SDPA, MHA on CPU and meta, with and without gradients, in train and eval."""
    for name, (make, shape, macs) in cases.PROBES.items():
        found = {
            (device, mode, grad): estimation.estimate(
                make(), shape, device=device, mode=mode, grad=grad
            ).forward.macs
            for device in ("cpu", "meta")
            for mode in ("train", "infer")
            for grad in (True, False)
        }
        good = set(found.values()) == {macs}
        right = sum(value == macs for value in found.values())
        yield Line(
            f"{name} on CPU and meta, train and eval, grad and no_grad",
            f"{right} of 8",
            "8 of 8",
            good,
        )


def size_of_largest() -> Line:
    """Peak memory of a process that estimates the largest model, built from its name."""
    code = (
        "from perfctl.orchestrator.estimate import session as e; "
        f"e.Session(e.Request('torchvision:{LARGEST}')).estimate_batch(1);"
    )
    code += "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    size = int(done.stdout) * 1024
    return Line(
        f"peak memory for {LARGEST}, train", f"{size / 1e9:.2f} GB", "< 1.5 GB", size < 1.5e9
    )


def parts(folder: Path, show: bool) -> Iterator[Line]:
    """Every line of the table, one comparison after the other."""
    there = (folder / "torchvision_ops.csv").is_file()
    if not there:
        print(
            f"No published figures in {folder}: those lines are left out; say where they are with "
            "--shared"
        )
    yield from devices()
    yield size_of_largest()
    if there:
        yield layers(folder)
        yield from published(folder, show)
        yield backward(folder, show)


def main() -> int:
    """Print the table; return 1 when a line misses its target."""
    parser = parser_for(__doc__, "datasets/peers")
    parser.add_argument("--all", action="store_true", help="a line for every model too")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    begun = time.perf_counter()
    missed = print_lines(parts(given.shared / "datasets" / "peers", given.all))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"{time.perf_counter() - begun:.0f} s; peak memory of this process {peak:.2f} GB")
    return missed


if __name__ == "__main__":
    sys.exit(main())
