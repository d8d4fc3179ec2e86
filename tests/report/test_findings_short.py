"""The first sentence of a finding is at most 140 characters, whatever the names, and nothing of the
text is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.ledger.analysis import analyse_all
from perfctl.orchestrator.ledger.prepared import studies
from perfctl.orchestrator.report.findings import findings
from perfctl.orchestrator.report.page.records import LONGEST, Finding
from perfctl.records.report import Copy, Gap, Kernel, Range
from perfctl.records.run import Run
from tests.make import synthetic

LONG = "model.layers." + "very_long_block_name." * 8 + "q_proj"
REASON = "the tool gave up, for reasons that it explains at length and in many words, " * 4


def renamed(run: Run) -> Run:
    """With long names of layers, kernels and the device."""
    calls = tuple(
        call._replace(layer=f"{LONG}.{call.layer}" if call.layer else call.layer)
        for call in run.layer_calls
    )
    kernels = [
        item._replace(
            layer=item.layer and f"{LONG}.{item.layer}",
            name=f"{LONG}::{item.name}",
            short_name=None,
        )
        for item in run.report.kernels
    ]
    ranges = [
        item._replace(layer=item.layer and f"{LONG}.{item.layer}") for item in run.report.ranges
    ]
    device = replace(run.device, name=LONG) if run.device else None
    return replace(
        run,
        layer_calls=calls,
        device=device,
        report=replace(run.report, kernels=kernels, ranges=ranges),
    )


def without_times(run: Run) -> Run:
    kernels = [item._replace(start_ns=None, duration_ns=None) for item in run.report.kernels]
    return replace(run, report=replace(run.report, kernels=kernels, steps=(), ranges=[]))


def without_counts(run: Run) -> Run:
    return replace(run, report=replace(run.report, counters=[]))


def foreign(number: int = 1, **changes: Any) -> Run:
    ranges = [Range(0, LONG, None, 0, 400, 7, 0, None, gpu_ns=855)]
    copies = [Copy("HtoD", 4096, 0, 500)]
    kernels = [
        Kernel(n, f"{LONG}{n}", start_ns=100 * n, duration_ns=90 + n, device_index=n % 2)
        for n in range(40)
    ]
    return synthetic.foreign_run(
        number, **({"ranges": ranges, "copies": copies, "kernels": kernels} | changes)
    )


def counted(number: int = 1) -> Run:
    counters = [one for n in range(3) for one in synthetic.fp_counters(n, 0, 0, 500, pipe=None)]
    return foreign(number, profiler="ncu", device=synthetic.V100, counters=counters)


SWEEP = [
    run
    for number, batch in enumerate((16, 32, 64, 128, 256, 512), 1)
    for run in synthetic.gpu_pair(number, batch)
]
CPU = [synthetic.cpu_run(number, batch) for number, batch in enumerate((16, 32, 64), 1)]
FAILED = [replace(synthetic.failed_run(n, 2**n), reason=REASON) for n in range(4, 12)]
CASES = {
    "one run": SWEEP[:2],
    "several runs": SWEEP,
    "no time": [without_times(run) for run in SWEEP],
    "no counts": [without_counts(run) for run in SWEEP],
    "on a CPU": CPU,
    "failed": [*CPU, *FAILED],
    "foreign": [foreign()],
    "foreign without times": [without_times(foreign())],
    "foreign with counters": [counted()],
    "foreign without kernels": [
        foreign(kernels=[], gaps=(Gap("kernel", "not_collected", REASON),))
    ],
}


def said(runs: Iterable[Run]) -> list[Finding]:
    return [item for found in analyse_all(studies(runs), ()) for item in findings(found)]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@pytest.mark.parametrize("named", ["short", "long"])
@pytest.mark.parametrize("case", CASES)
def test_a_first_sentence_has_at_most_140_characters(case: str, named: str) -> None:
    runs = CASES[case] if named == "short" else list(map(renamed, CASES[case]))
    items = said(runs)
    assert items
    for item in items:
        assert len(item.first) <= LONGEST, item.first
        assert item.first.endswith((".", "…", "?")), item.first
        assert words(f"{item.first} {item.rest}") == words(item.text)
    texts = [item.text for item in items]
    assert len(set(texts)) == len(texts), "no finding twice"


def test_a_long_sentence_ends_after_a_clause_and_never_inside_of_brackets() -> None:
    head = (
        "The runs at batch 16 failed (out of memory, on every device that was tried; three of them)"
    )
    item = Finding(f"{head}: {'the driver said so, ' * 8}and stopped. More follows.", "runs")
    assert item.first.startswith(head) and item.first.count("(") == item.first.count(")")
    assert len(item.first) <= LONGEST and item.rest.endswith("and stopped. More follows.")
    assert Finding("x" * 500, "runs").first == "x" * (LONGEST - 2) + " …"
