"""List what to mend in hand-written pages: ``python scripts/accept/words.py [PAGE...]``

It lists sentences over 30 words, table cells over 15 words, and phrases that the style of the pages
bans: passives without an actor ("is told"), "N %" with a space, and "us" for microseconds. Writers
aim at 25 and 12: ``--sentence 25 --cell 12``. Code, output, comments and headings do not count, and
a span of code counts as one word. A page whose first line is a comment with "generated" is left to
its generator. The exit code is 1 if anything is listed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SENTENCE, CELL = 30, 15
BANNED = re.compile(
    r"\b(?:is|are|was|were) (?:said|told|held|taken)\b|\bsays so\b|\bstands\b|\bbeside\b"
    r"|\bmade elsewhere\b|\d[ \u00a0]%|\d[ \u00a0]us\b",
    re.IGNORECASE,
)
"""Phrases that no page may contain outside of code."""
_GENERATED = re.compile(r"<!--[^>]*\bgenerated\b", re.IGNORECASE)
_ABBREVIATION = re.compile(r"(?:\.\.|\b(?:e\.g|i\.e|vs|et al|sec|ch|ed|eq|fig|Dr|St))\.$")
_END = re.compile(r"[.!?][\"')*_]*\s+")
_BULLET = re.compile(r"\s*(?:[-*+]|\d+\.)\s+")
_HEADING_OR_DIRECTIVE = ("#", ":::", "!!!", "???", "===")


def pages() -> list[Path]:
    """Return the Markdown files that people write, outside of the tests."""
    files = sorted(ROOT.rglob("*.md"))
    parts = {file: file.relative_to(ROOT).parts for file in files}
    return [
        file
        for file in files
        if parts[file][0] not in {"tests", "build", "site"}
        and not any(part.startswith(".") for part in parts[file])
        and not _GENERATED.match(file.read_text(encoding="utf-8"))
    ]


def check(text: str, sentence: int = SENTENCE, cell: int = CELL) -> Iterator[tuple[int, str]]:
    """Yield the line number and the complaint of everything to mend in a page."""
    for line, block in _blocks(_without_code(text)):
        in_table = block.startswith("|")
        limit, kind = (cell, "cell") if in_table else (sentence, "sentence")
        for part in re.split(r"(?<!\\)\|", block) if in_table else _sentences(block):
            count = len(re.findall(r"\S*\w\S*", part))
            if count > limit:
                yield line, f"{kind} of {count} words: {part.strip()}"
        for phrase in BANNED.finditer(block):
            yield line, f"banned phrase: {phrase[0]}"


def _without_code(text: str) -> str:
    """Replace code spans and links by their words; blank out blocks of code and comments."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"\A---\n.*?^---$", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^( *)(```|~~~).*?^\1\2", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)
    text = re.sub(
        r"<(?:svg|style|script)\b.*?</(?:svg|style|script)>", blank, text, flags=re.DOTALL
    )
    text = re.sub(r"(`+).+?\1", lambda span: "Code" + "\n" * span[0].count("\n"), text, flags=re.S)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"</?[a-zA-Z][^>\n]*>", " ", text)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, list items and table rows, each with its first line number."""
    start, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bullet = _BULLET.match(line)
        stripped = line.strip()
        apart = not stripped or stripped.startswith(("|", *_HEADING_OR_DIRECTIVE))
        if lines and (apart or bullet):
            yield start, " ".join(lines)
            lines = []
        if stripped.startswith("|"):
            yield number, stripped
        elif not apart:
            start = start if lines else number
            lines.append(line[bullet.end() :].strip() if bullet else stripped)


def _sentences(block: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(block):
        if not _ABBREVIATION.search(block[start : end.start() + 1]):
            yield block[start : end.end()]
            start = end.end()
    yield block[start:]


def main(arguments: list[str]) -> int:
    """Print what to mend, one line each; return 1 if there is anything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="Pages to check. Default: all.")
    parser.add_argument("--sentence", type=int, default=SENTENCE, help="Words per sentence.")
    parser.add_argument("--cell", type=int, default=CELL, help="Words per table cell.")
    options = parser.parse_args(arguments)
    complaints = [
        f"{page}:{line}: {complaint}"
        for page in options.pages or [path.relative_to(Path.cwd()) for path in pages()]
        for line, complaint in check(
            page.read_text(encoding="utf-8"), options.sentence, options.cell
        )
    ]
    print(*complaints, sep="\n", end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
