"""The request for a sweep, the results of its runs, and the listener to its progress. With it, the
revision of the user's code."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

from perfctl.orchestrator.launch import annotator
from perfctl.orchestrator.launch.images import run as images_run
from perfctl.orchestrator.launch.images.run import ContainerImage
from perfctl.orchestrator.launch.machine import devices, tools
from perfctl.orchestrator.launch.machine.devices import DevicePlacement
from perfctl.orchestrator.launch.process.progress import StallRule
from perfctl.orchestrator.launch.profilers.base import (
    Command,
    ProcessOutcome,
    RequiredTool,
    RunStatus,
)
from perfctl.orchestrator.launch.program import LAUNCHER_NAMES, UserProgram, fill_placeholders
from perfctl.orchestrator.launch.sampling import sampler
from perfctl.orchestrator.launch.sampling.sampler import SamplingSettings
from perfctl.orchestrator.launch.sweep.folders import RunPaths, SweepSetting, make_safe_file_name
from perfctl.orchestrator.launch.sweep.options import SweepOptions, list_sweep_settings

STOPPING = ("nsys", "ncu")
"""Profilers that end the user's program after its measured steps unless asked otherwise."""
LIMIT_S = 5.0
"""Of one question: a repository that takes longer is treated as unknown."""
QUIET = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""Options of git: neither the index is refreshed nor a program of the repository's own started."""


def read_git_revision(folder: Path, script: Path | None = None) -> dict[str, str]:
    """Return facts for a run's environment: commit, commit_time (ISO 8601) and uncommitted_changes
    ("yes" or "no").

    folder: where the code lies. script: a file of it that is run; one that git does not track is a
    change, too. Other untracked files are not looked at. Empty without git, without a repository
    and without a commit; a fact that git does not give in time is left out.
    """
    head = run_git(folder, "log", "-1", "--no-show-signature", "--format=%H %cI", "HEAD")
    commit, _, commit_time = (head or "").strip().partition(" ")
    if not commit:
        return {}
    changed = run_git(
        folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none"
    )
    tracked = "" if script is None else run_git(folder, "ls-files", "--", str(script.absolute()))
    facts = {"commit": commit, "commit_time": commit_time}
    if changed is None or tracked is None:
        return facts
    is_changed = bool(changed.strip()) or (script is not None and not tracked.strip())
    return {**facts, "uncommitted_changes": "yes" if is_changed else "no"}


def run_git(folder: Path, *arguments: str, limit_s: float = LIMIT_S) -> str | None:
    """Return what git says in ``folder``; None where it is missing, refuses or takes too long."""
    try:
        code, lines, _ = tools.run_with_time_limit(
            ["git", *QUIET, "-C", str(folder), *arguments], limit_s
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return "\n".join(lines) if code == 0 else None


class Profiler(Protocol):
    """One profiler; its options are fields."""

    @property
    def name(self) -> str:
        """The value of ``run.profiler``."""

    def list_missing_tools(self) -> tuple[RequiredTool, ...]:
        """Tools that this profiler needs and this machine lacks; empty when it can run."""

    def build_commands(self, request: SweepRequest) -> tuple[Command, ...]:
        """Return what to start for one run, in order; a command runs only if the file that it needs
        exists."""

    def get_report_path(self, paths: RunPaths) -> Path:
        """Return the file or folder that the parsers read."""

    def determine_run_status(
        self, request: SweepRequest, outcomes: tuple[ProcessOutcome, ...]
    ) -> RunStatus:
        """Return the verdict from exit codes, logs and the report together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest(SweepOptions):
    """One sweep, checked: a workload under a profiler at several settings. With one setting, and an
    ``attempt``, it is one run.

    ``workload`` is the name of the built-in workload or of ``program``, ``device`` is cpu or cuda.
    """

    profiler: Profiler
    workload: str
    workload_arguments: tuple[str, ...] = ()
    """Options of the workload for its command line, without --batch and --record."""
    device: str
    host: str
    origin: str = "measured"
    """measured; recorded for a replay."""
    python: str = sys.executable
    """The interpreter that runs a built-in workload."""
    program: UserProgram | None = None
    """The user's program to run instead of a built-in workload."""
    container: ContainerImage | None = None
    """The image to run in; None for none."""
    places: tuple[DevicePlacement, ...] = ()
    """One run at a time on each of these; empty for one run after the other, without placement."""
    chosen: tuple[SweepSetting, ...] = ()
    """What to run; empty for what ``batches`` and ``sweep`` state."""
    attempt: int = 1
    """Number of the run at its setting."""

    @property
    def name(self) -> str:
        """The same request always has the same name, so that it finds its existing runs; an edited
        script changes it."""
        if self.sweep_name is not None:
            return self.sweep_name
        identity: list[object] = [
            self.profiler.name,
            self.profiler_options,
            self.workload,
            self.workload_arguments,
            self.device,
            self.origin,
            *(self.program.list_identity_values() if self.program else ()),
            *(self.container.list_identity_values() if self.container else ()),
        ]
        digest = hashlib.sha256(
            json.dumps(identity, default=str, sort_keys=True).encode()
        ).hexdigest()
        return f"{self.profiler.name}-{make_safe_file_name(self.workload)}-{digest[:8]}"

    @property
    def profiler_options(self) -> dict[str, Any]:
        """Return its options. Those of a time window are there only if set: releases before 2.0,
        whose sweeps continue under the same name, had none."""
        options: dict[str, Any] = asdict(self.profiler) if is_dataclass(self.profiler) else {}
        unset = {name for name in ("delay", "duration") if options.get(name) is None}
        return {name: value for name, value in options.items() if name not in unset}

    @property
    def folder(self) -> Path:
        return self.out / self.name

    def make_single_run_request(self, setting: SweepSetting, attempt: int = 1) -> SweepRequest:
        """Return the request of one run, whose folder keeps its name if the script is edited."""
        return replace(self, chosen=(setting,), attempt=attempt, sweep_name=self.name)

    @property
    def settings(self) -> tuple[SweepSetting, ...]:
        """What to run, one process each."""
        return self.chosen or list_sweep_settings(self)

    @property
    def setting(self) -> SweepSetting:
        """The setting of a run."""
        return self.settings[0]

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.folder.absolute(), self.setting, self.attempt)

    @property
    def is_uninstrumented(self) -> bool:
        """Whether nothing of perfctl runs in the program, which thus marks no layers or steps."""
        return self.program is not None and self.program.python is None

    @property
    def variant(self) -> str | None:
        """What the user's program was started with, apart from the batch size; None without any,
        and for a built-in workload, which says it itself."""
        variant = self.program.variant if self.program else None
        return variant and fill_placeholders(variant, dict(self.setting.others))

    @property
    def interpreter(self) -> str:
        """The interpreter that runs the workload, or the program that runs as it is."""
        if self.program is not None:
            return self.program.python or self.program.words[0]
        return self.python if self.container is None else images_run.PYTHON

    @property
    def records_time_window(self) -> bool:
        """Whether a time window of the program is recorded, instead of steps."""
        return "duration" in self.profiler_options

    @property
    def annotator_archive(self) -> Path | None:
        """The file that runs inside a process of an interpreter other than perfctl's own; None
        where none is needed."""
        path = self.folder.absolute() / annotator.NAME
        if self.profiler.name == "torch" and self.records_time_window:
            return path
        if self.program is None or self.container:
            return None
        return None if self.program.python in (None, sys.executable) else path

    @property
    def visible_devices(self) -> str | None:
        """CUDA_VISIBLE_DEVICES of the runs; None where it is not set."""
        return self.placement_environment.get(devices.VISIBLE, os.environ.get(devices.VISIBLE))

    @property
    def placement_environment(self) -> Mapping[str, str]:
        """Variables of the only place; empty for none, and for several."""
        return self.places[0].environment if len(self.places) == 1 else {}

    @property
    def container_prefix(self) -> tuple[str, ...]:
        """Words that run a command inside the image; empty without an image."""
        return self.container.build_command_prefix() if self.container else ()

    @property
    def is_rank_launcher(self) -> bool:
        """Whether the program is a launcher, which starts a script once per rank."""
        return (
            self.program is not None
            and not self.is_uninstrumented
            and self.program.words[0] in LAUNCHER_NAMES
        )

    @property
    def stops_after_measured_steps(self) -> bool:
        """Whether the user's program ends after its measured steps. Programs with ranks never do:
        a rank that stops would leave the others waiting."""
        if self.program is None or self.is_rank_launcher or self.is_uninstrumented:
            return False
        if self.to_end is not None:
            return not self.to_end
        return self.profiler.name in STOPPING and not self.profiler_options.get("whole")

    def make_stall_rule(self, command: Command) -> StallRule | None:
        """When a run of ``command`` counts as stuck; None for never, as for exports, which may
        write at their end only."""
        if self.stall is None or command.needs is not None:
            return command.stall
        return StallRule(self.stall) if self.stall else None

    @property
    def folders_to_bind(self) -> list[Path]:
        """Folders that a run inside an image needs besides the working directory and
        the sweep's."""
        script = self.program.script if self.program else None
        return [*([self.scratch] if self.scratch else []), *([script.parent] if script else [])]

    def build_workload_command(
        self,
        *,
        layer_marking: str,
        step_window_method: str,
        trace_path: Path | None = None,
        profiler_prefix: tuple[str, ...] = (),
        only_rank: int | None = None,
    ) -> tuple[str, ...]:
        """Return the command line of the workload, with the words before it that start the profiler
        (``profiler_prefix``).

        ``layer_marking``: how layers are marked: "nvtx", "record_function" or "none".
        ``step_window_method``: how the profiler learns of the measured steps: "cuda"
        (cudaProfilerStart/Stop), "torch" (the workload runs torch.profiler and writes
        ``trace_path``) or "none". Every rank of a launcher starts the profiler itself by
        ``profiler_prefix``, with RANK in its files' names; with ``only_rank``, that rank alone.
        """
        program, in_ranks = self.program, profiler_prefix if self.is_rank_launcher else ()
        program_words = program.fill_command(self.setting.parameters) if program else ()
        if self.is_uninstrumented:
            return (*profiler_prefix, *program_words)
        later = {
            "--under": json.dumps(in_ranks) if in_ranks else None,
            "--under-rank": only_rank if in_ranks else None,
        }
        return (
            *(() if in_ranks else profiler_prefix),
            self.interpreter,
            *(program.flags if program else ()),
            *(
                ("-m", "perfctl.workloads")
                if self.annotator_archive is None
                else (str(self.annotator_archive),)
            ),
            *(() if program else (self.workload,)),
            *self.format_annotator_options(layer_marking, step_window_method, trace_path),
            *format_option_words(later),
            *(("--stop",) if self.stops_after_measured_steps else ()),
            *(("--", *program_words) if program else ()),
        )

    def format_annotator_options(
        self, layer_marking: str, step_window_method: str, trace_path: Path | None
    ) -> tuple[str, ...]:
        """Return the words that tell the code inside the process what to record."""
        other_parameters = dict(self.setting.others)
        swept = {f"--{name.replace('_', '-')}": value for name, value in other_parameters.items()}
        options = {
            "--batch": self.setting.batch,
            "--record": self.paths.workload_record,
            "--annotate": layer_marking,
            "--window": step_window_method,
        }
        return (
            *format_option_words(options),
            *(
                fill_placeholders(argument, other_parameters)
                for argument in self.workload_arguments
            ),
            *(() if self.program else format_option_words(swept)),
            *format_option_words({"--trace": trace_path}),
        )

    def build_run_commands(self) -> tuple[Command, ...]:
        """Return the commands of one run, inside the sweep's image, with the environment of its
        place if there is only one, and with the program's variables."""
        variables, program = dict(self.placement_environment), self.program
        if program is not None:
            parameters = self.setting.parameters
            variables |= {name: parameters[parameter] for parameter, name in program.variables}
            is_as_typed = self.is_uninstrumented or self.records_time_window
            if is_as_typed and program.batch_env and self.setting.batch is not None:
                variables[program.batch_env] = parameters["batch"]
        commands = tuple(
            replace(command, environment={**command.environment, **variables})
            for command in self.profiler.build_commands(self)
        )
        if self.container is None:
            return commands
        folders = (self.folder, *self.folders_to_bind)
        return tuple(
            self.container.wrap_command(command, folders, Path.cwd()) for command in commands
        )

    def collect_run_record_facts(self, commands: Iterable[Command] = ()) -> dict[str, str]:
        """Return facts for a run's record: its container, the commit of the program, its place, and
        what its commands chose."""
        facts: dict[str, str] = {}
        if self.origin == "measured":
            runs_in = self.container or images_run.find_surrounding_container()
            facts |= runs_in.collect_run_record_facts() if runs_in else {}
            if self.program is not None:
                script = self.program.script
                facts |= read_git_revision(script.parent if script else Path.cwd(), script)
        facts |= self.places[0].collect_run_record_facts() if len(self.places) == 1 else {}
        for command in commands:
            facts |= command.facts
        return facts

    def make_sampling_settings(self, command: Command) -> SamplingSettings | None:
        """Return what to sample during a run; None when sampling is off or the run is a replay."""
        seconds = sampler.parse_sampling_interval(self.sample)
        if seconds is None or self.origin != "measured":
            return None
        visible = command.environment.get(devices.VISIBLE, self.visible_devices)
        return SamplingSettings(seconds, self.paths.partial_folder, self.device == "cuda", visible)

    def list_placements_to_lock(self) -> tuple[DevicePlacement, ...]:
        """Return the places to lock during the sweep: those requested, or the GPU that programs use
        by default."""
        if self.places or self.device != "cuda" or self.origin != "measured":
            return self.places
        first = devices.find_default_gpu()
        return (first,) if first else ()


def format_option_words(options: Mapping[str, object]) -> tuple[str, ...]:
    """Return options and their values as words, without those whose value is None."""
    stated = {option: value for option, value in options.items() if value is not None}
    return tuple(argument for option, value in stated.items() for argument in (option, str(value)))


@dataclass(frozen=True, slots=True)
class OneSetting:
    """One setting of a sweep."""

    setting: SweepSetting

    @property
    def batch_size(self) -> int | None:
        """null: none was asked for."""
        return self.setting.batch

    @property
    def parameters(self) -> dict[str, str]:
        """Name -> value of each parameter of the sweep, batch among them."""
        return self.setting.parameters


@dataclass(frozen=True, slots=True)
class RunResult(OneSetting):
    """The result of one run; ``folder`` holds its files."""

    JSON_KEYS = (
        *("batch_size", "parameters", "status", "reason", "skipped", "duration_ns", "folder"),
    )

    status: Annotated[str, ("ok", "partial", "failed")]
    reason: str | None
    """null: it is ok."""
    folder: Path
    skipped: bool = False
    """The run was complete already, and nothing ran."""
    duration_ns: int | None = None
    """Of the whole run; null: nothing ran, or it did not end."""
    repeat: int = 1
    """Number of the repeat, from 1."""


@dataclass(frozen=True, slots=True)
class SweepListener:
    """Callbacks for the progress of a sweep."""

    started: Callable[[SweepSetting, str], None] = lambda setting, stage: None
    """(setting, stage) before each process."""
    noted: Callable[[str], None] = lambda text: None
    """What the user should know of a run that starts now."""
    finished: Callable[[RunResult], None] = lambda result: None
    stopped: Callable[[RunResult], None] = lambda result: None
    """The result of a run that was stopped; Interrupted is raised next."""
