"""The page as one self-contained HTML text: the one file that knows Jinja."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from perfctl.orchestrator.report.numbers import insert_no_break_before_units
from perfctl.orchestrator.report.page.records import split_long_note
from perfctl.orchestrator.report.tables import TURNING

_CONTROL = re.compile(
    f"[{''.join(map(chr, (*range(9), 11, 12, *range(14, 32), *range(127, 160), *TURNING)))}]"
)
"""What HTML forbids, what a terminal that shows the file would obey, and what turns a
line around."""


def render_view_as_html(view: object, template: str = "view.html") -> str:
    """Return a view as an HTML report. The same view gives the same bytes.

    template: "run.html" for the view of runs, "calculator.html" for that of
    ``report.calculator.build_calculator_page``, "sweeps.html" for a folder's pages and sweeps as
    'perfctl serve' lists them.
    """
    text = _make_jinja_environment().get_template(template).render(page=view)
    clean_text = _CONTROL.sub("\ufffd", text)
    # a report may hold half a surrogate pair
    return clean_text.encode("utf-8", "replace").decode("utf-8")


def compute_calculator_script_digest() -> str:
    """Return the digest of the calculator's script, as its page states it."""
    body = "{% extends 'calculator.html' %}{% block body %}{% endblock %}"
    page = _make_jinja_environment().from_string(body).render(page={"title": ""})
    return page.partition("script-src '")[2].partition("'")[0]


def _make_jinja_environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_read_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # SVG that charts.py made; names in it are escaped there
    environment.filters["drawing"] = Markup
    environment.filters |= {
        "divided": split_long_note,
        "held": insert_no_break_before_units,
        # a name may break after its dots, colons and underscores, and nowhere else
        "breakable": lambda name: Markup("<wbr>").join(re.findall(r"[^._:/]*[._:/]*", name)),
    }
    # what a page's Content-Security-Policy allows: this script, and none that a name from a report
    # might become
    environment.filters["digest"] = lambda code: (
        f"sha256-{b64encode(sha256(code.encode()).digest()).decode('ascii')}"
    )
    # style and scripts, our own files
    environment.globals["asset"] = lambda name: Markup(_read_template(name))  # noqa: S704  # nosec B704
    environment.policies["json.dumps_kwargs"] = {
        "separators": (",", ":"),
        "ensure_ascii": False,
        "sort_keys": False,
    }
    return environment


def _read_template(name: str) -> str:
    return resources.files("perfctl.templates").joinpath(name).read_text(encoding="utf-8")
