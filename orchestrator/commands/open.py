"""Show what a profiler report says, without a results database of the user's: the door for a trace
and two minutes."""

from __future__ import annotations

import os
import shutil
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, ClassVar

from perfctl.orchestrator.commands import ingest, report
from perfctl.orchestrator.commands.declare import Command, Events, Option
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.files import find_user_folder
from perfctl.orchestrator.ingest.context import IngestResult
from perfctl.orchestrator.report.view import View
from perfctl.version import __version__

FINDINGS = 3


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Show what profiler reports say: ingest them into a results database in your cache folder,
    print the first findings, and open the HTML report in the browser.

    The same files use the same database again. All formats of 'perfctl ingest' are read.

    Raises UsageError without a file, PerfctlError if none of them is a report.
    """

    files: Annotated[
        Sequence[Path],
        Option("Profiler report files, or folders and archives with them.", is_argument=True),
    ] = ()
    _: KW_ONLY
    no_browser: Annotated[
        bool, Option("Do not open the browser. Default over SSH, or without a display.")
    ] = False
    forget: Annotated[
        bool, Option("Remove the database and HTML report of these files; without files, of all.")
    ] = False


@dataclass(frozen=True, slots=True)
class Opened:
    """What was made of the reports, or removed."""

    JSON_KEYS: ClassVar = ("title", "facts", "findings", "warnings", "page", "store", "forgotten")

    title: str
    facts: str
    """What was measured, and with what."""
    findings: tuple[str, ...]
    """The first findings."""
    warnings: tuple[str, ...]
    """What to know before using them."""
    page: Path | None
    """The HTML report; None if it was removed."""
    store: Path | None
    """The results database; None if it was removed."""
    forgotten: tuple[Path, ...] = ()
    """Folders that were removed."""
    is_partial: IngestResult | None = None


def open_reports(options: OpenOptions, events: Events) -> Opened:
    """Ingest the reports and write the page, or forget them."""
    home = find_user_folder("XDG_CACHE_HOME", "~/.cache") / "opened"
    folder = _choose_cache_folder(home, options.files) if options.files else home
    if options.forget:
        if folder.exists():
            shutil.rmtree(folder)
            return Opened("", "", (), (), None, None, (folder,))
        return Opened("", "", (), (), None, None)
    if not options.files:
        raise UsageError("no report was named", "Name report files, folders or archives")
    store, complete, done = folder / "perfctl.db", folder / "complete", None
    with ExitStack() as on_failure:
        on_failure.callback(shutil.rmtree, folder, ignore_errors=True)
        if not complete.exists():
            folder.mkdir(parents=True, exist_ok=True)
            done = ingest.ingest_reports(ingest.IngestOptions(options.files, store), events)
            if not done.taken:
                done.check()
            if not done.failed and not done.empty:
                complete.touch()
        page = folder / "report.html"
        written, answer = report.write_report_page(report.ReportOptions(store, page), events)
        on_failure.pop_all()
    if not options.no_browser and _has_browser():
        webbrowser.open(written.path.as_uri())
    first = next(
        (view for view in (answer, *answer.chapters) if view.findings),
        next(iter(answer.chapters), answer),
    )
    findings, cautions = first.stated
    facts = "; ".join(f"{name}: {value}" for name, value in first.properties)
    title = answer.title or first.title
    if title != first.title:
        facts = f"first, whose findings these are: {first.title}; {facts}"
    return Opened(title, facts, tuple(findings[:FINDINGS]), tuple(cautions), page, store, (), done)


def _choose_cache_folder(home: Path, files: Sequence[Path]) -> Path:
    """Return the cache folder of files in their present state."""
    facts = [__version__]
    for path in files:
        try:
            for member in (path, *(sorted(path.rglob("*")) if path.is_dir() else ())):
                status = member.stat() if member.exists() or member == path else member.lstat()
                facts.append(f"{member.resolve()}\0{status.st_size}\0{status.st_mtime_ns}")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", "Check the path") from error
    key = sha256("\n".join(facts).encode(errors="surrogateescape")).hexdigest()[:12]
    return home / key


def _has_browser() -> bool:
    """Whether a browser would be on the user's screen."""
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def build_opened_view(opened: Opened) -> View:
    """Return the findings and where the page is."""
    if opened.page is None:
        paths = ", ".join(map(str, opened.forgotten))
        return View(f"Removed {paths}" if paths else "Nothing to forget")
    return View(
        opened.title,
        facts=(opened.facts,),
        findings=opened.findings,
        warnings=opened.warnings if opened.findings or opened.warnings else ("No findings.",),
        lines=(f"HTML report: {opened.page}", f"Results database: {opened.store}"),
    )


def raise_if_partial(opened: Opened, events: Events) -> None:
    """Raise PartlyDone if some files could not be read."""
    if opened.is_partial is not None:
        opened.is_partial.check()


COMMAND = Command(
    OpenOptions, open_reports, build_opened_view, has_document=False, check=raise_if_partial
)
