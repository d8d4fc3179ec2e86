"""Documentation that a program can check stays true."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

import perfctl
from perfctl.orchestrator.cli.commands import map_fields_to_flags
from perfctl.orchestrator.cli.main import COMMANDS, build_application, run_command_line

pytestmark = pytest.mark.xdist_group("nsys")

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]
GROUPS: dict[str, Any] = dict(typer.main.get_command(build_application()).commands)  # type: ignore[attr-defined]
"""Every command by name; those that have commands of their own, too."""


def _script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "accept" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


accept_docs = _script("docs")


def test_every_command_has_help_and_a_page_that_shows_how_to_use_it():
    assert set(GROUPS) == set(COMMANDS)
    texts = [path.read_text(encoding="utf-8") for path in PAGES]
    written = "\n".join(text for text in texts if not text.startswith("<!-- Generated"))
    for name, command in GROUPS.items():
        assert command.help, f"perfctl {name} has no help"
        assert re.search(rf"perfctl {name}\b", written), f"no page shows how to use perfctl {name}"


@pytest.mark.usefixtures("quick_sweeps")
@pytest.mark.parametrize("page", accept_docs.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_outputs_that_a_page_shows_are_what_its_commands_print(page, monkeypatch):
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


def test_every_link_and_anchor_inside_the_documentation_leads_somewhere():
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


def test_the_make_targets_that_the_documentation_names_exist():
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8")))
        assert named <= set(targets), page.name
    assert {"demo", "test"} <= set(re.findall(r"make ([a-z]+)", README))


def test_the_options_in_examples_exist():
    checked = 0
    for page in PAGES:
        for block in re.findall(
            r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            for line in re.findall(r"^(?:\$ )?(perfctl .*)$", block, re.MULTILINE):
                checked += _check_options(line, page.name)
    assert checked > 40


def _flags(command):
    return {
        flag.removeprefix("--")
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }


def _check_options(line, page):
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
        if command.context_settings.get("ignore_unknown_options"):  # those of the workloads
            known |= {
                flag[2:] for flag in map_fields_to_flags(command.context_settings["obj"]).values()
            }
        assert set(options) <= known | {"help"}, f"{page}: {line}"
    return len(options)


def test_the_python_names_of_the_documentation_exist():
    names = {name for name in perfctl.__all__ if not name.startswith("__")}
    reference = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: perfctl\.(\w+)$", reference, re.MULTILINE)
    assert sorted(listed) == sorted(names)
    for page in PAGES:
        for block in re.findall(
            r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            assert set(re.findall(r"\bperfctl\.(\w+)\(", block)) <= names, page.name


def _run_python_example(number, capsys):
    """Return what an example of the page prints; ``number``: from 0."""
    page = (DOCS / "how-to" / "python.md").read_text(encoding="utf-8")
    block = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[number]
    capsys.readouterr()
    exec(compile(block, "docs/how-to/python.md", "exec"), {})
    return capsys.readouterr().out


def test_the_first_python_example_runs(recorded, tmp_path, monkeypatch, capsys):
    (tmp_path / "recorded").symlink_to(recorded)
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["ingest", "recorded"]) == 0
    assert _run_python_example(0, capsys)


def test_the_example_that_compares_two_sides_prints_the_step_that_became_slower(
    repeated, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name, factor in {"before": 1.0, "after": 1.3}.items():
        runs = repeated(name, [factor * noise for noise in (1.0, 1.01, 0.99, 1.005)])
        assert run_command_line(["ingest", str(runs), "--store", f"{name}.db"]) == 0
    assert re.search(r"mnist_cnn.* 16 step slower 0\.(30|29999)", _run_python_example(1, capsys))


def test_every_product_and_every_optimizer_has_a_row_with_its_formula():
    page = (DOCS / "reference" / "formulas.md").read_text(encoding="utf-8")
    products = page.partition("## Products")[2].partition("## Backward")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", products, re.MULTILINE)[1:]
    assert all(source.strip("- ") for _, _, source in rows), "a product without a source"
    from perfctl.orchestrator.estimate.flops.formulas import WORK

    for name in WORK:
        assert re.search(rf"\b{name}\b", page, re.IGNORECASE), (
            f"docs/reference/formulas.md has no {name}"
        )


def test_the_paths_that_contributing_names_are_there():
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
        "DECLARATIONS",
        "GROUPS",
        "OUTPUTS",
        "TOOLS",
    }
    for name, path in lists:
        assert re.search(
            rf"^{name}\b[^=]* = ", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
        ), f"{name} in {path}"


def test_pages_name_few_other_hosts():
    hosts = {
        host
        for page in PAGES
        for host in re.findall(r"https?://([\w.-]+)", page.read_text(encoding="utf-8"))
    }
    assert hosts <= {"127.0.0.1", "github.com"}, hosts


def test_python_m_perfctl_is_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "perfctl", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"perfctl \d+\.\d+\.\d+(\.dev\d+)?\n", done.stdout)


def _prose(page):
    """A page without its blocks and spans of code."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"`[^`\n]*`", "code", text)


def _anchors(page):
    """What headings are called in links, as Python-Markdown and GitHub make it for them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"\s+", "-", heading) for heading in plain}
