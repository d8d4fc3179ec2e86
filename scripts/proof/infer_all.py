"""Build every torchvision model that torchvision_infer knows, with random weights, and run one
image through each.

python scripts/proof/infer_all.py [FAMILY or MODEL ...]    default: classification

Prints one line per model; exit code 1 when one fails.
"""

from __future__ import annotations

import gc
import resource
import sys
import time

from torchvision import models

from perfctl.orchestrator.estimate.flops.engine import count_layer_calls
from perfctl.workloads.models import torchvision
from perfctl.workloads.models.torchvision import FAMILIES
from perfctl.workloads.run import loop
from perfctl.workloads.spec import WorkloadOptions, get_first_error_line

MODULES = dict(
    zip(FAMILIES, (models, models.segmentation, models.detection, models.video), strict=True)
)


def names(asked: list[str]) -> list[str]:
    """Models of the families and names that were asked for."""
    return [
        name
        for word in asked
        for name in (models.list_models(MODULES[word]) if word in MODULES else [word])
    ]


def one(name: str) -> str:
    """Run one image; return its line of output on success. Raises RuntimeError, OSError."""
    own = torchvision.Own(name, weights="none", images=1)
    record = loop.run_workload(
        torchvision, WorkloadOptions(batch_size=1, mode="infer", steps=1, warmup=1), own
    )
    step = next(row for row in record.steps if row.phase == "inference")
    flops = sum(call.flops or 0 for call in count_layer_calls(record.ops))
    parameters = sum(record.parameters.values())
    if not flops or not parameters:
        raise RuntimeError("there is no estimate")
    return (
        f"{parameters:,} parameters, {flops / 1e9:.2f} GFLOP on paper, "
        f"{(step.duration_ns or 0) / 1e6:.0f} ms"
    )


def main() -> int:
    failed = 0
    wanted = names(sys.argv[1:] or ["classification"])
    for name in wanted:
        start = time.monotonic()
        try:
            print(f"{name}: {one(name)} ({time.monotonic() - start:.1f} s)", flush=True)
        except (RuntimeError, OSError, MemoryError) as error:
            failed += 1
            print(f"{name}: FAILED: {get_first_error_line(error)}", flush=True)
        gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{len(wanted) - failed} of {len(wanted)} models ran; peak {peak:.1f} GB of host memory")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
