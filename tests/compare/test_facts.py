"""What makes two sides not comparable, or is only said. All runs here are synthetic."""

import random
import re
from dataclasses import replace
from pathlib import Path

from perfctl.orchestrator.compare.compare import ComparisonSide, compare_two_sides
from perfctl.orchestrator.compare.quantities import MEANING, NOT_JUDGED
from perfctl.orchestrator.compare.sides import FACTS, compare_run_facts
from perfctl.records.report import Kernel, Sample, ServedStep
from perfctl.records.run import Run
from tests.make.synthetic import foreign_run, make_run, with_report
from tests.make.tables import table
from tests.make.two_sides import H200, make_side


def changed(run, what):
    """The run with other facts: fields of Run, of its Report, or some of its environment."""
    fields = dict(what)
    if "environment" in fields:
        fields["environment"] = {**run.report.environment, **fields["environment"]}
    of_report = {name: fields.pop(name) for name in what if name not in Run.__dataclass_fields__}
    return with_report(replace(run, **fields), **of_report)


def environment(**facts):
    return {"environment": facts}


def served(sequences):
    return (ServedStep(0, "step", "decode", 0, 0, 0, 0, sequences, sequences, 0, 0),)


def sampled(clock):
    return [Sample(at, 0.9, None, None, None, None, int(clock * 1e6), 0) for at in range(5)]


@table(
    "fact what",
    [
        ("device", {"device": replace(H200, name="NVIDIA A100")}),
        ("largest clock", {"device": replace(H200, clock_hz=1_200_000_000)}),
        ("SM clock while it ran", {"samples": sampled(1400)}),
        ("tf32_conv", environment(tf32_conv="on")),
        ("tf32_matmul", environment(tf32_matmul="on")),
        ("precision", {"precision": "bf16"}),
        ("mode", {"mode": "infer"}),
        ("variant", {"variant": "conv2=32,128,5,1"}),
        ("batch", {"batch_size": 128}),
        ("profiler", {"profiler": "torch"}),
        ("world_size", environment(world_size="2")),
    ],
)
def test_what_makes_two_sides_not_comparable_is_named_and_force_compares_all_the_same(fact, what):
    dice = random.Random(11)
    a, b = (
        make_side("A", 3, dice, samples=sampled(1900)),
        make_side("B", 3, dice, samples=sampled(1910)),
    )
    assert not compare_two_sides(a, b).not_comparable
    other = ComparisonSide("B", tuple(changed(run, what) for run in b.runs))
    found = compare_two_sides(a, other)
    (pair,) = found.not_comparable
    assert [one.fact for one in pair.blocking_differences] == [fact]
    assert pair.rows, "the figures are shown"
    assert {row.result for row in pair.rows} == {NOT_JUDGED}
    assert not found.regressions and not found.improvements and not found.new_gone_or_different_rows
    forced = compare_two_sides(a, other, is_forced=True)
    assert not forced.not_comparable
    assert any(row.result != NOT_JUDGED for row in forced.pairs[0].rows) or fact == "profiler"
    assert forced.pairs[0].blocking_differences == pair.blocking_differences


@table(
    "fact what",
    [
        ("torch", environment(torch="2.9.0")),
        ("cuda", environment(cuda="13.0")),
        ("cudnn", environment(cudnn="9.1")),
        ("cudnn_benchmark", environment(cudnn_benchmark="on")),
        ("driver", {"device": replace(H200, driver_version="535.1")}),
        ("host", {"host": "node7"}),
        ("python", environment(python="3.12.1")),
        ("profiler version", {"profiler_version": "9.9"}),
        ("origin", {"origin": "recorded"}),
        ("threads of the host", environment(threads="8")),
    ],
)
def test_what_is_only_said_does_not_block(fact, what):
    dice = random.Random(12)
    b = ComparisonSide("B", tuple(changed(run, what) for run in make_side("B", 3, dice).runs))
    (pair,) = compare_two_sides(make_side("A", 3, dice), b).pairs
    assert [(one.fact, one.blocks) for one in pair.differences] == [(fact, False)]
    assert any(row.result != NOT_JUDGED for row in pair.rows)


def test_the_documentation_has_every_fact_and_every_verdict_as_they_are():
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "compare.md"
    text = page.read_text(encoding="utf-8")
    listed = dict(re.findall(r"^- \*\*(.+?)\*\*: ((?:.+\n)+?)(?=- |\n)", text, re.MULTILINE))
    names = {effect: " ".join(facts.split()).split(", ") for effect, facts in listed.items()}
    assert names["not comparable"] == [fact.name for fact in FACTS if fact.blocks]
    assert sorted(names["a possible cause"]) == sorted(
        fact.name for fact in FACTS if fact.software and not fact.blocks
    )
    results = re.findall(r"^\| (.+?) \| .+\|$", text, re.MULTILINE)
    assert set(MEANING) <= {result for cell in results for result in cell.split(", ")}


def test_servers_with_other_numbers_of_sequences_in_a_step_are_not_comparable():
    a, b = (make_run(served_steps=served(number)) for number in (3, 1))
    assert differing([a], [b]) == [("sequences", "3", "1", True)]


def facts(a, b):
    """What both sides say."""
    return {name: (mine, theirs) for name, mine, theirs in compare_run_facts([a], [b])[1]}


def differing(a, b):
    return [(one.fact, one.a, one.b, one.blocks) for one in compare_run_facts(a, b)[0]]


@table(
    "samples said",
    [
        ([(0.9, 1000), (0.9, 1300), (0.1, 1200)], "1200 MHz"),
        ([(0.9, 1000), (0.9, 1300)], "1150 MHz"),
        # where it was in use
        ([(0.0, 400), (0.9, 1000), (None, 300), (0.9, 1300), (0.9, 1200)], "1200 MHz"),
        ([(0.0, 400), (None, 300), (0.0, 500)], "400 MHz"),  # nothing says when it was
        ([(0.9, None), (0.9, 0), (0.0, 700)], "700 MHz"),
        ([(0.9, None)], None),
        ([], None),
    ],
)
def test_the_clock_of_a_run_is_the_median_while_the_device_was_in_use(samples, said):
    read = [
        Sample(at, used, None, None, None, None, None if clock is None else clock * 10**6)
        for at, (used, clock) in enumerate(samples)
    ]
    run = make_run(samples=read)
    assert facts(run, run).get("SM clock while it ran") == (None if said is None else (said, said))


@table("other same", [(1050, True), (1051, False), (953, True), (952, False)])
def test_clocks_within_a_twentieth_of_the_lower_are_the_same(other, same):
    a, b = (make_run(samples=sampled(clock)) for clock in (1000, other))
    found = [] if same else [("SM clock while it ran", "1000 MHz", f"{other} MHz", True)]
    assert differing([a], [b]) == found
    assert len(compare_run_facts([a, b], [a])[0]) == (0 if same else 1), "of all runs together"
    assert differing([a], [make_run()])[0][3] is False, "nothing shows that it differs"


BARE = replace(H200, clock_hz=None, driver_version=None)
SECOND = replace(H200, clock_hz=1_000_400_000, driver_version="9")


@table(
    "device devices clock driver",
    [
        (H200, (SECOND,), "1980 MHz", "570.10"),
        (BARE, (BARE, SECOND), "1000 MHz", "9"),
        (None, (SECOND,), "1000 MHz", "9"),
        (BARE, (), None, None),
    ],
)
def test_clock_and_driver_are_those_of_the_run_s_device_else_of_the_first_in_its_report(
    device, devices, clock, driver
):
    run = make_run(device=device, devices=devices)
    stated = facts(run, run)
    for fact, expected in (("largest clock", clock), ("driver", driver)):
        assert stated.get(fact, (None,))[0] == expected


def test_what_is_not_recorded_is_left_out_where_neither_side_has_it_and_defaults_are_said():
    run = make_run(precision=None, batch_size=None)
    stated = {
        "workload": "mnist_cnn",
        "variant": "defaults",
        "mode": "train",
        "device": "synthetic CPU",
        "world_size": "1",
        "profiler version": "2.8",
        "host": "node1",
        "origin": "synthetic",
    }
    assert facts(run, run) == {fact: (value, value) for fact, value in stated.items()}
    assert differing([run], [run]) == []
    alone = with_report(run, environment={"world_size": "1"})
    assert differing([run], [alone]) == [], "one process is what is meant where nothing is said"


@table(
    "name one other of_host",
    [
        ("threads", "2", "4", [("threads of the host", "2", "4", False)]),
        ("cpu_model", "family 25, model 17, stepping 1", "family 23, model 49, stepping 0", []),
        ("cpu_capability", "AVX512", "AVX2", []),
    ],
)
def test_facts_of_the_processor_block_only_where_it_is_timed(name, one, other, of_host):
    cpu = [make_run(environment={name: value}) for value in (one, other)]
    gpu = [replace(run, device=H200) for run in cpu]
    assert differing(cpu[:1], cpu[1:]) == [(name, one, other, True)]
    assert differing(gpu[:1], gpu[1:]) == of_host
    both = {fact for fact, *_ in differing(cpu[:1], gpu[1:])}
    assert {"device", name, *(fact for fact, *_ in of_host)} <= both


def test_repeats_may_differ_in_what_is_only_said_if_both_sides_do_alike():
    one, two = (
        make_run(host=host, environment={"torch": torch})
        for host, torch in (("x", "2"), ("y", "2"))
    )
    assert differing([one, two], [two, one]) == []
    assert differing([one, two], [two]) == [("host", "x, y", "y", False)]
    other = replace(two, host="x", report=replace(two.report, environment={"torch": "3"}))
    assert differing([one, other], [other, one]) == [("torch", "2, 3", "2, 3", True)]


@table(
    "names others expected",
    {
        "B is the beginning of A": ("ab" * 20, "ab" * 10, ["B ends earlier"]),
        "A is the beginning of B": ("ab" * 8, "ab" * 20, ["A ends earlier"]),
        "both record the same launches": ("ab" * 20, "ab" * 20, []),
        "B runs other kernels": ("ab" * 20, "bc" * 10, []),
        "too few launches": ("a", "ab", []),
    },
)
def test_a_report_that_ends_earlier_is_not_comparable(names, others, expected):
    """No step is marked, so sums over the reports are of unequal work."""

    def side(label, names):
        kernels = [
            Kernel(at, name, start_ns=1000 * at, duration_ns=900) for at, name in enumerate(names)
        ]
        return ComparisonSide(label, (foreign_run(ord(label), ranges=[], kernels=kernels),))

    found = compare_two_sides(side("A", names), side("B", others)).not_comparable
    blocked = [one.reason.partition(":")[0] for pair in found for one in pair.blocking_differences]
    assert blocked == expected
