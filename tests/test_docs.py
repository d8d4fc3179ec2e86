"""Documentation that a program can check stays true."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

import perfctl
from perfctl.orchestrator.cli.commands import Command, flags_of
from perfctl.orchestrator.cli.main import COMMANDS, application, run
from perfctl.orchestrator.compare.compared import Row as ComparedRow
from perfctl.orchestrator.ledger.causes.judge import ROW_RULES
from perfctl.orchestrator.store import schema

pytestmark = pytest.mark.xdist_group("nsys")

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]
GROUPS: dict[str, Any] = dict(typer.main.get_command(application()).commands)  # type: ignore[attr-defined]
"""Every command by name; those that have commands of their own, too."""
_WORKLOADS = {
    "model",
    "images",
    "weights",
    "data",
    "data-dir",
    "dataloader-workers",
    "classes",
    "seed",
}
"""Options that sweeps pass on to a built-in workload."""


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "accept" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


accept_docs = _script("docs")


def test_every_command_has_help_and_a_line_in_the_readme() -> None:
    assert set(GROUPS) == set(COMMANDS)
    for name, command in GROUPS.items():
        assert command.help, f"perfctl {name} has no help"
        assert re.search(rf"perfctl {name}\b", README), f"README.md does not mention perfctl {name}"


def test_every_command_has_a_page_that_shows_it() -> None:
    pages = {path.stem for path in (DOCS / "commands").glob("*.md")} - {"index"}
    assert pages == set(GROUPS)
    index = (DOCS / "commands" / "index.md").read_text(encoding="utf-8")
    for name in GROUPS:
        assert f"({name}.md)" in index
        shown = (DOCS / "commands" / f"{name}.md").read_text(encoding="utf-8")
        assert f"$ perfctl {name}" in shown, (
            f"docs/commands/{name}.md shows no output of perfctl {name}"
        )


@pytest.mark.usefixtures("quick_sweeps")
@pytest.mark.parametrize("page", accept_docs.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_outputs_that_a_page_shows_are_what_its_commands_print(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("COLUMNS", "NO_COLOR", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    count = 0
    for shown in accept_docs.run_page(page):
        count += 1
        assert shown.exit_code == shown.wanted_exit_code(), f"{shown.command}\n{shown.printed}"
        there, now = shown.as_compared()
        assert there == now, (
            f"{shown.command}: if this is right: python scripts/accept/docs.py {page}"
        )
    assert count, f"{page} shows no command"


def test_every_link_and_anchor_inside_the_documentation_leads_somewhere() -> None:
    checked = 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            aim = (page.parent / path).resolve() if path else page
            assert aim.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in _anchors(aim), f"{page.name} links to {target}"
            checked += 1
    assert checked > 50


def test_the_make_targets_that_the_documentation_names_exist() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8")))
        assert named <= set(targets), page.name
    assert {"demo", "test"} <= set(re.findall(r"make ([a-z]+)", README))


def test_the_options_in_examples_exist() -> None:
    checked = 0
    for page in PAGES:
        for block in re.findall(
            r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            for line in re.findall(r"^(?:\$ )?(perfctl .*)$", block, re.MULTILINE):
                checked += _check_options(line, page.name)
    assert checked > 40


def _flags(command: Any) -> set[str]:
    return {
        flag.removeprefix("--")
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }


def _check_options(line: str, page: str) -> int:
    words = shlex.split(line, comments=True)[1:]
    words = words[: words.index("--")] if "--" in words else words
    options = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    for name in words[0].split(",") if words else ():
        if name not in GROUPS:
            assert name.startswith("-") or name.isupper(), f"{page}: {line}"
            continue
        command = GROUPS[name]
        if hasattr(command, "commands"):
            # perfctl bench FILE is perfctl bench run FILE
            inner = words[1] if words[1] in command.commands else "run"
            assert inner in command.commands, f"{page}: {line}"
            command = command.commands[inner]
        known = _flags(command)
        if words[:3] == ["slurm", "render", "study"]:
            studies = GROUPS["slurm"].commands["render study"].commands
            # a study that is refused
            known |= _flags(studies[words[3]]) if words[3] in studies else set()
        passed_on = _WORKLOADS if command.context_settings.get("ignore_unknown_options") else set()
        assert set(options) <= known | passed_on | {"help"}, f"{page}: {line}"
    return len(options)


def test_the_names_that_the_documentation_imports_are_there_and_all_are_told() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`perfctl\.(\w+)", page))
    assert told == {name for name in perfctl.__all__ if not name.startswith("__")}
    for text in (page, README):
        for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            assert set(re.findall(r"perfctl\.(\w+)\(", block)) <= told


def test_the_rows_of_a_comparison_have_the_fields_that_the_page_names() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    comparison = page.partition("## Compare two sides")[2].partition("\n## ")[0]
    fields = {field.name for field in dataclasses.fields(ComparedRow)}
    assert set(re.findall(r"\brow\.(\w+)", comparison)) <= fields
    (sentence,) = re.findall(r"A row has (.*?)\.$", comparison, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) - {"median"} <= fields


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "recorded").symlink_to(ROOT / "tests" / "data" / "recorded-cpu")
    monkeypatch.chdir(tmp_path)
    assert run(["ingest", "recorded"]) == 0
    capsys.readouterr()
    exec(compile(block, "docs/python.md", "exec"), {})
    *_, form, step, training = capsys.readouterr().out.splitlines()
    assert form == "Kineto trace, CPU only 163"
    seconds, low, high = map(float, step.split())
    whole, needed = training.split()
    assert low < seconds < high and int(needed) > 0
    assert float(whole) == pytest.approx(seconds * 10 * math.ceil(60000 / 64))


def test_the_messages_that_troubleshooting_explains_are_still_said() -> None:
    said = "\0".join(_texts_of_the_source())
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        cell
        for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for cell in re.findall(r"`(.+?)`", row)
    ]
    assert len(quoted) > 80
    gone = [message for message in quoted if not re.search(_of_one_text(message), said)]
    assert not gone, "no longer said: " + "; ".join(gone)


def _of_one_text(message: str) -> str:
    """Finds a text, of several with NUL between them, in which the parts of a message stand in
    this order."""
    return r"[^\0]*".join(map(re.escape, filter(None, message.split("…"))))


def _texts_of_the_source() -> set[str]:
    """Every string of the program, with options in the place of fields; what is filled in is "…".
    And its job scripts."""
    found = {path.read_text(encoding="utf-8") for path in (ROOT / "templates").glob("*.sh.j2")}

    flags: dict[str, str] = {}
    groups = [typer.main.get_command(application())]
    while groups:
        command: Any = groups.pop()
        groups += getattr(command, "commands", {}).values()
        if isinstance(command, Command):
            flags |= flags_of(command.context_settings["obj"])

    def with_options(text: str) -> str:
        return re.sub(
            r"`([a-z_]+)`",
            lambda field: flags.get(field[1], field[1]),
            text,
        )

    for folder in ("orchestrator", "parsers", "perfctl", "workloads"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (
                        str(part.value) if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )
                    found.add(with_options("".join(parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(with_options(node.value))
    return found


def test_every_operation_with_a_formula_is_listed_with_the_section_that_states_it() -> None:
    there = (DOCS / "operations.md").read_text(encoding="utf-8")
    operations = _script("list_operations")
    assert there == operations.markdown(), "if this is right: python scripts/accept/docs.py"
    assert set(
        re.findall(r"`((?:aten|perfctl|optim|prims|quantized|torchvision)\.\w+)`", there)
    ) == set(operations.TABLE)


def test_every_product_and_every_optimizer_has_a_row_with_its_formula() -> None:
    page = (DOCS / "formulas.md").read_text(encoding="utf-8")
    products = page.partition("## Products")[2].partition("## Backward")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", products, re.MULTILINE)[1:]
    assert all(source.strip("- ") for _, _, source in rows), "a product without a source"
    from perfctl.orchestrator.estimate.flops.formulas import WORK

    for name in WORK:
        assert re.search(rf"\b{name}\b", page, re.IGNORECASE), f"docs/formulas.md has no {name}"


def test_the_tables_of_causes_are_the_docstrings_of_their_rules() -> None:
    page = (DOCS / "verdicts.md").read_text(encoding="utf-8")
    causes = _script("list_causes")
    assert page == causes.insert_into(page), "if this is right: python scripts/accept/docs.py"
    listed = {
        rule for table in causes.TABLES.values() for rules in table.values() for rule in rules
    }
    assert set(ROW_RULES) <= listed


def test_every_verdict_is_explained_and_no_other() -> None:
    page = (DOCS / "verdicts.md").read_text(encoding="utf-8")
    tables = page.partition("## Where the numbers come from")[0]
    explained = set(re.findall(r"^\| ([^|]+?) \| ", tables, re.MULTILINE)) - {"cause", "---"}
    given = set()
    for path in (ROOT / "orchestrator" / "ledger" / "causes").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute):
                name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
                place = {
                    "Cause": 0,
                    "RunVerdict": 0,
                    "propose": 0,
                    "_transformed": 1,
                    "_by_name": 1,
                }
                index = place.get(name)
                rule = None if index is None or len(call.args) <= index else call.args[index]
                rules = [rule.body, rule.orelse] if isinstance(rule, ast.IfExp) else [rule]
                given |= {rule.value for rule in rules if isinstance(rule, ast.Constant)}
    assert len(given) >= len(ROW_RULES)
    assert explained == given


def test_the_schema_page_is_the_one_that_the_schema_makes() -> None:
    assert (DOCS / "schema.md").read_text(encoding="utf-8") == schema.markdown()


def test_the_paths_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = [path for path in re.findall(r"`([\w./-]+/[\w./-]*)`", text) if "NAME" not in path]
    assert len(paths) > 15
    for path in paths:
        assert (ROOT / path).exists(), f"CONTRIBUTING.md names {path}"
    lists = re.findall(r"`([A-Z_]+)`\s(?:in|of)\s`([\w/]+\.py)`", text)
    assert {name for name, _ in lists} == {
        "PARSERS",
        "SEEDS",
        "RECORDERS",
        "SWEEPS",
        "WORKLOADS",
        "PARAMETERS",
        "FAMILIES",
        "SECTIONS",
        "ROW_RULES",
        "METRICS",
        "KERNEL_BASIS",
        "GPUS",
        "SOURCES",
        "GROUPS",
        "OUTPUTS",
        "TOOLS",
    }
    for name, path in lists:
        assert re.search(
            rf"^{name}\b[^=]* = ", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
        ), f"{name} in {path}"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip(
        "material", reason="mkdocs-material is not installed: pip install 'perfctl[docs]'"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {
        path.relative_to(tmp_path / "site").with_suffix(".md")
        for path in (tmp_path / "site").rglob("*.html")
    }
    assert {path.relative_to(DOCS) for path in DOCS.rglob("*.md")} <= pages
    linked = set(
        re.findall(
            r'href="gallery/([\w-]+)\.html"', (DOCS / "gallery.md").read_text(encoding="utf-8")
        )
    )
    assert (
        linked
        == {path.stem for path in (tmp_path / "site" / "gallery").glob("*.html")}
        == set(_script("gallery").PAGES)
    )


def test_pages_name_few_other_hosts() -> None:
    hosts = {
        host
        for page in PAGES
        for host in re.findall(r"https?://([\w.-]+)", page.read_text(encoding="utf-8"))
    }
    assert hosts <= {"127.0.0.1"}, hosts


def test_python_m_perfctl_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perfctl", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"perfctl \d+\.\d+\.\d+(\.dev\d+)?\n", done.stdout)


def _prose(page: Path) -> str:
    """A page without its blocks and spans of code."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"`[^`\n]*`", "code", text)


def _anchors(page: Path) -> set[str]:
    """What headings are called in links, as Python-Markdown and GitHub make it for them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"\s+", "-", heading) for heading in plain}
