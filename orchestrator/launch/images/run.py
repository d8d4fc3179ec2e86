"""Run a command inside a container image with Apptainer or Singularity, and detect the container
perfctl runs in.

Profiler and program both go inside: a profiler outside the container records nothing and still
exits with code 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from perfctl.orchestrator.errors import ToolMissing, UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.base import Command

RUNTIMES = ("apptainer", "singularity")
"""Programs that run images; the first one on PATH is used."""
PYTHON = "python3"
"""The interpreter inside an image, looked up on the image's PATH."""
PASSED = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_*",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUBLAS_*",
    "CUDNN_*",
    "NVIDIA_*",
    "NCCL_*",
    "TORCH_*",
    "PYTORCH_*",
    "OMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "MASTER_*",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "HF_HOME",
    "HF_*_OFFLINE",
    "HF_DATASETS_CACHE",
    "XDG_CACHE_HOME",
    "SLURM_JOB_*",
    "SLURM_ARRAY_*",
    "SLURM_CPUS_*",
    "SLURM_GPUS*",
    "SLURM_N*",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "PBS_ARRAY_INDEX",
    "PBS_JOBID",
    "LSB_JOBID",
    "LSB_JOBINDEX",
    "SCRATCH",
    "LSCRATCH",
    "LOCAL_SCRATCH",
    "SLURM_TMPDIR",
    "TMPDIR",
    "PERFCTL_*",
)
"""Variables, as shell patterns, that reach an image. Others stay outside: LD_LIBRARY_PATH,
PYTHONPATH, CUDA_HOME and such name files of the host, and many hold secrets."""
SCRATCH = ("SCRATCH", "LSCRATCH", "LOCAL_SCRATCH", "SLURM_TMPDIR")
"""Variables in which sites name their scratch folders; an image sees those folders."""


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image and the options to run it with."""

    path: str
    """A .sif file or a folder, absolute; or an address with ``://`` in it."""
    runtime: str
    """One of RUNTIMES, or the path of such a program."""
    binds: tuple[str, ...] = ()
    """Folders the user wants inside: FOLDER, FROM:TO or FROM:TO:ro."""
    gpu: bool = False
    """Add the driver's libraries (--nv)."""

    def build_command_prefix(
        self, folders: Iterable[Path] = (), cwd: Path | None = None
    ) -> tuple[str, ...]:
        """Return the words before a command that run it inside the image with a clean environment,
        in ``cwd``; ``folders``, ``cwd`` and the site's scratch folders keep their paths. Raises
        UsageError like ``build_bind_values``."""
        default_binds = build_bind_values(
            (*folders, *list_site_scratch_folders(), *(() if cwd is None else (cwd,)))
        )
        binds = [option for bind in (*default_binds, *self.binds) for option in ("--bind", bind)]
        return (
            self.runtime,
            "exec",
            "--cleanenv",
            *choose_no_user_site_options(),
            *(("--nv",) if self.gpu else ()),
            *binds,
            *(("--pwd", str(cwd)) if cwd else ()),
            self.path,
        )

    def wrap_command(self, command: Command, folders: Iterable[Path], cwd: Path) -> Command:
        """``command``, run inside the image, with its environment variables set under
        either runtime."""
        argv = (*self.build_command_prefix(folders, cwd), *command.argv)
        return replace(
            command,
            argv=argv,
            environment=add_container_prefixed_variables(command.environment),
            in_image=True,
        )

    def list_identity_values(self) -> list[object]:
        """Return values that identify the image; rebuilding it changes them."""
        path = Path(self.path)
        stat = path.stat() if path.is_file() else None
        return [self.path, self.binds, (stat.st_size, int(stat.st_mtime)) if stat else None]

    def collect_run_record_facts(self) -> dict[str, str]:
        """Return facts for a run's record: runtime with version, and the image's name."""
        runtime_facts = (Path(self.runtime).name, tools.query_program_version(self.runtime))
        return {
            "container": " ".join(filter(None, runtime_facts)),
            "image": _get_image_name(self.path),
        }


def open_container_image(
    path: str, binds: Iterable[str] = (), runtime: str | None = None, *, gpu: bool = False
) -> ContainerImage:
    """Return the image at ``path``. Raises UsageError when it or a bind is not there, ToolMissing
    without a runtime."""
    if "://" not in path:
        if not Path(path).exists():
            raise UsageError(
                f"`image`: {path} does not exist",
                "perfctl image render writes a definition to build one",
            )
        path = os.path.abspath(path)  # noqa: PTH100  resolve() would follow links
    return ContainerImage(
        path,
        find_container_runtime(runtime),
        tuple(_validate_and_absolutize_bind(bind) for bind in binds),
        gpu,
    )


def find_container_runtime(name: str | None = None) -> str:
    """Return ``name``, or the first of RUNTIMES on PATH. Raises ToolMissing if there is none."""
    if runtime := next(filter(tools.find_program, (name,) if name else RUNTIMES), None):
        return runtime
    raise ToolMissing(
        f"{name or ' or '.join(RUNTIMES)} is not installed, and perfctl needs it to run images",
        "Install Apptainer (Debian 12: scripts/setup/apptainer_install.sh), or omit `image`",
    )


def add_container_prefixed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables as they are, plus the two prefixed forms that reach an image even where a site
    clears the others."""
    return {
        f"{prefix}{name}": value
        for name, value in environment.items()
        for prefix in ("", "APPTAINERENV_", "SINGULARITYENV_")
    }


def choose_no_user_site_options() -> tuple[str, ...]:
    """Return options that keep packages of the home folder out of an image, unless the user set the
    variable for images."""
    set_by_user = any(
        f"{runtime.upper()}ENV_PYTHONNOUSERSITE" in os.environ for runtime in RUNTIMES
    )
    return () if set_by_user else ("--env", "PYTHONNOUSERSITE=1")


def collect_variables_passed_into_image() -> dict[str, str]:
    """Return the variables of PASSED that are set here, in the forms that reach an image; a form
    that the user set wins."""
    names = [name for name in os.environ if any(fnmatchcase(name, pattern) for pattern in PASSED)]
    forms = add_container_prefixed_variables({name: os.environ[name] for name in names})
    return {name: value for name, value in forms.items() if name not in os.environ}


def list_site_scratch_folders() -> list[Path]:
    """Return the site's scratch folders (SCRATCH) that exist here and that --bind can express."""
    paths = (Path(value) for name in SCRATCH if (value := os.environ.get(name)))
    return [
        path
        for path in paths
        if path.is_absolute() and path.is_dir() and not set(str(path)) & set(":,")
    ]


def build_tmpdir_bind_variables(folder: Path) -> dict[str, str]:
    """Variables that bind a run's TMPDIR into the image, in addition to what the site binds with
    them. A deep TMPDIR is reached through a link; then the folder that holds the link is bound."""
    target = str(folder.parent if folder.is_symlink() else folder)
    names = ("APPTAINER_BIND", "SINGULARITY_BIND")
    return {name: ",".join(filter(None, (os.environ.get(name), target))) for name in names}


@dataclass(frozen=True, slots=True)
class SurroundingContainer:
    """The container that perfctl itself runs in."""

    runtime: str
    """apptainer, singularity, docker or podman."""
    image: str | None
    """Name of the image; None when the runtime does not report it."""

    def collect_run_record_facts(self) -> dict[str, str]:
        """Return facts for a run's record, with the keys of a ContainerImage's."""
        return {"container": self.runtime} | ({"image": self.image} if self.image else {})

    def __str__(self) -> str:
        return f"{self.runtime} ({self.image})" if self.image else self.runtime


def find_surrounding_container(root: Path = Path("/")) -> SurroundingContainer | None:
    """Return the container that this process runs in; None outside of containers."""
    for runtime in RUNTIMES:
        if path := os.environ.get(f"{runtime.upper()}_CONTAINER"):
            return SurroundingContainer(runtime, _get_image_name(path))
    marks = {".singularity.d": "apptainer", ".dockerenv": "docker", "run/.containerenv": "podman"}
    return next(
        (
            SurroundingContainer(runtime, None)
            for mark, runtime in marks.items()
            if (root / mark).exists()
        ),
        None,
    )


def _get_image_name(path: str) -> str:
    return path if "://" in path else Path(path).name


def build_bind_values(folders: Iterable[Path]) -> list[str]:
    """Return values for --bind that give ``folders`` the same paths inside; a folder inside another
    needs no bind. / is never bound. Raises UsageError for a path that --bind cannot express."""
    outermost: list[Path] = []
    for folder in sorted({folder.absolute() for folder in folders} - {Path("/")}):
        if not any(folder.is_relative_to(other) for other in outermost):
            outermost.append(folder)
    if bad := next((folder for folder in outermost if set(str(folder)) & set(":,")), None):
        raise UsageError(
            f"{bad} cannot be bound into an image: its path contains ':' or ','",
            "Use another folder",
        )
    return list(map(str, outermost))


def _validate_and_absolutize_bind(bind: str) -> str:
    """Return the bind with an absolute source. Raises UsageError unless it is FROM[:TO[:ro|rw]] and
    FROM exists."""
    source, _, options = bind.partition(":")
    target, _, mode = options.partition(":")
    if (
        not source
        or "," in bind
        or (options and not target.startswith("/"))
        or mode not in ("", "ro", "rw")
    ):
        example = "For example /data, /data:/mnt or /data:/mnt:ro"
        raise UsageError(f"`bind`: expected FOLDER[:TARGET[:ro|rw]], got '{bind}'", example)
    if not Path(source).exists():
        raise UsageError(
            f"`bind`: {source} does not exist", "Put a folder of this machine before the colon"
        )
    return ":".join(filter(None, (str(Path(source).absolute()), target, mode)))
