"""Cost of annotation: a training step on the CPU with layer ranges, compared with the same step
without, in one process.

Steps alternate (plain, annotated, plain, ...), so that other work on the machine affects both. The
figure is the median over pairs of the ratio of their CPU times (all threads of the process), which
other work on the machine disturbs least. Ranges go to NVTX without a profiler, so its own cost is
not included. For record_function the cost of torch.profiler would hide everything else, so no
profiler is attached there either, and the range itself, 1 to 3 microseconds, is not in the figure.
glibc is set to keep its memory: otherwise page faults vary by several hundred microseconds from
step to step, with or without annotation.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

FEWEST = 30
REACH = 0.02
"""The share of a step that annotation may cost."""
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
CASES = (("mnist_cnn", 64), ("resnet18", 8))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one row per workload and backend."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="for each row and repeat, but at least 30 pairs (default 20)",
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="how often each row is measured (default 1)"
    )
    parser.add_argument(
        "--batch", type=int, help="another batch size: at 1 the added time stands out most"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    parser.add_argument("--only", default="", help="only workloads whose name holds this text")
    asked = parser.parse_args(arguments)
    import torch

    warnings.filterwarnings("ignore", message="CUDA initialization")
    torch.set_num_threads(asked.threads)
    print(
        "annotation of a training step on the CPU; cost = annotated / plain - 1, median over "
        "pairs, at most 2 %",
        flush=True,
    )
    print(
        "workload   batch  ranges           threads  pairs  CPU ms    added ms  cost      "
        "quarter..quarter",
        flush=True,
    )
    for name, batch in CASES:
        if asked.only in name:
            for kind in ("nvtx", "record_function"):
                for _ in range(asked.repeats):
                    print(_row(name, asked.batch or batch, kind, asked), flush=True)


def _row(name: str, batch: int, kind: str, asked: argparse.Namespace) -> str:
    from perfctl.workloads.run.clock import make_range_backend
    from perfctl.workloads.spec import WorkloadError

    try:
        backend = make_range_backend(kind)
    except WorkloadError as error:
        return f"{name:<10} {batch:>5}  {kind:<16} not measured: {error}"
    model, step = training_step(name, batch)
    plain, ratios = compare(model, step, backend, asked.seconds)
    low, middle, high = statistics.quantiles(ratios, n=4)
    verdict = (
        "ok"
        if middle - 1 <= REACH
        else "missed"
        if _surely_above(ratios)
        else "not decided: too few pairs"
    )
    return (
        f"{name:<10} {batch:>5}  {kind:<16} {asked.threads:>7}  {len(ratios):>5}  "
        f"{plain * 1e3:>8.2f}  {(middle - 1) * plain * 1e3:>8.3f}  "
        f"{middle - 1:>+7.2%}  {low - 1:+.2%}..{high - 1:+.2%}  {verdict}"
    )


def _surely_above(ratios: list[float]) -> bool:
    """Whether the whole 95 % interval of the median (by ranks, for any distribution) is above
    the limit."""
    rank = int(len(ratios) / 2 - 0.98 * len(ratios) ** 0.5)
    return sorted(ratios)[max(0, rank)] - 1 > REACH


def training_step(name: str, batch: int) -> tuple[Any, Callable[[], None]]:
    """(model, one step of it on fixed random data)."""
    import torch

    if name == "mnist_cnn":
        from perfctl.workloads.models.mnist_cnn import build_mnist_cnn

        model, inputs, classes = build_mnist_cnn(), torch.rand(batch, 1, 28, 28), 10
    else:
        import torchvision

        model, inputs, classes = (
            torchvision.models.get_model(name),
            torch.rand(batch, 3, 224, 224),
            1000,
        )
    targets = torch.randint(classes, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return model, step


def compare(
    model: Any, step: Callable[[], None], backend: Any, seconds: float
) -> tuple[float, list[float]]:
    """(median plain CPU seconds, annotated / plain of each pair), at least FEWEST pairs; which one
    goes first alternates."""
    from perfctl.workloads.run.annotate import LayerRangeAnnotator

    annotator = LayerRangeAnnotator(backend, model)

    def timed(annotated: bool) -> float:
        around: AbstractContextManager[Any] = annotator if annotated else nullcontext()
        with around:
            start = time.process_time()
            step()
            return time.process_time() - start

    for annotated in (False, True) * 3:
        timed(annotated)
    plain: list[float] = []
    ratios: list[float] = []
    gc.collect()
    end = time.perf_counter() + seconds
    while len(ratios) < FEWEST or time.perf_counter() < end:
        first = len(ratios) % 2 == 1
        times = {annotated: timed(annotated) for annotated in (first, not first)}
        plain.append(times[False])
        ratios.append(times[True] / times[False])
    return statistics.median(plain), ratios


if __name__ == "__main__":
    if KEEP_MEMORY.items() <= os.environ.items():
        sys.exit(main())
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})  # noqa: S606
