"""Replay a recorded run instead of running a profiler. Needs no GPU; the rest of perfctl treats it
as any run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.profilers import outcome
from perfctl.orchestrator.launch.profilers.base import (
    Command,
    ProcessOutcome,
    RequiredTool,
    RunStatus,
)
from perfctl.orchestrator.launch.profilers.dlprof import DLProf
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.profilers.outcome import ToolProfiler
from perfctl.orchestrator.launch.profilers.torch import NoProfiler, TorchProfiler
from perfctl.orchestrator.launch.sweep.folders import (
    RECORD_NAME,
    RunPaths,
    SweepSetting,
    list_run_folders,
    parse_run_folder_name,
    read_json_object,
    read_sweep_setting,
)
from perfctl.orchestrator.launch.sweep.request import SweepRequest

RECORDERS: dict[str, type[ToolProfiler]] = {
    "nsys": Nsys,
    "ncu": Ncu,
    "dlprof": DLProf,
    "torch": TorchProfiler,
    "none": NoProfiler,
}
"""Name of each profiler that runs a program -> its class, whose fields are its options."""
_COPY = "perfctl.orchestrator.launch.profilers.replay_copy"


@dataclass(frozen=True, slots=True)
class Replay:
    """Replays ``folder``, the recorded folder of a sweep (with b16/, b32/, ...)."""

    folder: Path

    @property
    def name(self) -> str:
        """The recorded profiler's name. Raises UsageError when ``folder`` is not a recording."""
        name = self._read_recorded_value("profiler")
        if name is None or name not in RECORDERS or name == "none":
            remedy = "Use the folder that holds sweep.json and b16, b32 and so on"
            raise UsageError(f"{self.folder} is not a recorded sweep", remedy)
        return name

    def list_recorded_settings(self, batches: tuple[int, ...] = ()) -> tuple[SweepSetting, ...]:
        """Return the recorded settings, in order; with ``batches``, those of these batch sizes, and
        one for each size that was not recorded."""
        recorded = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            name = parse_run_folder_name(path.name)
            if name is not None and not name[1] and path.is_dir():
                record = read_json_object(path / "run.json") or {}
                recorded.append(read_sweep_setting(record) if record.get("parameters") else name[0])
        recorded.sort(key=lambda setting: setting.sort_key)
        if not batches:
            return tuple(recorded)
        of_size = {
            batch: [setting for setting in recorded if setting.batch == batch] for batch in batches
        }
        return tuple(
            setting for batch in batches for setting in of_size[batch] or [SweepSetting(batch)]
        )

    def find_smallest_repeat_count(self, settings: Iterable[SweepSetting]) -> int:
        """Return number of runs that every setting has (b16, b16.2, b16.3, ...); 1 for one without
        a recording."""
        return max(
            min((len(list_run_folders(self.folder, recorded)) for recorded in settings), default=1),
            1,
        )

    def read_recorded_workload_name(self) -> str:
        """Name of the recorded workload. Raises UsageError when no file of the recording has it."""
        name = self._read_recorded_value("workload")
        if name is None:
            remedy = "Use the folder that holds b16, b32 and so on, each with run.json"
            raise UsageError(f"{self.folder} is not a recorded sweep", remedy)
        return name

    def read_recorded_device(self) -> str:
        """cpu or cuda, as recorded; cuda when no file of the recording has it."""
        return self._read_recorded_value("device") or "cuda"

    def _read_recorded_value(self, key: str) -> str | None:
        """Return the value in the sweep's record, else in the first run's record that has it."""
        runs = (
            self.folder / setting.file_name / "run.json"
            for setting in self.list_recorded_settings()
        )
        values = (
            (read_json_object(path) or {}).get(key) for path in (self.folder / "sweep.json", *runs)
        )
        return next((str(value) for value in values if value), None)

    def list_missing_tools(self) -> tuple[RequiredTool, ...]:
        return ()

    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        """Raises UsageError when ``folder`` is not a recording. A missing setting fails when it
        runs."""
        assert self.name
        first = self.folder.absolute() / request.setting.file_name
        repeat = first.with_name(request.paths.folder.name)
        source = repeat if repeat.is_dir() else first
        argv = (sys.executable, "-m", _COPY, str(source), str(request.paths.partial_folder))
        return (Command(argv, "replay"),)

    def get_report_path(self, paths: RunPaths) -> Path:
        usual = RECORDERS[self.name]().get_report_path(paths)
        return usual if usual.exists() else self._find_recorded_report(paths) or usual

    def _find_recorded_report(self, paths: RunPaths) -> Path | None:
        """Return the report that the record names, for a recording with other file names."""
        name = (read_json_object(paths.partial_folder / RECORD_NAME) or {}).get("artifact")
        if not isinstance(name, str) or Path(name).name != name:
            return None
        report = paths.partial_folder / name
        return report if report.is_file() and report.stat().st_size else None

    def determine_run_status(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> RunStatus:
        """Return the recorded verdict, if the recorded report exists and opens."""
        if outcomes[0].exit_code != 0:
            settings = self.list_recorded_settings()
            sizes = ", ".join(str(setting.batch or setting) for setting in settings) or "nothing"
            message = outcome.read_last_log_line(outcomes[0].stderr) or "the copy was stopped"
            return RunStatus("failed", f"{message}. Recorded: {sizes}")
        profiler = RECORDERS[self.name]()
        recorded = read_json_object(request.paths.partial_folder / RECORD_NAME) or {}
        reason = f"as recorded: {recorded['reason']}" if recorded.get("reason") else None
        problem = profiler.find_report_problem(request, outcomes)
        if problem and (
            profiler.get_report_path(request.paths).exists()
            or self._find_recorded_report(request.paths) is None
        ):
            return RunStatus("failed", reason or f"the recording is incomplete: {problem.text}")
        status = recorded.get("status")
        return (
            RunStatus(status, reason) if status in ("partial", "failed") else RunStatus("ok", None)
        )
