"""A study as its readers meet it: sentences, then chapters with charts and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.records import LONGEST, Finding
from perfctl.orchestrator.report.tables import Table
from perfctl.records.run import Run


@dataclass(frozen=True, slots=True)
class Chapter:
    """One part of a study: sentences, then charts, then tables. Empty ones are left out."""

    text: tuple[str, ...] = ()
    charts: tuple[Chart | None, ...] = ()
    tables: tuple[Table | None, ...] = ()
    folded: tuple[Table | None, ...] = ()
    """Long tables: folded on the page, in the CSV files, not in the Markdown."""
    findings: tuple[Finding | str, ...] = ()
    """A text is proved by this chapter."""
    missing: tuple[tuple[str, str], ...] = ()
    """(what, why the study does not have it)."""
    key: str = ""
    """Part of the address of the page, and of the names of files; letters, digits and dashes. "":
    that of the file."""
    title: str = ""
    """"": that of the file."""

    @property
    def is_empty(self) -> bool:
        return not any((*self.text, *self.charts, *self.tables, *self.folded))


@dataclass(frozen=True, slots=True)
class Subject:
    """What the chapters of one kind are made of."""

    chapters: Mapping[str, Callable[[], Chapter | Iterable[Chapter]]]
    """Name in a study's file -> what makes the chapter, or several."""
    facts: tuple[tuple[str, str], ...] = ()
    """What was studied and where: (model, MNIST CNN), (device, ...), (batch sizes, ...)."""
    words: Mapping[str, str] = field(default_factory=dict)
    """{NAME} in a title -> the word that stands there."""
    missing: tuple[tuple[str, str], ...] = ()
    origins: tuple[str, ...] = ()
    """Where the numbers were not measured by this command: "transcribed", "recorded on ..."."""
    links: tuple[tuple[str, str], ...] = ()
    """(text, file beside the page): other pages of the study."""
    problems: tuple[str, ...] = ()
    """Parts that failed."""


@dataclass(frozen=True, slots=True)
class StudyPage:
    """A whole study. It is written three times: page, Markdown, CSV."""

    kind: str
    """flops, inference, speedup or cost: the command's name."""
    title: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    """The answer, most important first; ``evidence`` is the key of a chapter."""
    chapters: tuple[Chapter, ...]
    missing: tuple[tuple[str, str], ...]
    """(what, why it is not in this study): never a 0, never left out in silence."""
    origin: str | None
    command: str | None
    """The command that repeats it."""
    links: tuple[tuple[str, str], ...]


MAX_FINDINGS = 20


def study_page(
    kind: str,
    content: Mapping[str, Any],
    subjects: Mapping[str, Subject],
    *,
    missing: Sequence[tuple[str, str]] = (),
    links: Sequence[tuple[str, str]] = (),
    source: Path | None = None,
    command: str | None = None,
) -> StudyPage:
    """Return the page of a study: the chapters that its file lists, of the subjects that they
    name. Charts are drawn here. Raises UsageError for a chapter that is not known."""
    words = {name: word for one in subjects.values() for name, word in one.words.items()}
    made = [
        chapter for entry in content["chapters"] for chapter in _chapters(entry, subjects, words)
    ]
    chapters = tuple(chapter for chapter in made if not chapter.is_empty)
    keys = [chapter.key for chapter in chapters]
    order = [*content.get("findings", ()), *(chapter.key for chapter in made)]
    findings = [
        _one_sentence(finding, chapter.key)
        for chapter in sorted(made, key=lambda chapter: order.index(chapter.key))
        for finding in chapter.findings
    ]
    whole = tuple(subjects.values())
    absent = [pair for one in whole for pair in one.missing]
    absent += [pair for one in made for pair in one.missing]
    origins = [origin for one in whole for origin in one.origins]
    if source is not None and not origins:
        origins = [f"recorded in {source}"]
    return StudyPage(
        kind,
        _fill(content["title"], words),
        tuple(fact for one in whole for fact in one.facts),
        tuple(finding for finding in findings if finding.evidence in keys)[:MAX_FINDINGS],
        chapters,
        tuple(dict.fromkeys((*missing, *absent))),
        "; ".join(dict.fromkeys(origins)) or None,
        command,
        (*links, *(link for one in whole for link in one.links)),
    )


def _fill(text: str, words: Mapping[str, str]) -> str:
    try:
        return text.format_map(words)
    except (KeyError, ValueError, IndexError) as error:
        known = ", ".join(f"{{{name}}}" for name in words)
        raise UsageError(f"'{text}': {error} is not known", f"Use {known}") from error


def _one_sentence(finding: Finding | str, key: str) -> Finding:
    whole = finding if isinstance(finding, Finding) else Finding(finding, key)
    return whole if len(whole.text) <= LONGEST else replace(whole, text=whole.first)


def _chapters(
    entry: Mapping[str, Any], subjects: Mapping[str, Subject], words: Mapping[str, str]
) -> Iterator[Chapter]:
    """Yield the chapters of an entry of the file, with what it fixes."""
    subject, _, name = entry["show"].partition(".")
    known = subjects[subject].chapters
    if name not in known:
        raise UsageError(
            f"there is no chapter '{entry['show']}'",
            f"Use {', '.join(f'{subject}.{one}' for one in known)}",
        )
    made = known[name]()
    text = tuple(_fill(sentence, words) for sentence in entry.get("text", ()))
    for chapter in (made,) if isinstance(made, Chapter) else made:
        title = chapter.title or _fill(entry.get("title", name.capitalize()), words)
        yield replace(
            chapter,
            key=chapter.key or entry.get("key", name),
            title=title,
            text=() if chapter.is_empty else (*text, *chapter.text),
            charts=tuple(chart for chart in chapter.charts if chart),
            tables=tuple(table for table in chapter.tables if table),
            folded=tuple(table for table in chapter.folded if table),
        )


def facts_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return what measured the runs, where and on what."""
    devices = [device for run in runs for device in run.devices[:1]]
    named = [device.name for device in devices if device.name]
    batches = sorted({run.batch_size for run in runs if run.batch_size is not None})
    facts = {
        "device": ", ".join(dict.fromkeys(named or [device.kind for device in devices])),
        "batch sizes": ", ".join(map(str, batches)),
        "measured by": about.tools(runs),
    }
    for fact in ("option:data", "weights", "torch", "threads"):
        values = (run.report.environment.get(fact) for run in runs)
        facts[fact.removeprefix("option:")] = ", ".join(dict.fromkeys(filter(None, values)))
    facts["date"] = about.began(runs)
    return {name: value for name, value in facts.items() if value}
