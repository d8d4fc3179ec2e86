"""Copy a report without process environments, secrets, and the names of hosts, users and home
folders."""

from __future__ import annotations

import shlex
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from perfctl.orchestrator.commands.declare import Command, Events, Force, Option, make_api_function
from perfctl.orchestrator.ingest.scrub import ScrubOutput, scrub_report
from perfctl.orchestrator.report.view import View
from perfctl.parsers import sniff

REMOVED = {
    "TARGET_INFO_SYSTEM_ENV": "the machine's environment and name",
    "META_DATA_CAPTURE": "process environments, users, folders",
    "META_DATA_EXPORT": "host, user, folders",
    "EXPORT_META_DATA": "host, user, folders",
    "ProcessStreams": "the program's output",
    "ANALYSIS_FILE": "the program's output, collected files",
    "StringIds": "unused strings, such as process environments",
    "rocpd_info_process": "process environments, commands",
    "rocpd_info_node": "host names",
}
"""Table, or its beginning -> content of the removed rows."""
UNKNOWN = (
    "The copy keeps passwords and tokens without a known name or prefix. It also keeps names of "
    "people, projects, data and machines in names of kernels, ranges and files, and folders "
    "outside /home and /Users. Search the copy for yours before you share it."
)


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """Write a copy of a report without process environments, secrets and home folders. perfctl does
    not print the removed values.

    perfctl does not change the report. Kernels, copies, ranges and counters are the same in both
    files.

    Raises UsageError, before anything is written, if the copy cannot be made, or exists and
    ``force`` is not set; ReportError for a report that cannot be edited, and if a second pass over
    the copy finds a secret.
    """

    file: Annotated[
        Path,
        Option(
            "Report: an nsys .sqlite, or any text report, gzipped or not.",
            is_argument=True,
        ),
    ]
    out: Annotated[
        Path | None,
        Option(
            "Output file. Default: NAME.scrubbed.* next to the report.",
            group="Output",
        ),
    ] = None
    _: KW_ONLY
    force: Force = False


def scrub_to_copy(options: ScrubOptions, events: Events) -> ScrubOutput:
    """Write the copy."""
    return scrub_report(options.file, options.out, force=options.force)


def build_scrub_view(done: ScrubOutput) -> View:
    """Return what was removed and replaced, and what perfctl cannot find."""
    facts = []
    for table, rows in done.rows_removed.items():
        contents = (text for start, text in REMOVED.items() if table.startswith(start))
        content = next((f" ({text})" for text in contents), "")
        change = "emptied" if table.startswith("rocpd") else "removed"
        facts.append(f"{table}: {rows:,} row{'s' * (rows != 1)} {change}{content}")
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in done.replaced.items())
    facts.append(f"Replaced by (removed): {kinds or 'nothing'}")
    if "secret" in done.replaced:
        facts.append("Everyone who had the report has its secrets. Replace those tokens.")
    can_be_read = sniff(done.path) is not None
    facts += [f"Next: perfctl ingest {shlex.quote(str(done.path))}"] if can_be_read else []
    return View(f"Wrote {done.path}", tuple(facts), notes=(UNKNOWN,))


COMMAND = Command(ScrubOptions, scrub_to_copy, build_scrub_view, has_document=False)
scrub = make_api_function(ScrubOptions, scrub_to_copy)
