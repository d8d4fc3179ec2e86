"""How right and how fast ``perfctl estimate`` is: one table against published figures, hand values and peers.

    python scripts/accuracy.py [--shared ../shared] [--all] [--without-detection]

Nothing is downloaded: models are built without weights, on meta tensors, except the detection models, whose sizes
depend on data and which run on the CPU. Peers (fvcore, torchinfo) take part when installed: perfctl[peers].
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accuracy_cases as cases
import torch
from accuracy_peers import PEERS, Peers, compare, installed
from torch.utils.flop_counter import FlopCounterMode

from perfctl import estimation
from perfctl.orchestrator.analyse.memory import memory_of
from perfctl.workloads.trace import make_optimizer, trace

LARGEST = "regnet_y_128gf"


@dataclass
class Line:
    """One line of the table."""

    what: str
    reached: str
    wanted: str
    good: bool
    note: str = ""


def best(run: Callable[[], Any], times: int = 2) -> tuple[Any, float]:
    """Result and the shorter of ``times`` wall times in seconds."""
    found, seconds = None, []
    for _ in range(times):
        gc.collect()
        start = time.perf_counter()
        found = run()
        seconds.append(time.perf_counter() - start)
    return found, min(seconds)


def counted(model: Any, given: tuple[Any, ...]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*given)
    return counter.get_total_flops()


def worked(model: Any, given: tuple[Any, ...]) -> estimation.Estimate:
    return estimation.from_trace(trace(model, given, mode="infer"))


def published(folder: Path, show: bool) -> list[Line]:
    """The non-detection torchvision models against ``_ops`` and ``num_params``, beside FlopCounterMode."""
    wanted = [case for case in cases.published(folder) if case.family != "detection"]
    right = parameters = 0
    ratios, peers = [], Peers()
    for case in wanted:
        model, given = cases.build(case.name, case.family, train=False).eval(), cases.inputs(case.name, 1)
        found, mine = best(lambda: worked(model, given))  # noqa: B023
        flops, theirs = best(lambda: counted(model, given))  # noqa: B023
        good = abs(found.forward.macs / 1e9 - case.gmac) <= cases.ROUNDING + 1e-12 and not found.forward.unknown
        right, parameters = right + good, parameters + (found.parameters == case.parameters)
        ratios.append(mine / theirs)
        compare(peers, case, model, given, flops // 2, theirs)
        if show or not good:
            print(f"{case.name:36}{case.gmac:12.3f}{found.forward.macs / 1e9:14.6f}{mine:8.3f}s{theirs:8.3f}s  {good}")
    count = len(wanted)
    lines = [
        Line("multiply-adds inside the published rounding", f"{right} of {count}", "109 of 109", right == count == 109),
        Line("parameters as published", f"{parameters} of {count}", "109 of 109", parameters == count == 109),
        Line("median time against FlopCounterMode", f"{statistics.median(ratios):.2f} x", "<= 1.5 x",
             statistics.median(ratios) <= 1.5, f"largest {max(ratios):.2f} x"),
    ]  # fmt: skip
    for name in ("FlopCounterMode", *PEERS):
        seconds = peers.seconds.get(name, [])
        note = f"median {statistics.median(seconds):.3f} s, answered for {len(seconds)}" if seconds else "no answer"
        reached = f"{peers.inside.get(name, 0)} of {peers.tried}" if seconds else "-"
        lines.append(
            Line(f"  beside it: {name}", reached, "", True, note if seconds or installed(name) else "not installed")
        )
    return lines


def backward(folder: Path, show: bool) -> Line:
    """Training, batch 2, against the exact column."""
    families = {case.name: case.family for case in cases.published(folder)}
    right = count = 0
    for row in cases.rows(folder / "backward_flopcounter.csv"):
        name = row["model"]
        model = cases.build(name, families[name], train=True)
        found = estimation.from_trace(trace(model, cases.inputs(name, 2)))
        wanted = int(row["fwd_FLOP"]), int(row["bwd_exact_FLOP(groups fixed)"])
        good = (found.forward.flops, found.backward.flops) == wanted and found.problem is None
        count, right = count + 1, right + good
        if show or not good:
            print(f"{name:36} backward {found.backward.flops:,} wanted {wanted[1]:,} {found.problem or ''} {good}")
    return Line("forward and backward equal to the exact column", f"{right} of {count}", f"all {count}", right == count)


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
            done[name] = {(call.layer, call.direction): call.flops or 0 for call in found.calls if call.macs}
        for direction, column in (("forward", "fwd"), ("grad_input", "bwd_input"), ("grad_weight", "bwd_weight")):
            count += 1
            mine, hand = done[name].get((row["layer"], direction), 0), int(row[f"hand_{column}_FLOP"])
            right += mine == hand
            if mine != hand:
                print(f"{name} {row['layer']} {direction}: {mine:,}, by hand {hand:,}")
    return Line("layers and directions equal to hand values", f"{right} of {count}", f"all {count}", right == count)


def devices() -> list[Line]:
    """LSTM, GRU, SDPA, MHA on CPU and meta, with and without gradients, in train and eval."""
    lines = []
    for name, (make, shape, macs) in cases.PROBES.items():
        found = {
            (device, mode, grad): estimation.estimate(make(), shape, device=device, mode=mode, grad=grad).forward.macs
            for device in ("cpu", "meta") for mode in ("train", "infer") for grad in (True, False)
        }  # fmt: skip
        good = set(found.values()) == {macs}
        right = sum(value == macs for value in found.values())
        lines.append(Line(f"{name} on CPU and meta, train and eval, grad and no_grad", f"{right} of 8", "8 of 8", good))
    return lines


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
            ends = [torch.nn.functional.nll_loss(output, target)] if target is not None else tensors(output)
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
            del output, ends
            stepper.step()
            peak = next(iter(tracker.get_tracker_snapshot("peak").values()))["Total"]
    return int(peak)


def tensors(output: Any) -> list[Any]:
    return [output] if isinstance(output, torch.Tensor) else [item for item in output if item is not None]


def memory() -> list[Line]:
    """Peaks against torch's MemTracker, byte for byte."""
    session = estimation.Session(estimation.Request("mnist_cnn"))
    equal, small = 0, [(batch, optimizer) for batch in (16, 64, 256) for optimizer in ("sgd", "adam")]
    for batch, optimizer in small:
        mine = estimation.Session(estimation.Request("mnist_cnn", optimizer=optimizer, memory=True)).at(batch)
        given = torch.zeros((batch, 1, 28, 28), device="meta")
        target = torch.zeros(batch, dtype=torch.int64, device="meta")
        session.source.model.zero_grad()
        theirs = tracked(session.source.model, given, target, optimizer)
        equal += mine.memory is not None and mine.memory.peak.bytes == theirs
    worst = 0.0
    for name in ("resnet18", "vgg16", "inception_v3"):
        for optimizer in ("sgd", "adam"):
            model, given = cases.build(name, "cls", train=True), cases.inputs(name, 32)
            theirs = tracked(model, given[0], None, optimizer)
            traced = trace(cases.build(name, "cls", train=True), given, optimizer=optimizer, memory=True)
            assert traced.memory is not None
            worst = max(worst, abs(memory_of(traced.memory).peak.bytes / theirs - 1))
    return [
        Line("MNIST CNN peak equal to MemTracker (16, 64, 256; SGD, Adam)", f"{equal} of 6", "6 of 6", equal == 6),
        Line("resnet18, vgg16, inception_v3 peak against MemTracker", f"{worst:.4%}", "<= 2 %", worst <= 0.02),
    ]


SEEDS = (0, 1, 2)


def detection(folder: Path, show: bool) -> Line:
    """Real forwards on the CPU with random weights: the number of boxes, and so of FLOPs, depends on data."""
    right, marked, count, once = 0, 0, 0, []
    for case in cases.published(folder):
        if case.family != "detection":
            continue
        found = [detected(case, seed) for seed in SEEDS]
        good = [abs(one.forward.macs / 1e9 - case.gmac) <= cases.ROUNDING + 1e-12 for one in found]
        count, right = count + 1, right + any(good)
        marked += not any(good) and all(one.data_dependent for one in found)
        if any(good) and not all(good):
            once.append(f"{case.name} for {sum(good)} of {len(SEEDS)} seeds")
        if show or not all(good):
            values = ", ".join(f"{one.forward.macs / 1e9:.6f}" for one in found)
            print(f"{case.name:36}{case.gmac:12.3f}  {values}  {any(good)} {found[0].problem or ''}")
    good_line = right >= 8 and right + marked == count
    note = "; ".join([f"{marked} marked data-dependent", *once])
    return Line("detection models inside the rounding", f"{right} of {count}", "8 of 12", good_line, note)


def detected(case: cases.Published, seed: int) -> estimation.Estimate:
    """One forward of one 512 x 512 image of noise."""
    torch.manual_seed(seed)
    model = cases.build(case.name, case.family, train=False, device="cpu")
    return estimation.from_trace(trace(model, (list(torch.randn((1, 3, 512, 512))),), mode="infer"))


def size_of_largest() -> Line:
    """Peak memory of a process that works out the largest model, built from its name."""
    code = f"from perfctl import estimation as e; e.Session(e.Request('torchvision:{LARGEST}')).at(1);"
    code += "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    size = int(done.stdout) * 1024
    return Line(f"peak memory for {LARGEST}, train", f"{size / 1e9:.2f} GB", "< 1.5 GB", size < 1.5e9)


def main() -> int:
    """Print the table; 1 when a line falls short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("PERFCTL_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    parser.add_argument("--shared", type=Path, default=shared, help="folder that holds datasets/peers")
    parser.add_argument("--all", action="store_true", help="a line for every model too")
    parser.add_argument("--without-detection", action="store_true", help="leave out the slow part")
    given = parser.parse_args()
    folder = given.shared / "datasets" / "peers"
    if not (folder / "torchvision_ops.csv").is_file():
        print(f"no published figures in {folder}: say where with --shared", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")
    lines = [*published(folder, given.all), backward(folder, given.all), layers(folder), *devices(), *memory()]
    lines.append(size_of_largest())
    if not given.without_detection:
        lines.append(detection(folder, given.all))
    print()
    for line in lines:
        mark = "" if not line.wanted else "yes" if line.good else "NO"
        print(f"{line.what:62}{line.reached:>14}{line.wanted:>14}{mark:>5}  {line.note}".rstrip())
    print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.2f} GB")
    return 0 if all(line.good for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
