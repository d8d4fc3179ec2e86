"""Kernels against a search through all calls and ranges, in the records and in the SQL that a store
copies them by."""

from __future__ import annotations

from random import Random

import pytest

from perfctl.parsers import attribution
from perfctl.parsers.attribution import NEVER
from perfctl.parsers.nsys import columns as nsys_columns
from perfctl.records.bulk import SqlKernels
from tests.make.nsys_sqlite import NsysBuilder, copied, read

PLACES = [(7, 7), (7, 8), (9, 9)]
"""(process, thread)"""
NAMES = ["conv1:forward", "conv1:backward", "fc", "cudnn", "conv2:forward"]
Expected = list[tuple[int | None, str | None]]


def made_up(random, step):
    """A report whose ranges nest, cross, never end and begin before 0, with calls of nothing and
    kernels of no call; ids of calls lie ``step`` apart. And of each kernel the number and layer of
    its ranges."""
    builder = NsysBuilder()
    ranges = []
    for _ in range(random.randrange(12)):
        place, start = random.choice(PLACES), random.randrange(-40, 60)
        end = random.choice([None, start + random.randrange(50), start + random.randrange(50)])
        ranges.append((start, NEVER if end is None else end, place, random.choice(NAMES)))
        builder.range(ranges[-1][3], start, end, pid=place[0], thread=place[1])
    numbered = sorted(ranges, key=lambda one: (one[0], -one[1]))
    calls = []
    for _ in range(1 + random.randrange(20)):
        place, start = random.choice(PLACES), random.randrange(-30, 80)
        calls.append((step * random.randrange(9), place, start, start + random.randrange(6)))
        builder.call(calls[-1][0], start, calls[-1][3], pid=place[0], thread=place[1])
    expected: Expected = []
    for _ in range(1 + random.randrange(12)):
        correlation, pid = step * random.randrange(10), random.choice(PLACES)[0]
        builder.kernel(correlation, pid=pid)
        call = next((one for one in calls if (one[0], one[1][0]) == (correlation, pid)), None)
        around = [
            (number, name)
            for number, (start, end, place, name) in enumerate(numbered)
            if call is not None and place == call[1] and start <= call[2] and call[3] <= end
        ]
        layers = [name.partition(":")[0] for _, name in around if ":" in name]
        expected.append((around[-1][0] if around else None, layers[-1] if layers else None))
    return builder, expected


@pytest.mark.parametrize(("step", "size"), [(1, 10**6), (1000, 10**6), (1, 1), (1, 3)])
@pytest.mark.parametrize("seed", range(12))
def test_every_kernel_gets_the_ranges_around_its_own_call_from_pieces_of_any_size(
    tmp_path, seed, step, size, monkeypatch
):
    monkeypatch.setattr(attribution, "SLICE", size)
    monkeypatch.setattr(nsys_columns, "ROWS_TOGETHER", size + 1)
    builder, expected = made_up(Random(seed), step)
    kernels = read(builder, tmp_path).kernels
    assert isinstance(kernels, SqlKernels)
    for rows in (kernels, copied(kernels)):
        assert [(kernel.range_number, kernel.layer) for kernel in rows] == expected
