"""Rules about the sweep: times that do not follow the batch size, algorithms that change with it,
manual estimates and formulas that are wrong, and runs that differ in GPU or in the workload's
options."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, permutations

from perfctl.orchestrator.counts.hardware.peaks import (
    RecordedGpu,
    find_peaks,
    find_recorded_gpu,
    has_contradicting_records,
)
from perfctl.orchestrator.counts.kernels.names import Algorithm, choose_main_layer_algorithm
from perfctl.orchestrator.estimate.sheets.layers import ManualCheckFacts, WorkedWay
from perfctl.orchestrator.estimate.sheets.sheet import SheetFigure, build_layer_sheet
from perfctl.orchestrator.estimate.sheets.slips import (
    ALTERNATIVES_MAX,
    APART,
    UNITS,
    CheckFinding,
    StatedValue,
    compute_values_with_mistakes,
    diagnose_stated_value,
    explain_check_finding,
    format_stated_value,
    parse_stated_value,
)
from perfctl.orchestrator.ledger.causes.evidence import EvidenceTable, RowEvidence
from perfctl.orchestrator.ledger.causes.rule import Cause, Confidence, deviates_from_one
from perfctl.orchestrator.ledger.causes.window_rules import (
    ConstantWindow,
    is_count_constant_as_work_grows,
)
from perfctl.orchestrator.ledger.expected import FORMULA
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.timing import HostTime, list_reported_layer_host_times
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Parameter, Run

MORE_WORK_RATIO_MIN = 1.5
"""The larger layer has at least this many times the multiply-adds of the smaller."""
SAME_TIME_RATIO_MAX = 1.2
"""Times no further apart do not follow the batch size."""
SIZE_UNITS = ("values", "B", *UNITS)
"""Units of manual estimates that count no operations."""
FORMULA_ERROR = Fraction(1, 200)
"""Share of the estimate by which the executed FLOPs may differ from what a mistake gives: loops and
epilogues add some."""
SLIPS_COST_MAX = 2.8
"""Cost of the mistakes in a formula together; what costs more is a coincidence."""
_DIRECT = {"depthwise": "direct convolution"}
"""Kernels of this family serve small convolutions that are not depthwise, too."""


def list_different_gpu_causes(parts: Sequence[Study]) -> list[Cause]:
    """Return the cause that runs with times cannot have used the same GPU.

    Evidence  names and compute capability of the GPUs in the records, and total memory that differs
              by more than 1/8 (ECC and the driver take less).
    Factor    none.
    Silent    for runs without times, if no record names the GPU, and for the ranks of one job.
    Fix       time every part on one GPU.
    """
    groups: list[tuple[RecordedGpu, list[Run]]] = []
    for run in (run for study in parts for run in study.runs):
        report = run.report
        has_times = (
            any(step.duration_ns is not None for step in report.steps)
            or any(kernel.duration_ns is not None for kernel in report.kernels)
            or bool(report.layer_times)
            or any(list_reported_layer_host_times((run,)))
        )
        if not has_times or (gpu_seen := find_recorded_gpu(run)) is None:
            continue
        matching = (
            index
            for index, (gpu, _) in enumerate(groups)
            if not has_contradicting_records(gpu, gpu_seen)
        )
        index = next(matching, None)
        if index is None:
            groups.append((gpu_seen, [run]))
        else:
            gpu, runs = groups[index]
            groups[index] = (gpu.merge_facts(gpu_seen), [*runs, run])
    if len(groups) < 2:
        return []
    facts = {
        "gpus": tuple(str(gpu) for gpu, _ in groups),
        "runs": "; ".join(_describe_runs_by_tool(runs) for _, runs in groups),
    }
    return [Cause("other GPU", None, facts, confidence="observed")]


def _describe_runs_by_tool(runs: Sequence[Run]) -> str:
    """Return which runs these are, by tool: "ncu at batch 16 to 256"."""
    by_tool = group_by(
        runs, lambda run: run.profiler if run.profiler != "none" else "runs without a profiler"
    )
    names = []
    for tool, of_tool in by_tool.items():
        batches = {run.batch_size or 0 for run in of_tool}
        first, last = min(batches), max(batches)
        span = f" at batch {first}" + (f" to {last}" if last > first else "")
        names.append(f"{tool}{span if first else ''}")
    return ", ".join(names)


def list_work_time_contradiction_causes(parts: Sequence[Study]) -> list[Cause]:
    """Return the layers that took less time in the variant in which they have more work.

    Evidence  times of the CPU timer, and at least 1.5 times the multiply-adds.
    Factor    none.
    Silent    for another batch size or precision.
    Fix       synchronize before each clock reading, or time with a profiler.
    """
    timings = group_by(
        (
            (study, item)
            for study in parts
            for item in list_reported_layer_host_times(study.runs)
            if item.macs
        ),
        lambda timing: (timing[1].layer, timing[1].direction, timing[1].run.batch_size),
    )
    causes = []
    for (layer, direction, batch), items in timings.items():
        pairs = [
            (larger, less)
            for larger, less in permutations(items, 2)
            if larger[0].variant != less[0].variant
            and larger[0].precision == less[0].precision
            and (larger[1].macs or 0) >= MORE_WORK_RATIO_MIN * (less[1].macs or 1)
            and larger[1].nanoseconds < less[1].nanoseconds
        ]
        if pairs:  # a pair of one tool proves more than one of two
            larger, less = min(
                pairs, key=lambda pair: pair[0][1].run.profiler != pair[1][1].run.profiler
            )
            causes.append(
                _build_work_time_contradiction_cause(layer, direction, batch, larger, less)
            )
    return causes


def _build_work_time_contradiction_cause(
    layer: str,
    direction: str,
    batch: int | None,
    larger: tuple[Study, HostTime],
    less: tuple[Study, HostTime],
) -> Cause:
    names = [
        f"with {study.variant}" if study.variant else "by default" for study, _ in (larger, less)
    ]
    gpus = [find_recorded_gpu(item.run) for _, item in (larger, less)]
    unknown = [name for name, gpu in zip(names, gpus, strict=True) if gpu is None]
    differ = (
        gpus[0] is not None and gpus[1] is not None and has_contradicting_records(gpus[0], gpus[1])
    )
    facts = {
        "gpus": tuple(map(str, gpus)) if differ else (),
        "layer": layer,
        "direction": direction,
        "batch": batch,
        "more_ms": larger[1].nanoseconds / 1e6,
        "more_macs": larger[1].macs,
        "more_name": names[0],
        "less_ms": less[1].nanoseconds / 1e6,
        "less_macs": less[1].macs,
        "less_name": names[1],
        "unknown": " or ".join(unknown),
    }
    return Cause("more work in less time", None, facts)


def list_constant_time_causes(
    study: Study, ledger: Ledger, window: ConstantWindow | None
) -> list[Cause]:
    """Return times that stay while the work grows: of the CPU timer always, of kernels if their
    counts stay too.

    Evidence  times at each batch size within 20%, the estimate, and the device's peak: a rate
              above it proves that the clock saw the launch.
    Factor    none; the sentence says which FLOP/s these times would mean.
    Silent    if times grow by a fifth.
    Fix       time kernels with a profiler.
    """
    estimates = {
        (row.batch_size_or_one, row.layer, row.direction): row.complete_estimated_flops or 0
        for row in ledger.rows
    }
    peak = max(
        (rate for run in study.runs for rate in find_peaks(run.device).flops.values()), default=0
    )
    clocked: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for item in list_reported_layer_host_times(study.runs):
        if item.run.batch_size is not None:
            clocked[item.layer, item.direction][item.run.batch_size] = item.nanoseconds
    causes = []
    for (layer, direction), points in clocked.items():
        work = {batch: estimates.get((batch, layer, direction), 0) for batch in points}
        growing = [work[batch] or batch for batch in points]
        if not is_count_constant_as_work_grows(growing, points.values(), SAME_TIME_RATIO_MAX):
            continue
        low, high = min(points), max(points)
        rates = {batch: work[batch] / points[batch] * 1e9 for batch in points}
        rated = bool(work[low] and work[high])
        # only that the times stay is measured; a rate that no kernel reaches proves that they are
        # a launch's
        proven = 0 < peak < max(rates.values())
        facts = {
            "low": low,
            "high": high,
            "growth": high / low,
            "layer": layer,
            "direction": direction,
            "also": window is not None,
            "shortest_ns": min(points.values()),
            "longest_ns": max(points.values()),
            "low_rate": rates[low] if rated else None,
            "high_rate": rates[high] if rated else None,
            "peak": peak if proven else None,
        }
        confidence: Confidence = "observed" if proven else "plausible"
        causes.append(Cause("time does not follow", None, facts, (), confidence))
    return causes or (_list_constant_kernel_time_causes(ledger) if window is not None else [])


def _list_constant_kernel_time_causes(ledger: Ledger) -> list[Cause]:
    timed = group_by(
        (row for row in ledger.rows if row.time and row.complete_estimated_flops),
        lambda row: row.batch_size_or_one,
    )
    times = {size: sum(row.time.median for row in rows if row.time) for size, rows in timed.items()}
    work = {
        size: sum(row.complete_estimated_flops or 0 for row in rows) for size, rows in timed.items()
    }
    if not is_count_constant_as_work_grows(work.values(), times.values(), SAME_TIME_RATIO_MAX):
        return []
    low, high = min(times), max(times)
    facts = {
        "low": low,
        "high": high,
        "growth": work[high] / work[low],
        "low_ns": times[low],
        "high_ns": times[high],
    }
    return [Cause("time does not follow", None, facts, (), "observed", "kernels")]


def read_hand_estimates(run: Run) -> Iterator[tuple[str, str, StatedValue]]:
    """Yield the layer, the name and the value of manual estimates that came with a report."""
    for item in run.report.summaries:
        head, _, name = item.name.partition(":")
        layer, _, quantity = name.partition(":")
        if head == "hand_estimate" and item.value is not None:
            unit = item.unit if item.unit in (*SIZE_UNITS, "FLOP", "MAC") else ""
            yield layer, quantity, parse_stated_value(f"{int(item.value)} {unit}")


def list_wrong_hand_estimates(study: Study) -> list[Cause]:
    """Return the manual estimates that came with the reports (``hand_estimate:<layer>:<what>``) and
    are wrong, one cause per layer.

    Evidence  the value, and the mistakes that give it. A value in "values", B,
              KiB or MiB is compared with the layer's sizes, any other with its operations.
    Factor    none.
    Silent    if all values of a layer are right.
    Fix       ``perfctl estimate --check``.
    """
    checks: dict[tuple[str, int | None], dict[str, tuple[Run, CheckFinding]]]
    checks = defaultdict(dict)
    for run in study.runs:
        for layer, quantity, stated in read_hand_estimates(run):
            sheet = build_layer_sheet(run.report.ops, layer)
            if sheet is not None and sheet.facts is not None:
                finding = diagnose_stated_value(stated, sheet.facts, sheet.quantities)
                checks[layer, run.batch_size].setdefault(quantity, (run, finding))
    causes = []
    for (layer, batch), values in checks.items():
        wrong = {quantity: value for quantity, value in values.items() if value[1].mistakes}
        if not wrong:
            continue
        (quantity, (run, finding)), *other_findings = wrong.items()
        other_texts = [
            f" Its {name or 'operations'}: {explain_check_finding(finding)}"
            for name, (_, finding) in other_findings
        ]
        right = [
            f" Its {name or 'operations'}: {format_stated_value(finding)} is correct."
            for name, (_, finding) in values.items()
            if finding.is_correct
        ]
        facts = {
            "layer": layer,
            "what": quantity or "operations",
            "batch": str(batch),
            "explanation": "".join([explain_check_finding(finding), *other_texts, *right]),
            "workload": run.workload,
            "value": finding.value,
        }
        # that it is wrong is certain, but not the mistake
        confidence: Confidence = "plausible" if finding.is_explained else "predicted and matched"
        causes.append(Cause("hand estimate", None, facts, confidence=confidence))
    return causes


def list_algorithm_switches(table: EvidenceTable) -> list[Cause]:
    """Return the layers that run another algorithm from some batch size on.

    Evidence  kernel names along the sweep.
    Factor    none; FLOPs per sample on either side.
    Silent    if either algorithm is unknown.
    Fix       compare batch sizes on either side by time per sample.
    """
    causes = []
    for group in table.rows_with_kernels_by_batch.values():
        for before, after in pairwise(group):
            old, new = _describe_row_algorithm(before), _describe_row_algorithm(after)
            if old == new or old is None or new is None:
                continue
            less = (before.row.executed.value or 0) / before.row.batch_size_or_one
            flops_after = (after.row.executed.value or 0) / after.row.batch_size_or_one
            facts = {
                "name": after.row.name,
                "layer": after.row.layer,
                "batch": after.row.batch_size_or_one,
                "before": before.row.batch_size_or_one,
                "new": new,
                "old": old,
                "less": less,
                "more": flops_after,
            }
            variant = ""
            if less and flops_after:
                variant = "other FLOPs" if deviates_from_one(flops_after / less) else "same FLOPs"
            names = tuple(kernel.name for kernel in after.product_kernels)
            causes.append(Cause("algorithm switch", None, facts, names, "observed", variant))
    return causes


def _describe_row_algorithm(evidence: RowEvidence) -> str | None:
    """Return the algorithm of a row's kernels in words."""
    algorithm: Algorithm = choose_main_layer_algorithm(
        kernel.name
        for kernel in evidence.kernels
        if kernel.is_main_product_kernel or kernel.algorithm.role == "transform"
    )
    return _DIRECT.get(algorithm.family or "") or algorithm.method or algorithm.family


def find_formula_mistakes_by_row(study: Study, ledger: Ledger) -> dict[int, Cause]:
    """Return the formulas of the user's that may be wrong.

    Evidence  the executed FLOPs, and the mistakes that hand values are checked for: multiply-adds
              instead of FLOPs, a parameter left out or once too often, all launches instead of one.
    Factor    the ratio, which is the same mistake at every value of the parameters.
    Silent    if no common mistake gives the estimate at every value, or FLOPs may be missing.
    Fix       correct the formula.

    The keys are the ``id`` of the ledger rows.
    """
    rows = [row for row in ledger.rows if row.kind == FORMULA and row.ratio]
    slips: dict[int, Cause] = {}
    for same in group_by(rows, lambda row: row.layer).values():
        parameters = [study.get_batch(row.batch).runs[0].run.parameters for row in same]
        texts = _find_mistakes_shared_by_rows(same, parameters)
        if not texts:
            continue
        over = _format_varying_parameters(parameters)
        for row in same:
            facts = {
                "formula": (row.calls[0].formula or "").partition(" at ")[0],
                "ratio": row.ratio,
                "mistakes": ", or from ".join(texts),
                "over": over,
            }
            name = row.name + ("" if over else row.batch_phrase)
            slips[id(row)] = Cause("wrong formula", row.ratio, facts, row=name)
    return slips


def _find_mistakes_shared_by_rows(
    rows: Sequence[LedgerRow], parameters: Sequence[Sequence[Parameter]]
) -> list[str]:
    """Return the mistakes that give the estimates of all these rows, the most plausible first."""
    costs: list[Mapping[str, float]] = [
        dict(_list_fitting_mistakes(row, parameters_))
        for row, parameters_ in zip(rows, parameters, strict=True)
    ]
    common = [text for text in costs[0] if all(text in cost for cost in costs)]
    ranked = sorted(common, key=lambda text: costs[0][text])
    return [text for text in ranked if costs[0][text] <= costs[0][ranked[0]] + APART][
        :ALTERNATIVES_MAX
    ]


def _list_fitting_mistakes(
    row: LedgerRow, parameters: Sequence[Parameter]
) -> Iterator[tuple[str, float]]:
    """Yield (mistake, cost) of those that make the estimate of the executed FLOPs."""
    executed, estimate = round(row.executed.value or 0), Fraction(row.complete_estimated_flops or 0)
    may_be_more = row.executed.lower_bound and (row.ratio or 0) < 1
    if executed < 2 or not estimate or not deviates_from_one(row.ratio or 0) or may_be_more:
        return
    macs = executed // 2
    ways = [WorkedWay((), ((macs,),), 0)]
    for parameter in parameters:
        if parameter.number and parameter.number > 1:
            size = round(parameter.number)
            ways.append(WorkedWay((f"a factor {parameter.name} left out",), ((macs // size,),), 0))
            ways.append(WorkedWay((f"a factor {parameter.name} too many",), ((macs * size,),), 0))
    launches = round(sum(use.per_step for use in row.kernels))
    if launches > 1:
        text = f"all {launches:,} launches together, not one"
        ways.append(WorkedWay((text,), ((macs * launches,),), 0, about="kernel"))
    facts = ManualCheckFacts(1, 0, 0, False, tuple(ways))
    stated = StatedValue("", estimate, estimate * FORMULA_ERROR, "FLOP")
    right = SheetFigure("forward", executed, "FLOP", "")
    for candidate in compute_values_with_mistakes(stated, facts, right, ()):
        text = " and ".join(candidate.slips)
        if (
            stated.equals_within_rounding(candidate.value)
            and candidate.cost <= SLIPS_COST_MAX
            and "backward" not in text
        ):
            yield text, candidate.cost


def _format_varying_parameters(parameters: Sequence[Sequence[Parameter]]) -> str:
    """Return "every N (1024, 2048)" of the parameters that vary; "" if none does."""
    values: dict[str, dict[str, None]] = {}
    for item in (item for row_parameters in parameters for item in row_parameters):
        values.setdefault(item.name, {})[item.value] = None
    varied = {name: list(distinct) for name, distinct in values.items() if len(distinct) > 1}
    return " and ".join(
        f"every {name} ({', '.join(distinct)})" for name, distinct in varied.items()
    )
