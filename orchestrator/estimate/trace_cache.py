"""Traces of models by their name, kept as JSON in the user's cache folder, so that a second call
needs no torch.

One file an entry, packed, and named by a digest of all that it depends on: the request, perfctl's
own code, the installed packages, the environment of the libraries, and the content of the user's
files. An entry is written whole or not at all. One that cannot be read, or that somebody else
wrote, is as good as none. Safe to use from several processes at once. Nothing is kept where
``PERFCTL_NO_CACHE`` is set.

The files that a user's factory consists of say what model it makes when the factory and the local
modules it imports import nothing but each other, the libraries of ``VERSIONED_LIBRARIES`` and
modules of Python that compute (``COMPUTING``), and read no file, no environment and no network.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import stat
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import perfctl.workloads
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.files import get_perfctl_user_folder
from perfctl.records import paper

COMPUTING = {
    "__future__",
    "abc",
    "bisect",
    "cmath",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "numbers",
    "operator",
    "re",
    "string",
    "textwrap",
    "types",
    "typing",
    "typing_extensions",
    "warnings",
    "weakref",
}
"""Modules of Python that give the same answers everywhere and at any time."""
_BUILT_IN = {"__import__", "eval", "exec", "open"}
_READS = {
    "device_count",
    "environ",
    "from_file",
    "from_pretrained",
    "fromfile",
    "genfromtxt",
    "getenv",
    "hub",
    "is_available",
    "load",
    "load_from_checkpoint",
    "load_state_dict_from_url",
    "loadtxt",
    "memmap",
    "open",
    "pretrained",
    "random",
    "read_bytes",
    "read_text",
    "urandom",
}
"""Names of what reads a file, the machine or the network, or draws by chance; ``_BUILT_IN``:
Python's own, or runs text."""
VERSIONED_LIBRARIES = (
    "torch",
    "triton",
    "torchvision",
    "torchaudio",
    "timm",
    "transformers",
    "diffusers",
    "numpy",
    "einops",
)
"""Packages whose code is known by their version."""
_VARIABLES = (
    "ATEN",
    "CUDA",
    "DIFFUSERS",
    "FLASH_ATTENTION",
    "HF_",
    "HUGGINGFACE",
    "NVIDIA",
    "PYTHON",
    "PYTORCH",
    "TIMM",
    "TORCH",
    "TRANSFORMERS",
    "TRITON",
    "USE_",
    "XFORMERS",
)
"""Beginnings of the environment variables that these libraries read."""
_OWN = ("CUDA_MODULE_LOADING", "TORCHINDUCTOR_CACHE_DIR")
"""Environment variables that torch sets itself when it is imported."""
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")
_STATED = (".dist-info", ".egg-info", ".egg-link", ".pth")
"""Ends of the names in a folder of packages that say what is installed: "torch-2.9.1.dist-info"."""
OFF = "PERFCTL_NO_CACHE"
"""Environment variable: anything but nothing, and nothing is kept or taken."""
MOST_BYTES = 256 << 20
"""Of all entries of a folder together; the ones that were not used for longest go first."""
LARGEST = 64 << 20
"""Bytes of one entry, and 16 times as many of its JSON."""
_ABANDONED = 3600
"""Seconds after which a temporary file is nobody's any more."""
T = TypeVar("T")
_Listed = tuple[tuple[str, str], ...]
"""Files, each with a digest of its content."""


def list_importable_names(folder: Path) -> list[str] | None:
    """Return the modules and folders that a factory in ``folder`` may import; None when it cannot
    be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name.endswith((".py", ".so", ".pyd"))
                or (entry.is_dir() and not entry.name.startswith((".", "__")))
            )
    except OSError:
        return None


def list_source_files_if_deterministic(module: str) -> list[Path] | None:
    """The local files that ``module``, which is imported, consists of; None where they do not
    say everything.

    A file that was written since this process started may not be what was imported.
    """
    since, files = _get_process_start_time(), list[Path]()
    waiting, visited = list(_list_module_and_parents(module)), set[str]()
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if name in visited or top in COMPUTING or top in VERSIONED_LIBRARIES:
            continue
        visited.add(name)
        if top in sys.stdlib_module_names:
            return None
        loaded = sys.modules.get(name)
        if loaded is None:
            if top in sys.modules and name != top:  # a class or function of a module, not a module
                continue
            return None
        file_name = getattr(loaded, "__file__", None)
        if file_name is None and hasattr(loaded, "__path__"):  # a folder without __init__.py
            continue
        path = Path(file_name or "").absolute()
        tree = _parse_pure_module(path, since)
        if tree is None:
            return None
        files.append(path)
        package = getattr(loaded, "__package__", None) or ""
        waiting += (
            part
            for target in _iterate_imported_modules(tree, package)
            for part in _list_module_and_parents(target)
        )
    return files


def _get_process_start_time() -> float:
    """When this process did, as times of files say it. Linux tells its age to 10 ms; psutil starts
    from the second in which the machine did, so that a file of the second before the call would
    be newer."""
    with suppress(OSError, ValueError, AttributeError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.time() - (
            time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        )
    import psutil

    return float(psutil.Process().create_time())


def _list_module_and_parents(name: str) -> Iterator[str]:
    """ "a.b.c" -> "a", "a.b", "a.b.c": all of them are run."""
    pieces = name.split(".")
    return (".".join(pieces[: length + 1]) for length in range(len(pieces)))


def _parse_pure_module(path: Path, process_start: float) -> ast.Module | None:
    """The source of a local module; None where it is not one, was just written, or reads more than
    its arguments."""
    if path.suffix != ".py" or "site-packages" in path.parts or "dist-packages" in path.parts:
        return None
    try:
        if path.stat().st_mtime >= process_start:
            return None
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    triton_names = set(_find_triton_language_aliases(tree))
    return (
        None
        if any(
            _may_read_external_state(node) and not _is_triton_attribute(node, triton_names)
            for node in ast.walk(tree)
        )
        else tree
    )


def _find_triton_language_aliases(tree: ast.Module) -> Iterator[str]:
    """What a file calls ``triton.language``, whose ``load`` reads a GPU's memory."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                alias.asname
                for alias in node.names
                if alias.name == "triton.language" and alias.asname
            )
        elif isinstance(node, ast.ImportFrom) and node.module == "triton" and not node.level:
            yield from (
                alias.asname or alias.name for alias in node.names if alias.name == "language"
            )


def _is_triton_attribute(node: ast.AST, triton_names: set[str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in triton_names
    )


def _may_read_external_state(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword) and node.arg == "pretrained":
        return not (isinstance(node.value, ast.Constant) and not node.value.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "input":
        return True
    if isinstance(node, ast.ImportFrom):
        return not _READS.isdisjoint(alias.name for alias in node.names)
    return (isinstance(node, ast.Name) and node.id in _BUILT_IN) or (
        isinstance(node, ast.Attribute) and node.attr in _READS
    )


def _iterate_imported_modules(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = resolve_name("." * node.level + base, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def digest_environment() -> str | None:
    """Return a digest of all that a trace depends on besides its request; None where that cannot be
    known.

    None: a library is a checkout, or lies outside of the folders of packages, so that its version
    does not say its code.
    """
    folders = dict(_list_package_folders())
    if not all(_is_absent_or_versioned(name, folders) for name in VERSIONED_LIBRARIES):
        return None
    variables = sorted(
        item
        for item in os.environ.items()
        if item[0].startswith(_VARIABLES) and item[0] not in _OWN
    )
    machine = (
        sys.version,
        sys.platform,
        platform.machine(),
        [name for name in _DEVICES if Path(name).exists()],
    )
    return compute_digest(
        sorted(name for names in folders.values() for name in names),
        variables,
        machine,
        _digest_tracing_code(),
    )


def _list_package_folders() -> Iterator[tuple[Path, list[str]]]:
    """Each folder of packages, with the names in it that say what is installed."""
    for root in dict.fromkeys(filter(None, sys.path)):
        try:
            # a hundred times faster
            names = [name for name in os.listdir(root) if name.endswith(_STATED)]  # noqa: PTH208
        except OSError:
            continue
        if names:
            yield Path(root), names


def _is_absent_or_versioned(name: str, package_folders: Iterable[Path]) -> bool:
    """Return whether the package is not there at all, or lies in a folder that states its
    version."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return True
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else ())]
    return bool(places) and any(Path(places[0]).parent == folder for folder in package_folders)


def _digest_tracing_code() -> str:
    """Return a digest of the code that builds, traces and records: in a checkout it changes without
    perfctl's version."""
    workloads = Path(next(iter(perfctl.workloads.__path__)))
    code = (Path(paper.__file__), Path(__file__), Path(__file__).with_name("session.py"))
    return digest_files((*sorted(workloads.rglob("*.py")), *code))


def digest_files(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the files' content, one after the other."""
    sha = hashlib.sha256()
    for file in files:
        sha.update(file.read_bytes())
    return sha.hexdigest()


def compute_digest(*parts: Any) -> str:
    """SHA-256 of values that JSON can hold."""
    return hashlib.sha256(
        json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")
    ).hexdigest()


def read_cache_entry(folder: Path, key: str, value_type: Any) -> Any:
    """The value of type ``value_type`` that was written under ``key``; None when there is none."""
    path = folder / f"{key}.json.gz"
    try:
        entry = msgspec.json.decode(_unpack_entry(path), type=dict[str, msgspec.Raw])
        if msgspec.json.decode(entry["key"]) != key:
            return None
        value = msgspec.json.decode(entry["value"], type=value_type)
        os.utime(path)
    except (OSError, ValueError, KeyError, RecursionError, zlib.error):
        return None
    return value


def write_cache_entry(folder: Path, key: str, value: Any) -> None:
    """Keep ``value``, a record. What JSON cannot hold, or what cannot be written, is not kept."""
    path = folder / f"{key}.json.gz"
    try:
        text = msgspec.json.encode({"key": key, "value": value})
    except (TypeError, ValueError, RecursionError):
        return
    packing = zlib.compressobj(1, wbits=31)
    packed = packing.compress(text) + packing.flush()
    if len(packed) > LARGEST or len(text) > 16 * LARGEST:
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(8).hex()}.tmp")
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            partial.write_bytes(packed)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        _evict_least_recently_used_entries(folder)


def _unpack_entry(path: Path) -> bytes:
    """Return the JSON of an entry. Raises OSError or ValueError for a file that is not one of this
    user's, or too large."""
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())
        if (
            not stat.S_ISREG(facts.st_mode)
            or facts.st_uid != os.geteuid()
            or facts.st_size > LARGEST
        ):
            raise ValueError(f"{path} is not an entry")
        packed = file.read(LARGEST + 1)
    unpacking = zlib.decompressobj(wbits=31)
    data = unpacking.decompress(packed, 16 * LARGEST)
    if not unpacking.eof:
        raise ValueError(f"{path} is truncated or too large")
    return data


def _evict_least_recently_used_entries(folder: Path) -> None:
    """Remove what was not used for longest until the rest is small enough, and what a killed
    process left."""
    entries, now = [], time.time()
    with os.scandir(folder) as directory:
        for entry in directory:
            with suppress(OSError):  # removed by another process
                facts = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".tmp") and now - facts.st_mtime > _ABANDONED:
                    Path(entry.path).unlink(missing_ok=True)
                elif entry.name.endswith(".json.gz"):
                    entries.append((facts.st_mtime, facts.st_size, entry.path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= MOST_BYTES:
            return
        Path(path).unlink(missing_ok=True)
        total -= size


class TraceCache:
    """What is kept of one request. Safe to use from several processes at once."""

    def __init__(
        self, folder: Path | None = None, base: str = "", module: str | None = None
    ) -> None:
        """``folder``: None if nothing is kept. ``module``: of the user's factory, as it is named
        once it is imported; None for a model of a library."""
        self.folder, self._base, self._module = folder, base, module
        self._files: str | None = None
        """A digest of the files that the model is made from; None while they are not known."""
        listed = self._read_entry("files", _Listed)
        if listed is not None and all(_digest_file(path) == stored for path, stored in listed):
            self._files = compute_digest(listed)

    def get(self, value_type: type[T], *key_parts: Any) -> T | None:
        """Return what was kept under ``key_parts`` (numbers and words); None when nothing was, or
        the files changed since."""
        return (
            self._read_entry(f"{self._files} {key_parts}", value_type)
            if self._files is not None
            else None
        )

    def put(self, value: Any, *key_parts: Any) -> None:
        """Keep ``value``, a record. What JSON cannot hold, or what cannot be written, is not
        kept."""
        if self._files is not None:
            self._write_entry(f"{self._files} {key_parts}", value)

    def record_source_file_digests(self, files: Sequence[Path] | None) -> None:
        """The model was built just now, from these files beside the libraries'; None: they do not
        say everything."""
        files = (
            list_source_files_if_deterministic(self._module) if self._module is not None else files
        )
        listed = (
            tuple((str(path), _digest_file(path)) for path in files) if files is not None else None
        )
        if listed is None or not all(stored for _, stored in listed):
            self._files = None
            return
        self._files = compute_digest(listed)
        self._write_entry("files", listed)

    def _read_entry(self, name: str, value_type: Any) -> Any:
        return (
            read_cache_entry(self.folder, compute_digest(self._base, name), value_type)
            if self.folder
            else None
        )

    def _write_entry(self, name: str, value: Any) -> None:
        if self.folder is not None:
            write_cache_entry(self.folder, compute_digest(self._base, name), value)


def open_cache_keyed_by_request(
    request: Any,
    *,
    digested_files: Sequence[Path] = (),
    factory_module: str | None = None,
    import_folder: Path | None = None,
) -> TraceCache | None:
    """Return what is kept of ``request``, a record: all its fields count. None where nothing may
    be.

    ``digested_files``: those that the request itself names. ``factory_module``: of a user's
    factory, which imports from ``import_folder``.
    """
    if os.environ.get(OFF):
        return None
    # no home folder, a field that JSON cannot carry
    with suppress(OSError, RuntimeError, TypeError):
        about, sibling_names = (
            digest_environment(),
            list_importable_names(import_folder) if import_folder is not None else [],
        )
        if about is None or sibling_names is None:
            return None
        file_digests = [(str(path.absolute()), _digest_file(path)) for path in digested_files]
        key = compute_digest(
            msgspec.to_builtins(request),
            about,
            file_digests,
            str(import_folder and import_folder.absolute()),
            sibling_names,
        )
        return TraceCache(
            get_perfctl_user_folder("XDG_CACHE_HOME", "~/.cache") / "traces", key, factory_module
        )
    return None


def _digest_file(path: str | Path) -> str:
    """Return a digest of a file's content; "" when it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def open_trace_cache_if_reproducible(request: Request) -> TraceCache | None:
    """Return what is kept of a request; None where its traces must be made each time.

    That is where it runs with values (any device but meta), for a built-in workload that takes
    published weights, and where nothing can say what the trace depends on.
    """
    from perfctl.workloads.models import torchvision
    from perfctl.workloads.models.find import split_workload_reference
    from perfctl.workloads.models.libraries import parse_library_or_config_reference
    from perfctl.workloads.models.plan import parse_model_family

    model, built_in = request.model, split_workload_reference(request.model)
    if request.device != "meta" or (built_in is not None and built_in[0] == torchvision.NAME):
        return None
    if (
        built_in is not None
        or parse_model_family(model) is not None
        or model.startswith("torchvision:")
    ):
        return open_cache_keyed_by_request(request)
    if (reference := parse_library_or_config_reference(model)) is not None:
        return open_cache_keyed_by_request(
            request, digested_files=tuple(filter(None, [reference.config]))
        )
    module_name = model.rpartition(":")[0]
    if module_name.endswith(".py"):
        path = Path(module_name)
        return open_cache_keyed_by_request(
            request,
            factory_module=f"perfctl_model_{path.stem}",
            import_folder=path.absolute().parent,
        )
    return (
        open_cache_keyed_by_request(request, factory_module=module_name, import_folder=Path.cwd())
        if module_name
        else None
    )
