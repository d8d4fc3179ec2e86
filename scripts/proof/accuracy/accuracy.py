"""Accuracy and speed of ``perfctl estimate``: published figures, hand values and peers, each line
printed when it is known.

    python scripts/proof/accuracy/accuracy.py [--shared ../shared] [--all]

Nothing is downloaded: models are built without weights, on meta tensors, except the models for the
peers: these run on the CPU. Detection models, whose sizes depend on data, have a table of their
own: accuracy_detection.py. Peers (fvcore, torchinfo) are used if installed: perfctl[peers]. Exits 1
when a line misses its target.
"""

from __future__ import annotations

import argparse
import gc
import os
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
from accuracy_peers import side_by_side
from accuracy_steps import Line
from torch.utils.flop_counter import FlopCounterMode

from perfctl.orchestrator.estimate import session as estimation
from perfctl.orchestrator.estimate.memory import summarize_memory
from perfctl.workloads.tracing.recorder import make_optimizer, trace_step

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
        Line(
            "multiply-adds inside the published rounding",
            f"{right} of {count}",
            "109 of 109",
            right == count == 109,
        ),
        Line(
            "parameters as published",
            f"{parameters} of {count}",
            "109 of 109",
            parameters == count == 109,
        ),
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
    return Line(
        "forward and backward equal to the exact column",
        f"{right} of {count}",
        f"all {count}",
        right == count,
    )


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
    return Line(
        "layers and directions equal to hand values",
        f"{right} of {count}",
        f"all {count}",
        right == count,
    )


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


def tracked(model: Any, given: Any, target: Any, optimizer: str) -> int:
    """MemTracker's peak in bytes over the second of two steps."""
    from torch.distributed._tools.mem_tracker import MemTracker

    stepper = make_optimizer(model.train(), optimizer)
    tracker = MemTracker()
    tracker.track_external(model, stepper, given, *(() if target is None else (target,)))
    peak = 0
    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            stepper.zero_grad()
            output = model(given)
            ends = (
                [torch.nn.functional.nll_loss(output, target)]
                if target is not None
                else tensors(output)
            )
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
            del output, ends
            stepper.step()
            peak = next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]
    return int(peak)


def tensors(output: Any) -> list[Any]:
    return (
        [output]
        if isinstance(output, torch.Tensor)
        else [item for item in output if item is not None]
    )


def memory() -> list[Line]:
    """Peaks against torch's MemTracker, byte for byte."""
    equal, small = (
        0,
        [(batch, optimizer) for batch in (16, 64, 256) for optimizer in ("sgd", "adam")],
    )
    for batch, optimizer in small:
        one, other = (
            estimation.Session(estimation.Request("mnist_cnn")).source.model for _ in range(2)
        )
        given = torch.zeros((batch, 1, 28, 28), device="meta")
        target = torch.zeros(batch, dtype=torch.int64, device="meta")
        loss = partial(torch.nn.functional.nll_loss, target=target)
        mine = trace_step(
            one, (given,), optimizer=optimizer, loss=loss, held=(target,), memory=True
        ).memory
        equal += mine is not None and summarize_memory(mine).peak.bytes == tracked(
            other, given, target, optimizer
        )
    worst = 0.0
    for name in ("resnet18", "vgg16", "inception_v3"):
        for optimizer in ("sgd", "adam"):
            model, given = cases.build(name, "cls", train=True), cases.inputs(name, 32)
            theirs = tracked(model, given[0], None, optimizer)
            traced = trace_step(
                cases.build(name, "cls", train=True), given, optimizer=optimizer, memory=True
            )
            assert traced.memory is not None
            worst = max(worst, abs(summarize_memory(traced.memory).peak.bytes / theirs - 1))
    return [
        Line(
            "MNIST CNN peak equal to MemTracker (16, 64, 256; SGD, Adam)",
            f"{equal} of 6",
            "6 of 6",
            equal == 6,
        ),
        Line(
            "resnet18, vgg16, inception_v3 peak against MemTracker",
            f"{worst:.4%}",
            "<= 2 %",
            worst <= 0.02,
        ),
    ]


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
    yield from memory()
    print(
        "\n" + "\n".join(side_by_side(cases.published(folder) if there else [])) + "\n", flush=True
    )


def main() -> int:
    """Print the table; return 1 when a line misses its target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = Path(os.environ.get("PERFCTL_SHARED", Path(__file__).resolve().parents[4] / "shared"))
    parser.add_argument(
        "--shared", type=Path, default=shared, help="folder that holds datasets/peers"
    )
    parser.add_argument("--all", action="store_true", help="a line for every model too")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    begun, good = time.perf_counter(), True
    for line in parts(given.shared / "datasets" / "peers", given.all):
        print(line.text(), flush=True)
        good &= line.good
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"{time.perf_counter() - begun:.0f} s; peak memory of this process {peak:.2f} GB")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
