"""A small root file system made of this machine's own files, and a real Apptainer image of it.

Python, a shell and a few programs, with the libraries they need: what a base image has, without
a network.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from perfctl import __version__
from perfctl.orchestrator.launch.images import definition, run

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = ("sh", "env", "rm", "mkdir", "cat", "true", "sleep", "uname")
_NOT_COPIED = (
    "site-packages",
    "test",
    "__pycache__",
    "idlelib",
    "turtledemo",
    "config-*",
    "*.a",
    "tkinter",
    "_tkinter*",
    "lib2to3",
    "pydoc_data",
    "_test*.so",
)


def site_packages() -> Path:
    """Where this interpreter has torch: images of these tests get it by --bind."""
    torch = pytest.importorskip("torch")
    return Path(torch.__file__).parent.parent


@cache
def why_not() -> str | None:
    """Why no image can be built and run here; None when one can."""
    runtime = next((name for name in run.RUNTIMES if shutil.which(name)), None)
    if runtime is None:
        return (
            "neither Apptainer nor Singularity is installed here "
            "(scripts/setup/apptainer_install.sh)"
        )
    if not Path(_stdlib(), "ensurepip", "_bundled").is_dir():
        return "this Python has no ensurepip, which makes the pip of the image"
    return None


def build(folder: Path) -> Path:
    """The image: a root made from this machine, then the definition that perfctl renders, built
    for real.

    Root builds as nobody: a root without all capabilities (virtual machines, containers) cannot
    run %post.
    """
    root = make_root(folder / "root")
    asked = definition.ImageRecipe(
        base=str(root),
        source=wheel(folder),
        pip_options=("--no-index", "--no-deps"),
        post=("mkdir -p /data",),
    )
    out = folder / "perfctl.def"
    out.write_text(
        definition.render_image_definition(
            asked, out, version=__version__, command="perfctl image render"
        )
    )
    runtime = run.find_container_runtime()
    quick = "--mksquashfs-args=-comp gzip -Xcompression-level 1"
    command = (
        runtime,
        "build",
        "--ignore-fakeroot-command",
        quick,
        str(out.with_suffix(".sif")),
        str(out),
    )
    environment = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    if os.geteuid() == 0:
        subprocess.run(("chown", "-R", "nobody", folder), check=True)
        command = (
            "setpriv",
            f"--reuid={pwd.getpwnam('nobody').pw_uid}",
            "--clear-groups",
            *command,
        )
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    if done.returncode and re.search(r"namespace|permitted capability|subuid", done.stderr):
        pytest.skip(f"Apptainer cannot build here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return out.with_suffix(".sif")


def make_root(root: Path) -> Path:
    """Folders, Python in /opt/python, programs in /bin, libraries where every loader looks."""
    for name in [
        "bin",
        "lib64",
        "lib/x86_64-linux-gnu",
        "usr",
        "etc",
        "tmp",
        "proc",
        "sys",
        "dev",
        "root",
        "home",
        "var",
        "opt",
    ]:
        (root / name).mkdir(parents=True)
    for name in ("passwd", "group", "hosts", "resolv.conf", "localtime"):
        (root / "etc" / name).touch()
    python = root / "opt/python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(
        _stdlib(), python / "lib" / version, ignore=shutil.ignore_patterns(*_NOT_COPIED)
    )
    (python / "lib" / version / "site-packages").mkdir()
    (python / "bin").mkdir()
    interpreter = Path(sys.executable).resolve()
    shutil.copy2(interpreter, python / "bin" / "python3")
    (root / "bin/python3").symlink_to("/opt/python/bin/python3")
    programs = [Path(found).resolve() for name in PROGRAMS if (found := shutil.which(name))]
    for name, program in zip(PROGRAMS, programs, strict=True):
        shutil.copy2(program, root / "bin" / name)
    extensions = sorted((python / "lib" / version / "lib-dynload").glob("*.so"))
    for library in libraries([interpreter, *programs, *extensions]):
        target = (
            root
            / ("lib64" if library.name.startswith("ld-linux") else "lib/x86_64-linux-gnu")
            / library.name
        )
        shutil.copy2(library, target)
    pip = (python / "bin/python3", "-m", "ensurepip", "--default-pip")
    subprocess.run(pip, check=True, capture_output=True, env={"PATH": "/bin"})
    return root


def libraries(programs: list[Path]) -> set[Path]:
    """What the loader needs for them, by ldd."""
    said = subprocess.run(("ldd", *programs), capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, flags=re.MULTILINE)}


def wheel(folder: Path) -> Path:
    """perfctl as it is in this checkout, built offline from a copy."""
    copy = folder / "source"
    copy.mkdir()
    for part in definition.list_checkout_build_files(ROOT):
        target = copy / part.name
        shutil.copytree(part, target) if part.is_dir() else shutil.copy2(part, target)
    subprocess.run(
        (
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            folder,
            copy,
        ),
        check=True,
        capture_output=True,
        timeout=600,
    )
    return next(folder.glob("perfctl-*.whl"))


def _stdlib() -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Path(sys.base_prefix, "lib", version)
