"""A script under perfctl is the process it would be by itself. These scripts import no torch, so they are fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SEES = """
import atexit, os, pickle, sys
print(__name__, __file__, __package__, getattr(__spec__, "name", None), __doc__, type(__loader__).__name__, sorted(globals()))
print(sys.argv, sys.path[:2], os.getcwd(), sys.flags.optimize, __debug__, sys.stdout.line_buffering, os.environ.get("BATCH"))
class A: pass
print(pickle.loads(pickle.dumps(A())).__class__ is A, "torch" in sys.modules, "numpy" in sys.modules)
atexit.register(print, "bye")
"""
ENDS = {
    "code": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('some words')",
    "error": "def f():\n    raise ValueError('no\\nmore')\ntry:\n    1/0\nexcept ZeroDivisionError:\n    f()",
    "syntax": "x = (1\ny z",
    "interrupt": "raise KeyboardInterrupt",
    "at once": "import os; os._exit(7)",
    "hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[1], a[2].tb_lineno)\nraise OSError('gone')",
    "unicode": "print('\\u00e9', flush=True); raise RuntimeError('\\udcff')",
}


def run(*argv: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **variables}
    return subprocess.run(argv, cwd=folder, capture_output=True, env=environment, timeout=600, check=False)


def both(folder: Path, *words: str, options: tuple[str, ...] = ()) -> tuple[object, object, dict]:
    """(by itself, under perfctl, the record): exit code, stdout, stderr without perfctl's own lines."""
    record = folder / "record.json"
    alone = run(sys.executable, *words, folder=folder)
    command = (sys.executable, "-m", "perfctl.workloads", "--record", str(record), *options, "--", "python", *words)
    under = run(*command, folder=folder)
    said = b"".join(line for line in under.stderr.splitlines(True) if not line.startswith(b"perfctl: "))
    found = json.loads(record.read_text())
    return (alone.returncode, alone.stdout, alone.stderr), (under.returncode, under.stdout, said), found


@pytest.mark.parametrize(
    "words",
    [
        ("sub/sees.py", "--x", "{batch}", "--"),
        ("./sub/../sees.py",),
        ("link.py",),
        ("-O", "-u", "sees.py", "-O"),
        ("-m", "pkg", "a"),
        ("-m", "pkg.sees"),
        ("pkg",),
    ],
)
def test_it_sees_the_same_process(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "sub").mkdir()
    for name in ("sees.py", "sub/sees.py", "pkg/sees.py", "pkg/__main__.py"):
        (tmp_path / name).write_text(SEES)
    (tmp_path / "link.py").symlink_to("sub/sees.py")
    alone, under, _ = both(tmp_path, *words)
    assert under == alone
    assert alone[0] == 0


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_as_it_would(tmp_path: Path, name: str) -> None:
    (tmp_path / "ends.py").write_text(ENDS[name])
    alone, under, record = both(tmp_path, "ends.py")
    assert under == alone
    assert alone[0] != 0
    assert record["status"] == "failed"
    assert "\n" not in record["reason"]


def test_a_module_that_is_not_there_fails_as_it_would(tmp_path: Path) -> None:
    alone, under, _ = both(tmp_path, "-m", "nowhere")
    assert under == alone


def test_the_batch_size_is_in_the_variable(tmp_path: Path) -> None:
    (tmp_path / "sees.py").write_text("import os; print(os.environ['BATCH'])")
    done = run(
        sys.executable,
        "-m",
        "perfctl.workloads",
        "--batch",
        "24",
        "--batch-env",
        "BATCH",
        "--",
        "sees.py",
        folder=tmp_path,
    )
    assert done.stdout == b"24\n"


def test_a_script_that_closes_every_descriptor_is_recorded_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text("import os\nos.closerange(0, 256)\n")
    words = ("-m", "perfctl.workloads", "--batch", "1", "--record", "record.json", "--", "deaf.py")
    run(sys.executable, *words, folder=tmp_path)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["reason"] == "deaf.py ended without importing torch, so nothing was measured"


def test_a_missing_script_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "perfctl.workloads", "--", "nope.py", folder=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, b"", 1)
    assert b"script nope.py does not exist" in done.stderr


def test_no_torch_is_said_and_stays_in_the_record(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('x' * 3_000_000)")
    alone, under, record = both(tmp_path, "plain.py")
    assert under == alone
    assert record["status"] == "failed"
    assert record["reason"] == "plain.py ended without importing torch, so nothing was measured"


def test_a_forked_child_leaves_the_record_alone(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text("import os, sys\nif os.fork() == 0: sys.exit(5)\nos.wait()\nsys.exit(4)")
    alone, under, record = both(tmp_path, "forks.py")
    assert under == alone
    assert record["reason"] == "forks.py ended with exit code 4"
