"""The page as one self-contained HTML text: the one file that knows Jinja."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from perfctl.orchestrator.report.view import page_view
from perfctl.parsers.stored import Run


def render(runs: Sequence[Run], *, generated_at: str, title: str | None = None) -> str:
    """HTML of the page for these runs. The same runs and ``generated_at`` give the same bytes."""
    environment = Environment(
        autoescape=True, loader=FunctionLoader(_source), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["drawing"] = Markup  # SVG that charts.py made; names in it are escaped there
    environment.globals["asset"] = lambda name: Markup(_source(name))  # noqa: S704  style.css and page.js, our own files
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "sort_keys": False}
    view = page_view(runs, generated_at=generated_at, title=title)
    text = environment.get_template("run.html").render(page=view)
    return text.encode("utf-8", "replace").decode("utf-8")  # a report may hold half a surrogate pair


def _source(name: str) -> str:
    return resources.files("perfctl.templates").joinpath(name).read_text(encoding="utf-8")
