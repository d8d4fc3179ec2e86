"""Rules about a whole sweep: times that do not follow the batch size, algorithms that change, hand values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from perfctl.orchestrator.analyse.algorithms import of_layer
from perfctl.orchestrator.analyse.case import RowEvidence
from perfctl.orchestrator.analyse.check import check, explain
from perfctl.orchestrator.analyse.grouping import Study
from perfctl.orchestrator.analyse.ledger import Ledger
from perfctl.orchestrator.analyse.sheet import sheet_for
from perfctl.orchestrator.analyse.verdict_records import Place, Verdict
from perfctl.orchestrator.analyse.verdict_scene import amount
from perfctl.orchestrator.analyse.verdict_window import GROWS, WINDOW_TODO, Window, along

FLAT = 1.2
"""Times no further apart than this do not follow the batch size."""


def times_flat(study: Study, ledger: Ledger, found: Window | None) -> list[Verdict]:
    """Times that stay while the work grows: of the host's clock always, of kernels when their counts stay too."""
    said = []
    either = " either" if found is not None else ""
    rows = {(row.batch, row.layer, row.direction): row for row in ledger.rows}
    for name, points in _host_times(study).items():
        layer, _, direction = name.partition(":")
        paper = {batch: (rows[batch, layer, direction].paper.value or 0) if (batch, layer, direction) in rows else 0.0
                 for batch in points}  # fmt: skip
        if not _flat(list(points.values()), [work or batch for batch, work in paper.items()]):
            continue
        low, high = min(points), max(points)
        listed = ", ".join(f"{points[batch] / 1e6:.3g}" for batch in sorted(points))
        rate = ""
        if paper[low] and paper[high]:
            rate = (
                f" Taken for the kernel's they would mean {amount(paper[low] / points[low] * 1e9)}FLOP/s at batch {low} "
                f"and {amount(paper[high] / points[high] * 1e9)}FLOP/s at batch {high}."
            )
        text = (
            f"The times of {layer} {direction} do not follow the batch{either}: {listed} ms at batch {low} to {high}, "
            f"while the work grows {high / low:g}-fold. The host's clock saw the launch, not the kernel.{rate}"
        )
        said.append(Verdict("time does not follow", text, None, None, HOST_TODO))
    return said or (_kernels_flat(ledger) if found is not None else [])


HOST_TODO = "Time kernels with 'perfctl nsys' or 'perfctl torch', or synchronise before each reading of the clock."


def _flat(values: Sequence[float], work: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) <= FLAT * min(values) and max(work) >= GROWS * min(work)


def _host_times(study: Study) -> dict[str, dict[int, float]]:
    """ "conv2:forward" -> batch -> nanoseconds, from summaries named ``host_time:<layer>:<direction>``."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for run in study.runs:
        for item in run.report.summaries:
            head, _, name = item.name.partition(":")
            if head == "host_time" and item.value is not None and run.batch_size is not None:
                found[name][run.batch_size] = item.value
    return found


def _kernels_flat(ledger: Ledger) -> list[Verdict]:
    """Kernel time of all layers together, by batch size."""
    sums: dict[int, float] = defaultdict(float)
    paper: dict[int, float] = defaultdict(float)
    for row in ledger.rows:
        if row.time is not None and row.paper.value:
            sums[row.batch] += row.time.median
            paper[row.batch] += row.paper.value
    if not _flat(list(sums.values()), list(paper.values())):
        return []
    low, high = min(sums), max(sums)
    text = (
        f"The times do not follow the batch either: the layers' kernels take {sums[low] / 1e6:.3g} ms at batch {low} "
        f"and {sums[high] / 1e6:.3g} ms at batch {high}, while the work on paper grows {paper[high] / paper[low]:.3g}-fold."
    )
    return [Verdict("time does not follow", text, None, None, WINDOW_TODO)]


def hand_estimates(study: Study) -> list[Verdict]:
    """Hand values that came with the reports (``hand_estimate:<layer>:<what>``), each explained by its slips."""
    said: dict[str, Verdict] = {}
    for run in study.runs:
        for item in run.report.summaries:
            head, _, name = item.name.partition(":")
            layer, _, what = name.partition(":")
            if head != "hand_estimate" or item.value is None:
                continue
            sheet = sheet_for(run.report.ops, layer)
            facts = sheet.facts if sheet is not None else None
            found = check(int(item.value), facts) if facts is not None else None
            if facts is None or found is None or not found.slips:
                continue
            if "values, not operations" in found.slips:
                values = facts.weights + facts.biases + facts.batch * facts.ways[0].outputs
                note = f" In values it is {values:,}."
            else:
                note = ""
            text = (
                f"The hand estimate of {layer} ({what or 'operations'}, batch {run.batch_size}): {explain(found)}{note}"
            )
            todo = f"perfctl estimate {run.workload} --batch {run.batch_size} --layer {layer} --check {int(item.value)}"
            said.setdefault(item.name, Verdict("hand estimate", text, None, None, todo))
    return list(said.values())


def algorithm_switches(table: Mapping[Place, RowEvidence]) -> list[Verdict]:
    """A layer's algorithm is another one from some batch size on."""
    said = []
    for group in along(table).values():
        for before, after in pairwise(group):
            old, new = _algorithm(before), _algorithm(after)
            if old != new and old is not None and new is not None:
                said.append(_switch(before, after, old, new))
    return said


def _algorithm(evidence: RowEvidence) -> str | None:
    found = of_layer(kernel.name for kernel in evidence.kernels if kernel.main or kernel.algorithm.role == "transform")
    return found.method or found.family


def _switch(before: RowEvidence, after: RowEvidence, old: str, new: str) -> Verdict:
    start = f"{after.row.name} runs another algorithm from batch {after.row.batch} on: {new}, up to batch "
    start += f"{before.row.batch} {old}"
    todo = "Compare batch sizes on either side of it only by time per sample: their counted FLOPs differ by algorithm."
    was, now = before.row.counted.value, after.row.counted.value
    if was and now:
        each, then = was / before.row.batch, now / after.row.batch
        start += f"; FLOPs per sample go from {amount(each)}FLOP to {amount(then)}FLOP"
    return Verdict(
        "algorithm switch", f"{start}.", None, None, todo, tuple(kernel.name for kernel in after.product_kernels)
    )
