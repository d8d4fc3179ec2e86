"""The reference is complete: generated pages are up to date, every message has its entry, and the
site builds."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from perfctl.orchestrator.cli.commands import DeclaredTyperCommand, map_fields_to_flags
from perfctl.orchestrator.cli.main import build_application
from perfctl.orchestrator.estimate.flops.engine import TABLE
from perfctl.orchestrator.ledger.causes.judge import ROW_RULES
from scripts.accept.cause_catalog import CATALOG

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCES = [
    path
    for folder in ("orchestrator", "parsers", "perfctl", "workloads")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
OF_THE_MACHINE = ("ToolMissing", "RunFailed", "StoreError", "Problem")
"""Errors about what is installed, what a profiler left, and the database: all of their messages
have an entry."""
OTHERS = ("PerfctlError", "PartlyDone", "Regressed", "Lost")
"""Errors whose messages have an entry unless they say what to do. A UsageError names the option."""
PLACE_OF_NAME = {
    "Cause": 0,
    "RunVerdict": 0,
    "make_cause_unless_contradicted": 0,
    "_propose_transformed_convolution": 1,
    "_propose_if_kernel_names_match": 1,
}
"""Function -> which of its arguments is the name of a cause."""
ENTRY = re.compile(r"^- ((?:`[^`]+`,?\s+)*`[^`]+`): ", re.MULTILINE)


def script(name):
    folder = ROOT / "scripts" / "accept"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference():
    script("cause_catalog")
    script("list_operations")
    return script("reference")


@pytest.mark.parametrize(
    "name",
    ["cli", "formats", "schema", "json", "causes", "operators", "networks", "devices"],
)
def test_a_generated_page_is_up_to_date(reference, name):
    page = (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert name in reference.NAMES
    assert page == reference.generated(name), "if this is right: scripts/accept/reference.py"


def test_every_operation_with_a_formula_is_listed():
    page = (DOCS / "reference" / "operators.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.+\|(`.+`)\|$", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"[\w.]+", row)} - {"br"} == set(TABLE)


def test_the_catalog_has_every_cause_and_no_other():
    folder = ROOT / "orchestrator" / "ledger" / "causes"
    proposed = {name for path in folder.rglob("*.py") for name in causes_of(path)}
    assert len(proposed) >= len(ROW_RULES)
    assert proposed == {name for causes in CATALOG.values() for name in causes}


def causes_of(path):
    for call in calls_in(path):
        index = PLACE_OF_NAME.get(name_of(call), len(call.args))
        for rule in call.args[index : index + 1]:
            rules = [rule.body, rule.orelse] if isinstance(rule, ast.IfExp) else [rule]
            yield from (str(part.value) for part in rules if isinstance(part, ast.Constant))


def test_the_cells_of_the_catalog_are_short():
    cells = [cell for causes in CATALOG.values() for cause in causes.values() for cell in cause]
    assert not [cell for cell in cells if len(cell.split()) > 12]


def test_every_message_has_an_entry_in_troubleshooting():
    entries = entries_of_troubleshooting()
    missing = [
        message
        for message in messages()
        if not any(re.search(e, message) for e in entries.values())
    ]
    assert not missing, "no entry in docs/reference/troubleshooting.md: " + "; ".join(missing)


def test_every_entry_of_troubleshooting_is_a_message():
    said = "\0".join(texts_of_the_source())
    gone = [
        entry for entry, found in entries_of_troubleshooting().items() if not re.search(found, said)
    ]
    assert len(entries_of_troubleshooting()) > 100
    assert not gone, "no longer a message: " + "; ".join(gone)


def entries_of_troubleshooting():
    """Return message -> the pattern that finds it in one text, of several with NUL between them."""
    page = (DOCS / "reference" / "troubleshooting.md").read_text(encoding="utf-8")
    entries = [entry for line in ENTRY.findall(page) for entry in re.findall(r"`([^`]+)`", line)]
    return {
        entry: r"[^\0]*".join(re.escape(part) for part in entry.split("…") if part)
        for entry in entries
    }


def messages():
    """Every message that needs an entry, with "…" for what is filled in. One of fewer than two
    words is put together elsewhere."""
    found = set()
    for path in SOURCES:
        for call in calls_in(path):
            says_what_to_do = len(call.args) > 1 or any(k.arg == "remedy" for k in call.keywords)
            name = name_of(call)
            if call.args and (name in OF_THE_MACHINE or (name in OTHERS and not says_what_to_do)):
                found.add(with_options(text_of(call.args[0]) or ""))
    return {message for message in found if len(re.findall(r"[A-Za-z]{3,}", message)) > 1}


def texts_of_the_source():
    """Every string of the program, and its job scripts."""
    found = {path.read_text(encoding="utf-8") for path in (ROOT / "templates").glob("*.sh.j2")}
    for path in SOURCES:
        texts = map(text_of, ast.walk(parsed(path)))
        found |= {with_options(text) for text in texts if text is not None}
    return found


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def calls_in(path):
    return (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call))


def name_of(call):
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def text_of(node):
    """Return a string of the source, with "…" for what is filled in; None for anything else."""
    if isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return "".join(parts)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if is_text else None


def with_options(text):
    """Return a text with options in the place of fields."""
    return re.sub(r"`([a-z_]+)`", lambda field: flags().get(field[1], field[1]), text)


@cache
def flags():
    found: dict[str, str] = {}
    groups = [typer.main.get_command(build_application())]
    while groups:
        command: Any = groups.pop()
        groups += getattr(command, "commands", {}).values()
        if isinstance(command, DeclaredTyperCommand):
            found |= map_fields_to_flags(command.context_settings["obj"])
    return found


def test_the_site_builds_without_a_warning(tmp_path):
    for module in ("material", "mkdocstrings"):
        pytest.importorskip(module, reason=f"{module} is missing: pip install 'perfctl[docs]'")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--site-dir", str(site)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert {path.relative_to(DOCS) for path in DOCS.rglob("*.md")} <= pages
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"gallery/([\w-]+)\.html", gallery))
    made = {path.stem for path in (site / "gallery").glob("*.html")}
    assert linked == made == set(script("gallery").PAGES)
    api = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert "Measure executed FLOPs with Nsight Compute" in api
