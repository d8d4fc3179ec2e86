"""Which runs belong together: the same workload, options, mode, precision and device, under any profiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from perfctl.records.run import Run

MODES = {"train": "training", "infer": "inference"}


@dataclass(frozen=True, slots=True)
class Study:
    """Runs that may be read side by side, in order of batch size; a foreign report is a study of its own."""

    workload: str | None
    """None for a report that was made elsewhere and does not say."""
    mode: str | None
    precision: str | None
    device: str | None
    variant: str | None
    """The workload's own options that are not at their default; None when all are."""
    runs: tuple[Run, ...]

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes that were asked for, ascending; failed ones too."""
        return tuple(sorted({run.batch_size for run in self.runs if run.batch_size is not None}))

    def at(self, batch: int) -> tuple[Run, ...]:
        """The runs at one batch size."""
        return tuple(run for run in self.runs if run.batch_size == batch)

    @property
    def foreign(self) -> bool:
        """True for a report without workload or batch size: perfctl does not know what ran."""
        return self.workload is None or not self.batches

    @property
    def on_paper(self) -> bool:
        """True where there is a ledger: of a run of perfctl's, of a report that holds its operators' shapes, and of a trace of
        torch.profiler whose kernels have layers, which has times without paper FLOPs."""
        return not self.foreign or any(run.report.ops or _has_layers(run) for run in self.runs)


def _has_layers(run: Run) -> bool:
    kernels = run.report.kernels
    return (
        run.report.tool == "torch" and isinstance(kernels, Sequence) and any(one.layer is not None for one in kernels)
    )


def heading(study: Study) -> str:
    """ "mnist_cnn, training, fp32", or the name of the report's file."""
    if study.workload is None:
        run = study.runs[0]
        return PurePath(run.artifact).name if run.artifact else f"{run.profiler} run {run.id}"
    parts = (study.workload, study.variant, MODES.get(study.mode or "", study.mode), study.precision)
    return ", ".join(part for part in parts if part)


def device_label(run: Run) -> str | None:
    """Name of the device, or its kind; None when no record says."""
    return next((device.name or device.kind for device in run.devices), None)


def device_kind(run: Run) -> str | None:
    """gpu or cpu; None when no record says."""
    if run.report.kernels:
        return "gpu"
    if run.device is not None:
        return run.device.kind
    kinds = [device.kind for device in run.report.devices]
    return "gpu" if "gpu" in kinds else next(iter(kinds), None)


def studies(runs: Iterable[Run]) -> tuple[Study, ...]:
    """Group runs, in order of first appearance.

    A run that failed before it knew its device or precision joins the study of its workload and mode.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    unsure: list[Run] = []
    for run in runs:
        if run.workload is None or run.batch_size is None:
            groups[("foreign", run.id, len(groups))] = [run]
        elif run.status == "failed" and (device_label(run) is None or run.precision is None):
            unsure.append(run)
        else:
            groups.setdefault(_key(run), []).append(run)
    for run in unsure:
        home = next((key for key in groups if _fits(key, run)), _key(run))
        groups.setdefault(home, []).append(run)
    return tuple(
        Study(*_key(members[0]), tuple(sorted(members, key=lambda run: (run.batch_size or 0, run.profiler, run.id))))
        for members in groups.values()
    )


def parts(found: Iterable[Study]) -> tuple[tuple[Study, ...], ...]:
    """Studies of one sweep or ingest with the same workload and mode, which differ in device, precision or options.

    Each study is in one group, in order of first appearance; a report made elsewhere, and the ranks of one job, alone.
    """
    groups: list[list[Study]] = []
    for study in found:
        home = next((group for group in groups if _together(group, study)), None)
        if home is None:
            groups.append([study])
        else:
            home.append(study)
    return tuple(map(tuple, groups))


def _together(group: Iterable[Study], study: Study) -> bool:
    sweeps = {run.sweep_id for run in study.runs}
    alone = any(one.foreign or any((run.report.world_size or 1) > 1 for run in one.runs) for one in (*group, study))
    return not alone and any(
        (one.workload, one.mode) == (study.workload, study.mode) and sweeps & {run.sweep_id for run in one.runs}
        for one in group
    )


def _key(run: Run) -> tuple[str | None, str | None, str | None, str | None, str | None]:
    return (run.workload, run.mode, run.precision, device_label(run), run.variant)


def _fits(key: tuple[object, ...], run: Run) -> bool:
    if len(key) != 5 or key[0] != run.workload:
        return False
    return all(mine is None or mine == theirs for mine, theirs in zip(_key(run)[1:], key[1:], strict=True))
