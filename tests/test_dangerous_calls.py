"""Nothing in the product runs text that somebody else wrote: the whole source is read as Python
reads it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    file
    for folder in ("orchestrator", "parsers", "workloads", "perfctl")
    for file in (ROOT / folder).rglob("*.py")
)
MODULES = {
    *(
        "pickle",
        "cPickle",
        "_pickle",
        "dill",
        "cloudpickle",
        "joblib",
        "shelve",
        "marshal",
        "jsonpickle",
        "yaml",
        "code",
    ),
    *("xml", "lxml", "xmlrpc", "defusedxml", "plistlib", "telnetlib", "ftplib", "commands", "pty"),
}
"""Nothing is unpickled and no XML is read, so there are no bombs of either."""
CALLS = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "execfile",
        "os.system",
        "os.popen",
        "os.startfile",
        "tempfile.mktemp",
    ),
    *(
        "numpy.load",
        "np.load",
        "pandas.read_pickle",
        "torch.hub.load",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
    ),
}
KEYWORDS = {"shell", "allow_pickle", "executable"}
ALLOWED = {
    ("workloads/script/run.py", "compile"): "the user's own script, which is what was asked for",
    ("workloads/script/run.py", "exec"): "the same",
    (
        "workloads/models/torchvision.py",
        "pickle",
    ): "the name of an error that torch's reader raises",
    ("workloads/tracing/composites.py", "compile"): "torch's own, under its name",
    ("workloads/script/run.py", "os.execv"): "the user's own program, as an argument list",
    ("workloads/script/options.py", "os.execvp"): "the same under a launcher",
    ("orchestrator/report/gate.py", "xml.etree"): "XML is written, none is read",
}


def name_of(node):
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def dangers(source):
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES}
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] in MODULES
            and not node.level
        ):
            found.add(node.module or "")
        elif isinstance(node, ast.Call):
            name = name_of(node.func)
            given = {word.arg: word.value for word in node.keywords}
            if name in CALLS or name.startswith(("os.exec", "os.spawn")):
                found.add(name)
            found |= {f"{name}({word}=)" for word in KEYWORDS & set(given)}
            if name == "torch.load" and not (
                isinstance(only := given.get("weights_only"), ast.Constant) and only.value is True
            ):
                found.add("torch.load")
            if name.endswith(("extractall", "unpack_archive")) or (
                name.endswith(".extract") and "tar" in name
            ):
                found.add(name)
    return found


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell():
    found = {
        (str(file.relative_to(ROOT)), danger)
        for file in SOURCES
        for danger in dangers(file.read_text(encoding="utf-8"))
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    ("source", "danger"),
    [
        ("import pickle", "pickle"),
        ("from xml.etree import ElementTree", "xml.etree"),
        ("eval('1')", "eval"),
        ("import subprocess\nsubprocess.run('ls', shell=True)", "subprocess.run(shell=)"),
        ("torch.load(f)", "torch.load"),
        ("torch.load(f, weights_only=False)", "torch.load"),
        ("os.system('ls')", "os.system"),
        ("import os\nos.execvp('a', [])", "os.execvp"),
        ("archive.extractall()", "archive.extractall"),
        ("np.load(f, allow_pickle=True)", "np.load(allow_pickle=)"),
        ("import yaml", "yaml"),
    ],
)
def test_each_of_these_would_be_found(source, danger):
    assert danger in dangers(source)
    assert (
        dangers(
            "torch.load(f, weights_only=True); model.eval(); re.match('a', 'b'); "
            "subprocess.run(['ls'])"
        )
        == set()
    )


def test_no_template_hands_on_text_as_markup_except_drawings_made_here():
    for file in sorted((ROOT / "templates").glob("*.html")):
        text = file.read_text(encoding="utf-8")
        assert "|safe" not in text.replace(" ", ""), file.name
        assert "autoescape false" not in text, file.name
    for file in sorted((ROOT / "templates").glob("*.js")):
        text = file.read_text(encoding="utf-8")
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "javascript:",
        ):
            assert word not in text, f"{file.name}: {word}"
