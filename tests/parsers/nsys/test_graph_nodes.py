"""Kernels that CUDA graphs replayed, against a search through all events (synthetic exports)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.make.nsys_sqlite import LAUNCH, NsysBuilder, node, read, replay


@pytest.mark.parametrize("seed", range(6))
def test_every_kernel_leads_to_the_range_around_the_creation_of_its_node(
    tmp_path: Path, seed: int
) -> None:
    """Against a search through all events, with graphs of several threads and nodes that are copied
    up to twice."""
    random, builder = Random(seed), NsysBuilder()
    ranges = [
        (100 * at, 100 * at + 80, random.choice([7, 8]), f"layer{at}:forward") for at in range(8)
    ]
    for start, end, thread, text in ranges:
        builder.range(text, start, end, thread=thread)
    created: dict[int, tuple[int, int]] = {}
    ids: list[int] = random.sample(range(1, 1 << 40), 20)
    for number in ids:
        created[number] = random.randrange(800), random.choice([7, 8])
        node(builder, number, created[number][0], thread=created[number][1])
    origin = {number: number for number in ids}
    for number in random.sample(range(1 << 41, 1 << 42), 25):
        above = random.choice(list(origin))
        origin[number] = origin[above]
        node(builder, number, 850, of=above)
    used = random.sample(list(origin), 15)
    replay(builder, list(used), LAUNCH)
    found = [kernel.layer for kernel in read(builder, tmp_path).kernels]
    expected = []
    for number in used:
        at, thread = created[origin[number]]
        around = [
            text for start, end, where, text in ranges if where == thread and start <= at < end
        ]
        expected.append(around[0].partition(":")[0] if around else None)
    assert found == expected
    assert any(found)
