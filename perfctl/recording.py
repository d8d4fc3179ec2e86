"""Measure the steps of a block of Python code in this process: a cell of a notebook."""

from __future__ import annotations

import gc
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.frames import ledger
from perfctl.orchestrator import memory
from perfctl.orchestrator.commands.plot import charts
from perfctl.orchestrator.errors import PerfctlError, RunFailed, UsageError
from perfctl.orchestrator.launch.machine.doctor import collect_host_facts
from perfctl.orchestrator.launch.sweep.folders import (
    RunPaths,
    SweepSetting,
    list_run_folders,
    make_safe_file_name,
    measure_size_bytes,
    rename_partial_run_folder,
    write_json_atomically,
)
from perfctl.orchestrator.store import DEFAULT_STORE, database
from perfctl.orchestrator.store.write import SweepFacts
from perfctl.orchestrator.stored_runs import load_sweep_runs

if TYPE_CHECKING:
    import pandas as pd

    from perfctl.orchestrator.report.charts.files import Picture
    from perfctl.workloads.run.record import WorkloadRecord

SHOWN = (
    "batch",
    "layer",
    "direction",
    "estimated_flops",
    "executed_flops",
    "ratio",
    "time_ns",
    "share",
)
"""Columns of the ledger that a notebook shows after the block."""


@dataclass(slots=True)
class Recording:
    """A block that is being recorded; after the block, the run that it became. A notebook shows the
    ledger and the charts of all batch sizes that were recorded under its name."""

    store: Path
    name: str
    sweep: str
    """Name under which the results database has the runs of the same name."""
    run_id: int | None = None
    """Id of the run in the results database; None inside the block."""

    def ledger(self) -> pd.DataFrame:
        """Return the ledger of the runs of this name: see ``perfctl.ledger``."""
        return ledger(load_sweep_runs(self.store, [self.sweep]))

    def charts(self) -> dict[str, Picture]:
        """Return the charts of the results database: see ``perfctl.charts``. Empty if there is
        nothing to draw yet."""
        try:
            return charts(self.store)
        except PerfctlError:
            return {}

    def _ipython_display_(self) -> None:
        from IPython import display

        show: Any = display.display

        if self.run_id is not None:
            print(f"Run {self.run_id} of {self.store}")
            rows = self.ledger()
            show(rows[[name for name in SHOWN if name in rows]], *self.charts().values())


@contextmanager
def record(
    *,
    batch: int,
    steps: int = 3,
    warmup: int = 1,
    step_marker: str = "auto",
    name: str = "notebook",
    store: Path | str = DEFAULT_STORE,
    out: Path | str = "perfctl-runs",
) -> Iterator[Recording]:
    """Record the steps of the block with torch.profiler and store them as a run.

    perfctl recognizes steps as in a script: the step of an optimizer ends a step; without an
    optimizer a backward pass, otherwise a call of the model. perfctl records ``steps`` steps after
    ``warmup`` steps, and one of the latter for the shapes of the layers. The remaining steps run
    without the profiler.

    - ``batch``: samples per step.
    - ``name``: workload of the run. perfctl compares runs of the same name.
    - ``step_marker``: as ``--step-marker``.
    - ``out``: folder of the trace.

    perfctl warns if the block has fewer steps. Raises UsageError, RunFailed for a block without a
    step, StoreError. An exception of the block passes through; perfctl stores the steps before it
    as a partial run.
    """
    from perfctl.workloads import spec

    if batch < 1 or steps < 1 or warmup < 0:
        raise UsageError("`batch` and `steps` must be at least 1, `warmup` at least 0")
    if not spec.is_valid_step_marker(step_marker):
        raise UsageError(
            f"`step_marker` must be one of {', '.join(spec.MARKERS)}, optimizer:CLASS or "
            f"forward:CLASS; got {step_marker}"
        )
    try:
        import torch
    except ImportError as error:
        raise PerfctlError(
            f"torch cannot be imported ({error})", "Run 'pip install torch'"
        ) from error
    from perfctl.workloads.script.options import ScriptCommand, ScriptOptions
    from perfctl.workloads.script.record import ScriptRecordWriter
    from perfctl.workloads.script.watch import ScriptWatch

    with database.open_store_for_writing(Path(store)):
        pass  # refused before anything runs
    folder = Path(out).absolute() / f"torch-{make_safe_file_name(name)}"
    setting = SweepSetting(batch)
    paths = RunPaths(folder, setting, len(list_run_folders(folder, setting)) + 1)
    trace = paths.get_report_path(".pt.trace.json.gz")
    options = ScriptOptions(
        ScriptCommand("script", name, ()),
        (),
        batch_size=batch,
        record=paths.workload_record,
        annotate="record_function",
        window="torch",
        trace=trace,
        steps=steps,
        warmup=warmup,
        step_marker=step_marker,
    )
    shutil.rmtree(paths.partial_folder, ignore_errors=True)
    problems: list[str] = []
    keeper = ScriptRecordWriter(options, problems.append)
    keeper.write()
    watch = ScriptWatch(options, keeper)
    watch.start(
        *(item for item in gc.get_objects() if issubclass(type(item), torch.optim.Optimizer))
    )
    keeper.before_end = watch.end_and_explain_missing_steps
    recording = Recording(Path(store), name, folder.name)
    try:
        yield recording
    except BaseException as error:
        keeper.finish_record_on_script_end(error)
        if any(step.phase == "step" for step in keeper.record.steps):
            _store_recording(recording, paths, keeper.record, trace)
        raise
    keeper.finish_record_on_script_end(None)
    if not keeper.record.steps:
        raise RunFailed(f"nothing was recorded: {keeper.record.reason}")
    for problem in problems:
        warnings.warn(problem, stacklevel=3)
    _store_recording(recording, paths, keeper.record, trace)
    _show_in_notebook(recording)


def _store_recording(
    recording: Recording, paths: RunPaths, record: WorkloadRecord, trace: Path
) -> None:
    """Complete the run's folder and take it into the results database."""
    from perfctl.orchestrator.ingest.sweep import ingest_finished_run

    write_json_atomically(
        paths.partial_folder / "run.json",
        {
            "perfctl_run": 1,
            "profiler": "torch",
            "origin": "measured",
            "workload": recording.name,
            "batch_size": record.batch_size,
            "parameters": paths.setting.parameters,
            "status": record.status,
            "reason": record.reason,
            "exit_code": int(record.status == "failed"),
            "started_at": record.started_at,
            "duration_ns": record.duration_ns,
            "artifact": trace.name,
            "artifact_bytes": measure_size_bytes(trace),
            "commands": [],
            "environment": collect_host_facts(),
        },
    )
    rename_partial_run_folder(paths)
    call = f"perfctl.record(batch={record.batch_size}, name={recording.name!r})"
    facts = SweepFacts(paths.sweep_folder.name, "sweep", call, platform.node())
    written = ingest_finished_run(
        paths.folder, facts, memory.parse_memory_limit(None), store=recording.store, again=False
    )
    recording.run_id = written.run_id if written is not None else None


def _show_in_notebook(recording: Recording) -> None:
    """Show it in a notebook; elsewhere nothing."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell":
        recording._ipython_display_()
