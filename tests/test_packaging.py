"""What an editable install hides: a wheel holds only what pyproject.toml lists."""

import re
import tomllib
from pathlib import Path

import perfctl

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCE_FOLDERS = ("perfctl", "orchestrator", "parsers", "templates", "workloads")


def test_every_package_folder_is_listed_and_every_listed_package_has_a_folder():
    found = {
        ("perfctl." if folder.parts[0] != "perfctl" else "") + ".".join(folder.parts)
        for top in SOURCE_FOLDERS
        for init in (ROOT / top).rglob("__init__.py")
        for folder in [init.parent.relative_to(ROOT)]
    }
    assert found == set(PYPROJECT["tool"]["setuptools"]["packages"])


def test_every_data_file_of_a_package_is_covered_by_a_pattern():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]
    for top in SOURCE_FOLDERS:
        package = top if top == "perfctl" else f"perfctl.{top}"
        for file in (ROOT / top).rglob("*"):
            if file.is_file() and file.suffix not in (".py", ".pyc"):
                assert any(file.match(pattern) for pattern in patterns.get(package, [])), (
                    f"{file} would not be in a wheel"
                )


def test_every_name_that_import_perfctl_offers_is_there():
    for name in perfctl.__all__:
        assert getattr(perfctl, name) is not None, name


def test_the_core_install_needs_no_torch_and_no_nvidia_library():
    names = {re.split(r"[><=\[ ;]", line)[0] for line in PYPROJECT["project"]["dependencies"]}
    assert names == {
        "jinja2",
        "matplotlib",
        "msgspec",
        "numpy",
        "pandas",
        "psutil",
        "rich",
        "sqlite-utils",
        "typer",
    }


def test_no_file_bans_itself_from_the_repository():
    words = re.compile("/wo" + "rk/|/va" + "r/task|python" + r"hosted\.org|py" + r"pi\.org")
    for file in ROOT.rglob("*"):
        inside = file.relative_to(ROOT).parts
        if not file.is_file() or inside[0].startswith(
            (".git", ".venv", ".mypy", ".ruff", ".pytest", ".hypo")
        ):
            continue
        if (
            file.suffix in (".py", ".md", ".sh", ".toml", ".html", ".css", ".js", ".json", "")
            and "__pycache__" not in inside
        ):
            assert not words.search(file.read_text(encoding="utf-8", errors="replace")), (
                f"{file} names a machine or a registry"
            )
