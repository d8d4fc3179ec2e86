"""A synthetic nsys SQLite export of any size:
``python scripts/speed/make_nsys.py KERNELS OUT.sqlite``

A training loop as perfctl annotates it: step > phase > block > layer on the main thread, the
backward ranges of blocks and layers on autograd's own thread. 480 kernels and 94 ranges a step, 60
kernel names. It has the tables and columns of schema 3.0.0 (nsys 2022.4) that perfctl and
``nsys stats`` read. All values are made up, and the same every time.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

BLOCKS, LAYERS_A_BLOCK, KERNELS_A_LAYER = 10, 2, 8
KERNELS_A_STEP = 3 * BLOCKS * LAYERS_A_BLOCK * KERNELS_A_LAYER
PHASES = ("forward", "backward", "optimizer")
PROCESS = 1 << 48 | 4242 << 24
MAIN, AUTOGRAD = PROCESS | 4242, PROCESS | 4300
LAUNCH_NS, LATENCY_NS = 6_500, 2_500

TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER);
CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
CREATE TABLE EXPORT_META_DATA (name TEXT NOT NULL PRIMARY KEY, value TEXT);
INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_SCHEMA_VERSION', '3.0.0'), ('EXPORT_PRODUCT_VERSION', '2022.4.2.1');
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER,
    smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER, cuDevice INTEGER);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'Synthetic GPU', 85899345920, 2000000000000, 1500000000, 100, 9, 0, 0);
CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER, startTime INTEGER, stopTime INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER,
    color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,
    uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER,
    floatValue REAL, jsonTextId INTEGER, jsonText TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
    mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER, gridX INTEGER,
    gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER,
    dynamicSharedMemory INTEGER, localMemoryPerThread INTEGER, localMemoryTotal INTEGER, gridId INTEGER,
    sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
"""  # noqa: E501
INSERT_RANGE = (
    "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES (?, ?, 59, "
    "?, ?, 0)"
)
INSERT_CALL = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 1, 0, NULL)"
INSERT_KERNEL = (
    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?1, ?1 + ?2, 0, 1, 7, ?3, ?4, ?5, ?6, NULL, 1, "
    "0, ?7, ?8, 1, 1, ?9, 1, 1, 0, ?9 * 16, 0, 0, ?3, 8192, NULL, 0)"
)

Row = tuple[int | str, ...]


def kernel_names() -> list[tuple[str, str]]:
    """60 (short, demangled) names, as long as those of PyTorch, cuBLAS and cuDNN are."""
    found = []
    for kind in ("add", "mul", "relu", "copy", "sum", "norm"):
        for number, dtype in enumerate(("float", "c10::Half", "c10::BFloat16")):
            functor = f"bench::native::{kind}_functor<{dtype}, {dtype}, float>"
            arguments = (
                f"(int){number + 2}, {functor}, bench::detail::Array<char *, (int)3>, "
                "bench::Offsets<(int)2>"
            )
            found.append(
                (
                    f"{kind}_kernel",
                    f"void bench::native::{kind}_kernel<{arguments}>(int, T2, T3, T4)",
                )
            )
    for tile in ("128x64", "128x128", "256x128", "64x64", "32x32", "64x128", "256x64"):
        for layout in ("nn", "nt", "tn"):
            name = (
                f"synthetic_xmma_gemm_bf16bf16_bf16f32_f32_{layout}_n_tilesize{tile}x64"
                "_warpgroupsize1x1x1_kernel"
            )
            found.append((name, name))
            found.append(
                (
                    f"{name}_split",
                    f"void {name}_split<float, (int)4, (bool)1>(T1 *, const T1 *, int)",
                )
            )
    return found[:60]


def steps(count: int) -> Iterator[tuple[list[Row], list[Row], list[Row]]]:
    """(ranges, calls, kernels) of each step, until there are ``count`` kernels."""
    chance = random.Random(7)  # noqa: S311
    slots = [
        (chance.randrange(60), chance.randint(800, 9_000), chance.choice((128, 256, 512)))
        for _ in range(KERNELS_A_STEP)
    ]
    now, free, made = 1_000_000_000, 0, 0
    for step in range(-(-count // KERNELS_A_STEP)):
        ranges: list[Row] = []
        calls: list[Row] = []
        kernels: list[Row] = []
        opened = [(f"perfctl:step:{step}", MAIN, now)]
        for slot, (path, thread) in enumerate(places()):
            while (
                len(opened) > len(path) + 1
                or [name for name, _, _ in opened[1:]] != path[: len(opened) - 1]
            ):
                name, of, since = opened.pop()
                ranges.append((since, now + 200 - 10 * len(opened), name, of))
            for name in path[len(opened) - 1 :]:
                opened.append(
                    (
                        name,
                        MAIN if name.startswith("perfctl:") else thread,
                        now + 300 + 10 * len(opened),
                    )
                )
            now += LAUNCH_NS
            kernel, duration, threads = slots[slot]
            start = max(free, now + LATENCY_NS)
            free = start + duration
            correlation = 9 + 2 * (made + slot)
            calls.append((now - 4_000, now - 300, thread, correlation))
            names = (kernel + 2, kernel + 62)
            kernels.append(
                (
                    start,
                    duration,
                    correlation,
                    PROCESS,
                    *names,
                    16 + kernel * 3,
                    1 + slot * 11,
                    threads,
                )
            )
        ranges.extend(
            (since, now + 200 - 10 * depth, name, of)
            for depth, (name, of, since) in enumerate(opened)
        )
        now += 20_000
        ranges.sort(key=lambda row: (row[0], -int(row[1])))
        kept = min(KERNELS_A_STEP, count - made)
        yield ranges, calls[:kept], kernels[:kept]
        made += kept


def places() -> Iterator[tuple[list[str], int]]:
    """(names of the ranges around it inside the step, thread) of each launch of a step."""
    for phase in PHASES:
        for block in range(BLOCKS):
            for layer in range(LAYERS_A_BLOCK):
                names = [
                    f"perfctl:phase:{phase}",
                    f"features.{block}:{phase}",
                    f"features.{block}.conv{layer}:{phase}",
                ]
                yield from [(names, AUTOGRAD if phase == "backward" else MAIN)] * KERNELS_A_LAYER


def make(count: int, out: Path) -> None:
    """Write the export; one that is there is replaced."""
    out.unlink(missing_ok=True)
    connection = sqlite3.connect(out, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.executescript(TABLES)
    connection.execute("BEGIN")
    texts = [
        "cudaLaunchKernel_v7000",
        *(name for _, name in kernel_names()),
        *(short for short, _ in kernel_names()),
    ]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts, 1))
    for ranges, calls, kernels in steps(count):
        connection.executemany(INSERT_RANGE, ranges)
        connection.executemany(INSERT_CALL, calls)
        connection.executemany(INSERT_KERNEL, kernels)
    connection.execute("COMMIT")
    connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", type=int)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    make(asked.kernels, asked.out)
