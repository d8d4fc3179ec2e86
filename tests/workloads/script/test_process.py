"""A script under perfctl is the process it would be by itself. These scripts import no torch, so
they are fast."""

import json
import sys

import pytest

from tests.workloads.started import PERFCTL, start

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
    "error": (
        "def f():\n    raise ValueError('no\\nmore')\ntry:\n    1/0\nexcept ZeroDivisionError:\n"
        "    f()"
    ),
    "syntax": "x = (1\ny z",
    "interrupt": "raise KeyboardInterrupt",
    "at once": "import os; os._exit(7)",
    "hook": (
        "import sys\nsys.excepthook = lambda *a: print('mine', a[1], a[2].tb_lineno)\n"
        "raise OSError('gone')"
    ),
    "unicode": "print('\\u00e9', flush=True); raise RuntimeError('\\udcff')",
}

NO_TORCH = (
    "ended without importing torch, so nothing was measured. If it trains in other processes, "
    "start it with torchrun"
)


def both(folder, *words):
    """(by itself, under perfctl, the record): exit code, stdout, stderr without perfctl's
    own lines."""
    record = folder / "record.json"
    alone = start(folder, sys.executable, *words, text=False)
    under = start(folder, *PERFCTL, "--record", str(record), "--", "python", *words, text=False)
    said = b"".join(
        line for line in under.stderr.splitlines(True) if not line.startswith(b"perfctl: ")
    )
    found = json.loads(record.read_text())
    return (
        (alone.returncode, alone.stdout, alone.stderr),
        (under.returncode, under.stdout, said),
        found,
    )


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
        ("-m", "nowhere"),
    ],
)
def test_it_sees_the_same_process(tmp_path, words):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "sub").mkdir()
    for name in ("sees.py", "sub/sees.py", "pkg/sees.py", "pkg/__main__.py"):
        (tmp_path / name).write_text(SEES)
    (tmp_path / "link.py").symlink_to("sub/sees.py")
    alone, under, _ = both(tmp_path, *words)
    assert under == alone
    assert alone[0] == (words[-1] == "nowhere")


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_as_it_would(tmp_path, name):
    (tmp_path / "ends.py").write_text(ENDS[name])
    alone, under, record = both(tmp_path, "ends.py")
    assert under == alone
    assert alone[0] != 0
    assert record["status"] == "failed"
    assert "\n" not in record["reason"]


def test_the_batch_size_is_in_the_variable(tmp_path):
    (tmp_path / "sees.py").write_text("import os; print(os.environ['BATCH'])")
    done = start(tmp_path, *PERFCTL, "--batch", "24", "--batch-env", "BATCH", "--", "sees.py")
    assert done.stdout == "24\n"


def test_a_script_that_closes_every_descriptor_is_recorded_as_any_other(tmp_path):
    (tmp_path / "deaf.py").write_text("import os\nos.closerange(0, 256)\n")
    start(tmp_path, *PERFCTL, "--batch", "1", "--record", "record.json", "--", "deaf.py")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["reason"] == f"deaf.py {NO_TORCH}"


def test_a_missing_script_is_one_line_and_exit_2(tmp_path):
    done = start(tmp_path, *PERFCTL, "--", "nope.py")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "script nope.py does not exist" in done.stderr


def test_no_torch_is_said_and_stays_in_the_record(tmp_path):
    (tmp_path / "plain.py").write_text("print('x' * 3_000_000)")
    alone, under, record = both(tmp_path, "plain.py")
    assert under == alone
    assert record["status"] == "failed"
    assert record["reason"] == f"plain.py {NO_TORCH}"


def test_a_forked_child_leaves_the_record_alone(tmp_path):
    (tmp_path / "forks.py").write_text(
        "import os, sys\nif os.fork() == 0: sys.exit(5)\nos.wait()\nsys.exit(4)"
    )
    alone, under, record = both(tmp_path, "forks.py")
    assert under == alone
    assert record["reason"] == "forks.py ended with exit code 4"
