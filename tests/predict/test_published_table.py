"""Steps by the fit that ships from two tables, amounts and costs: what 'perfctl predict' says, at
every batch size."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import BOARDS
from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.grid import (
    CLOSE,
    LARGEST,
    compute_device_part_costs,
    compute_network_part_amounts,
)
from perfctl.orchestrator.predict.operations import (
    OPTIMIZERS,
    get_activation_element_bytes,
)
from perfctl.orchestrator.predict.predict import PRECISIONS, predict_from_best_source
from perfctl.orchestrator.predict.step_parts import OVERFLOW, PARTS
from tests.make.steps import plan_network

MACHINES = tuple(machines.build_board_machine(board) for board in BOARDS)
FIT = published.load_shipped_fit("gpu")


@pytest.fixture(scope="module")
def table():
    return compute_device_part_costs(FIT, MACHINES, PRECISIONS)


def network(spec):
    found = plan_network(spec)
    return found, compute_network_part_amounts(found.works, found.parameters, LARGEST)


def at(points, batch):
    """The straight line between the points around a batch size; of one point its amount."""
    left, right = next(
        (pair for pair in pairwise(points) if batch <= pair[1][0]), (points[0], points[0])
    )
    part = (batch - left[0]) / (right[0] - left[0]) if right != left else 0.0
    return left[1] + part * (right[1] - left[1])


def from_tables(known, table, case, machine):
    sums = [0.0] * len(PARTS)
    for row in (
        *known.steps[get_activation_element_bytes(case.precision)],
        *known.optimizers[case.optimizer],
    ):
        sums[row.part] += at(row.points, case.batch)
    cost = table.of[machine.name, case.precision]
    gpu = min(
        sum(rate * amount for rate, amount in zip(table.rows[row], sums, strict=True))
        for row in cost.rows
    )
    host = cost.host * known.operations
    return (
        max(gpu, host),
        max(gpu / cost.gpu_width, host / cost.host_width),
        max(gpu * cost.gpu_width, host * cost.host_width),
    )


@pytest.mark.parametrize(
    "spec", ["mlp", "inception", "vgg:batchnorm=yes", "resnet:depth=50,image=224,classes=1000"]
)
def test_every_gpu_has_the_time_of_the_prediction_with_its_range(spec, table):
    one, known = network(spec)
    rng, compared = random.Random(spec), 0
    for _ in range(60):
        machine, precision, optimizer = (
            rng.choice(MACHINES),
            rng.choice(PRECISIONS),
            rng.choice(OPTIMIZERS),
        )
        case = one.make_step_spec(round(2 ** rng.uniform(0, 16)), precision, optimizer)
        if (machine.name, precision) not in table.of:
            with pytest.raises(ValueError, match=r"has no (TF32|fast)"):
                published.predict_step_by_published_fit(FIT, case, machine)
            continue
        compared += 1
        assert from_tables(known, table, case, machine) == pytest.approx(
            published.predict_step_by_published_fit(FIT, case, machine), rel=CLOSE
        )
    assert compared > 30


@pytest.mark.parametrize("batch", [1, 16, 100, 2000])
def test_the_time_is_split_as_the_layers_shares_say(batch, table):
    one, known = network("resnet:depth=50,image=224,classes=1000")
    machine = machines.find_device("RTX 3090").machine
    rates = table.rows[table.of[machine.name, "fp16"].own]
    by_group: dict[str, float] = {}
    for row in (*known.steps[2], *known.optimizers["adam"]):
        by_group[row.group] = by_group.get(row.group, 0.0) + rates[row.part] * at(row.points, batch)
    shares = predict_from_best_source(
        one.make_step_spec(batch, "fp16", "adam"), machine, published=FIT
    ).shares
    for group in ("optimizer", "norm", "activation", "linear"):
        expected = sum(share.share for share in shares if share.kind == group)
        assert by_group[group] / sum(by_group.values()) == pytest.approx(expected, abs=0.001), group


def test_an_amount_bends_where_an_operation_outgrows_the_cache():
    """A layer of 1,024 x 1,024 in fp32 moves 8,192 bytes a sample: from 4,097 samples on it is
    beyond 32 MiB."""
    _, known = network("mlp:depth=3,width=1024,image=8,classes=1024")
    (row,) = (
        row
        for row in known.steps[4]
        if (row.group, PARTS[row.part]) == ("linear", "overflow forward")
    )
    first = int(OVERFLOW / (2 * 1024 * 4))
    assert at(row.points, first) == 0
    assert at(row.points, first + 1) > 0
