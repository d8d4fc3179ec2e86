"""Names, keywords and docstrings of the Python API as one file of Python, which mkdocstrings reads
for docs/reference/python.md: ``python scripts/accept/api_stub.py FOLDER``

mkdocstrings reads source text. But perfctl imports its names when they are first used, and makes
its functions from declared commands. ``make docs`` calls this as a hook of mkdocs.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "api"
"""mkdocs.yml names it, too."""


class _Default:
    """The default of a keyword, as one types it."""

    def __init__(self, value: object) -> None:
        self.text = re.sub(r"PosixPath\((.+?)\)", r"\1", repr(value))

    def __repr__(self) -> str:
        return self.text if not self.text.startswith("<") else "..."


def stub_of(name: str, value: Any) -> str:
    """Return the source of a name of the API: its signature and its docstring, without the
    keywords, which are the options of the command line."""
    text = (inspect.getdoc(value) or "").partition("\n\nArgs:\n")[0]
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    body = "\n".join(f"    {line}" for line in f'"""{text}\n"""'.splitlines())
    if inspect.isclass(value):
        return f"class {name}:\n{body}\n"
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=parameter.default
            if parameter.default is inspect.Parameter.empty
            else _Default(parameter.default),
        )
        for parameter in signature.parameters.values()
    ]
    plain = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"def {name}{plain}:\n{body}\n"


def make(folder: Path) -> Path:
    """Write FOLDER/perfctl/__init__.py."""
    import perfctl

    names = [name for name in perfctl.__all__ if not name.startswith("__")]
    file = folder / "perfctl" / "__init__.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    stubs = [stub_of(name, getattr(perfctl, name)) for name in names]
    file.write_text("\n\n".join([f'"""{perfctl.__doc__}"""', *stubs]), encoding="utf-8")
    return file


def on_startup(**_: Any) -> None:
    """mkdocs starts: mkdocstrings looks for the folder as soon as it has read its settings."""
    make(FOLDER)


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
