"""One file with all that runs inside a profiled process, for interpreters that have no perfctl:
Python 3.8 and torch 1.8 on."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfctl import __version__
from perfctl.orchestrator.launch import annotator
from perfctl.workloads.spec import WATCH_VARIABLE
from tests.workloads.started import start

NEWER = {
    "removeprefix",
    "removesuffix",
    "UTC",
    "pairwise",
    "cache",
    "is_relative_to",
    "readlink",
    "co_positions",
    "batched",
}
"""Names of the standard library that Python 3.8 lacks."""
AFTER_CHECK = {("layers", "co_positions")}
"""Uses of them that ask for the version first."""
SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    sgd.zero_grad()
    for _ in range(2): model(torch.ones(3, 4)).square().mean().backward()
    sgd.step()
print("perfctl" in sys.modules, sys.argv, any("annotator" in entry for entry in sys.path))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("annotator") / annotator.NAME
    annotator.write_annotator_archive(path, __version__)
    return path


def modules():
    """Every source in the file as Python 3.8 reads it."""
    texts = annotator.read_annotator_sources(__version__).items()
    return {
        name: ast.parse(text, name, feature_version=annotator.OLDEST_PYTHON) for name, text in texts
    }


def test_python_3_8_can_read_every_source():
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                words = {keyword.arg for keyword in node.keywords}
                assert not words & {"slots", "kw_only", "strict"}, f"{name}:{node.lineno}"
            used = (
                node.attr
                if isinstance(node, ast.Attribute)
                else node.name
                if isinstance(node, ast.alias)
                else ""
            )
            assert used not in NEWER or (Path(name).stem, used) in AFTER_CHECK, f"{name}: {used}"


def test_no_type_is_built_when_it_is_loaded_that_python_3_8_cannot_build():
    plain = {"tuple", "list", "dict", "set", "type"}
    for name, tree in modules().items():
        for statement in (
            node for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.ClassDef))
        ):
            parts = [statement.value] if isinstance(statement, ast.Assign) else statement.bases
            for node in (inner for part in parts for inner in ast.walk(part)):
                built = (
                    isinstance(node, ast.Subscript)
                    and isinstance(node.value, ast.Name)
                    and node.value.id in plain
                )
                assert not built, f"{name}:{statement.lineno}"


def test_the_file_holds_every_module_of_perfctl_that_it_imports():
    lazily = {
        "perfctl.workloads.run.loop",
        "perfctl.workloads.data.images",
        "perfctl.workloads.models",
        "perfctl.workloads.script.options",
    }
    lazily |= {
        f"perfctl.workloads.tracing.{name}"
        for name in ("as_cuda", "autocast", "meta_results", "traffic")
    }  # of estimates alone
    held = {*annotator.MODULES, "perfctl.workloads"}
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("perfctl"):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                assert {node.module, *inner} & {*held, *lazily}, f"{name}:{node.lineno}"


def test_the_same_version_gives_the_same_bytes(file, tmp_path):
    annotator.write_annotator_archive(tmp_path / "again.pyz", __version__)
    assert (tmp_path / "again.pyz").read_bytes() == file.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.pyz"]


def run(python, file, folder):
    (folder / "train.py").write_text(SCRIPT)
    words = (
        "--batch 3 --steps 3 --warmup 2 --annotate record_function --window torch --trace t.json "
        "--record r.json -- train.py"
    )
    done = start(folder, python, str(file), *words.split(), "{batch}", PYTHONPATH="")
    return done, json.loads((folder / "r.json").read_text())


def check_run(done, record, folder):
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True ['train.py', '{batch}'] False\n"
    assert (record["status"], record["mode"], record["reason"]) == ("ok", "train", None)
    assert {row["name"]: row["value"] for row in record["summaries"]}["samples_per_step"] == 2 * 3
    events = json.loads((folder / "t.json").read_text())
    events = events if isinstance(events, list) else events["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    calls = 3 * 2  # steps, batches
    for layer in ("model", "model.0", "model.1", "model.2"):
        assert names.count(f"{layer}:forward") == calls
    assert names.count("model.2:backward") == calls, "the product's gradients of input and weight"
    assert names.count("model.1:grad_input") == calls
    assert "model.0:grad_weight" in names


def test_the_file_does_what_the_installed_package_does(file, tmp_path):
    pytest.importorskip("torch")
    done, record = run(sys.executable, file, tmp_path)
    check_run(done, record, tmp_path)
    assert {op["layer"] for op in record["ops"] if op["direction"] == "forward"} >= {
        "model.0",
        "model.1",
        "model.2",
    }


def old_python():
    """An interpreter of Python 3.8, with torch if possible: PERFCTL_PYTHON38, or python3.8
    on PATH."""
    found = os.environ.get("PERFCTL_PYTHON38") or shutil.which("python3.8")
    if (
        found is None
        or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs Python 3.8: python3.8 on PATH, or its path in PERFCTL_PYTHON38")
    return found


def test_python_3_8_runs_it_without_perfctl(file, tmp_path):
    python = old_python()
    (tmp_path / "plain.py").write_text("import sys; print(sys.version_info[:2], sys.argv)")
    done = start(tmp_path, python, "-I", str(file), "--record", "r.json", "--", "plain.py", "a")
    assert (done.returncode, done.stdout) == (0, "(3, 8) ['plain.py', 'a']\n"), done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["reason"].startswith(
        "plain.py ended without importing torch"
    )


def test_each_process_below_is_watched_and_the_users_own_sitecustomize_runs(file, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    code = "import sys; print('perfctl.workloads.script.run' in sys.modules, sys.path[1] == PATH)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    done = start(
        tmp_path,
        *(sys.executable, "-c", child.replace("PATH", repr(str(tmp_path)))),
        PYTHONPATH=f"{file}{os.pathsep}{tmp_path}",
        **{WATCH_VARIABLE: json.dumps(["--for", "1", "--", "-m", "x"])},
    )
    assert (done.stdout, done.stderr) == ("mine\nmine\nTrue True\n", "")
