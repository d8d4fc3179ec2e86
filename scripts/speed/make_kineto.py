"""A synthetic Kineto trace of any size: ``python scripts/speed/make_kineto.py KERNELS OUT.json``

As torch.profiler writes it on a GPU since 2024: an operation, its launch call, the kernel and a
pair of flow events for each kernel, 300 kernels a step, one copy a step. About 1.6 kB a kernel:
70,000 make 111 MB.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_nsys import kernel_names

PROCESS, AUTOGRAD = 4242, 4300
OPERATIONS = (
    "aten::conv2d",
    "aten::addmm",
    "aten::relu",
    "aten::add_",
    "aten::mm",
    "aten::sum",
    "aten::copy_",
)
SHAPES = {
    "Concrete Inputs": ["", "", "", "[1, 1]", "[0, 0]"],
    "Input type": ["float", "float", "float", "ScalarList", "ScalarList"],
    "Input Strides": [[21632, 676, 26, 1], [288, 9, 3, 1], [1], [], []],
    "Input Dims": [[64, 32, 26, 26], [64, 32, 3, 3], [64], [], []],
}
HEAD = {
    "schemaVersion": 1,
    "deviceProperties": [
        {
            "id": 0,
            "name": "Synthetic GPU",
            "totalGlobalMem": 85899345920,
            "computeMajor": 9,
            "computeMinor": 0,
            "numSms": 100,
            "warpSize": 32,
        }
    ],
    "with_flops": 0,
    "record_shapes": 1,
    "baseTimeNanoseconds": 1790000000000000000,
    "displayTimeUnit": "ms",
}


def events(count: int) -> Iterator[dict[str, Any]]:
    """All events of the trace, in the order in which Kineto writes them."""
    chance = random.Random(5)  # noqa: S311
    names = [name for _, name in kernel_names()]
    slots = [(chance.randrange(60), round(chance.uniform(1, 9), 3)) for _ in range(300)]
    yield {
        "ph": "M",
        "name": "process_name",
        "ts": 0.0,
        "pid": PROCESS,
        "tid": 0,
        "args": {"name": "python"},
    }
    now, free = 4_333_126_486.716, 0.0
    for number in range(count):
        place = number % 300
        external, correlation = number * 2 + 2, number + 1000
        if place == 0:
            at = {"pid": PROCESS, "tid": PROCESS, "ts": round(now, 3), "dur": 300 * 9.0}
            args = {"External id": external - 1, "Record function id": 0, "Ev Idx": number * 2}
            yield {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{number // 300}",
                **at,
                "args": args,
            }
            now += 2
        name, duration = slots[place]
        host = {"pid": PROCESS, "tid": AUTOGRAD if 100 <= place < 200 else PROCESS}
        gpu = {"pid": 0, "tid": 7}
        start = max(now + 7, free + 0.8)
        free = start + duration
        args = {
            "External id": external,
            "Record function id": 0,
            **SHAPES,
            "Ev Idx": number * 2 + 1,
        }
        at = {**host, "ts": round(now, 3), "dur": 8.214}
        yield {
            "ph": "X",
            "cat": "cpu_op",
            "name": OPERATIONS[name % len(OPERATIONS)],
            **at,
            "args": args,
        }
        args = {"External id": external, "cbid": 211, "correlation": correlation}
        at = {**host, "ts": round(now + 2.5, 3), "dur": 4.731}
        yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **at, "args": args}
        flow = {"id": correlation, "cat": "ac2g", "name": "ac2g"}
        yield {"ph": "s", **flow, **host, "ts": round(now + 2.5, 3)}
        args = {
            "External id": external,
            "queued": 0,
            "device": 0,
            "context": 1,
            "stream": 7,
            "correlation": correlation,
            "registers per thread": 64,
            "shared memory": 16384,
            "blocks per SM": 2.0,
            "warps per SM": 16.0,
            "grid": [264, 1, 1],
            "block": [256, 1, 1],
            "est. achieved occupancy %": 25,
        }
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": names[name],
            **gpu,
            "ts": round(start, 3),
            "dur": duration,
            "args": args,
        }
        yield {"ph": "f", **flow, **gpu, "ts": round(start, 3), "bp": "e"}
        now += 9


def make(count: int, out: Path) -> None:
    """Write the trace; one that is there is replaced. White space is Kineto's: members of an event
    on their own lines."""
    with out.open("w", encoding="utf-8") as file:
        file.write(json.dumps(HEAD, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        for number, event in enumerate(events(count)):
            args = event.pop("args", None)
            lines = [f'    "{key}": {json.dumps(value)}' for key, value in event.items()]
            if args is not None:
                lines.append(f'    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}')
            file.write((",\n" if number else "") + "  {\n" + ",\n".join(lines) + "\n  }")
        file.write('\n  ],\n  "traceName": "synthetic.json"\n}\n')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", type=int)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    make(asked.kernels, asked.out)
