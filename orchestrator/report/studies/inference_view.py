"""All models and batch sizes of inference over images as one part of the page: the answer, then a
chart and a table a quantity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.usage.inference import (
    ON_CPU,
    InferencePoint,
    busy_from,
    inference_points,
)
from perfctl.orchestrator.report.charts.inference import all_charts
from perfctl.orchestrator.report.findings import SHOWN
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.records import Finding, Section, StudyView
from perfctl.orchestrator.report.studies.inference import facts_of, findings_of, names_of
from perfctl.orchestrator.report.studies.inference_tables import tables_of, why

KEY = "infer"
"""Of the view of all models: its sections are "infer-latency" and so on."""
SECTIONS = {
    "throughput": "Images per second",
    "latency": "Latency",
    "utilisation": "Utilisation",
    "memory": "Memory",
    "accuracy": "Accuracy",
    "all": "All figures",
}


def inference_view(found: Sequence[Study]) -> StudyView:
    """All models and batch sizes in one part of the page: the answer first, then a chart and a
    table a quantity.

    ``found``: studies of inference over images.
    """
    runs = [run for study in found for run in study.runs]
    points = inference_points(runs)
    busy = busy_from(points)
    charts, tables = all_charts(points), dict(tables_of(points, busy, {}))
    sections = []
    for key, title in SECTIONS.items():
        shown, folded = tables.get(key, ((), ()))
        if key == "all":
            shown, folded = (), (*shown, *folded)
        drawn, lacking = charts.get(key, ()), " ".join(_lacking(key, points))
        if shown or folded or drawn or lacking:
            sections.append(
                Section(key, title, tables=shown, folded=folded, charts=drawn, note=lacking or None)
            )
    models = names_of(points)
    title = ", ".join(models) if len(models) <= 3 else f"{len(models)} models"
    said = tuple(
        item
        for item in findings_of(points, busy)
        if item.evidence in {part.key for part in sections}
    )
    bad = tuple(
        Finding(f"{point.model} at batch {point.batch}: {problem}.", "all", warning=True)
        for point in points
        for problem in point.problems
    )
    facts = (*facts_of(points), ("from", about.began(runs)))
    return StudyView(
        KEY,
        f"Inference: {title}",
        facts,
        about.origins(runs),
        said[:SHOWN],
        said[SHOWN:],
        bad,
        tuple(sections),
    )


def _lacking(key: str, points: Sequence[InferencePoint]) -> Iterator[str]:
    """Why a chart is not drawn, one sentence each."""
    timed = [point for point in points if point.latency is not None]
    if key == "latency" and all(
        one.latency is None or one.latency.percentiles[95] is None for one in timed
    ):
        yield "No p95: it needs 20 full batches, so 20 times the batch size in --images."
    if key == "utilisation":
        if all(point.on_cpu for point in points):
            yield f"No utilisation of a GPU, its tensor cores or its memory: {ON_CPU}."
        elif all(point.gpu.value is None for point in points):
            yield f"No utilisation of the GPU: {points[0].gpu.reason}."
    if key == "accuracy" and all(
        one.latency is None or one.latency.figures.get("top1") is None for one in timed
    ):
        yield f"No accuracy: {why(timed[0], 'top1')}."
