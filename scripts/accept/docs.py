"""Run every command that the documentation shows, and write its output below it:
``python scripts/accept/docs.py [PAGE...]``

A block that begins with ```console has commands after "$ " and their output. Each page has its own
folder, in which its commands run from top to bottom; ``recorded`` (tests/data/recorded-cpu),
``study`` (examples/mnist_v100_study), ``train.py`` (tests/data/scripts/mnist.py), ``grid.toml``
(examples/bench), ``bench.json`` (tests/data/bench-cpu) and ``reports``
(tests/data/inference-reports) are in it. A comment before a block sets what is special:

    <!-- first 12 -->        only so many lines are shown, then "..."; last 12: only these
    <!-- numbers vary -->    measured on some machine: numbers are not compared
    <!-- one machine's -->   the command must work; its output depends on the machine
    <!-- exit 1 -->          the expected exit code; 0 without it

Separate several with semicolons. ``<!-- run: perfctl ... -->`` runs a command without showing it.
Without a PAGE, the generated pages of docs/reference are renewed, too (reference.py). Look at the
difference (git diff docs) before you commit it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^(?:<!-- run: (?P<hidden>.+?) -->|(?:<!-- (?P<how>(?:first|last|numbers|one|exit)[^>]*) -->\n"
    r")?```console\n(?P<body>.*?)^```)$",
    re.MULTILINE | re.DOTALL,
)
_HASH = re.compile(r"-[0-9a-f]{8}\b")
"""The end of a sweep's folder: it depends on the versions of what is installed."""
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.]+(Z|\+00:00)( \d+)?)?")
_NUMBER = re.compile(r"[<~]?\d[\d.,]*(e[+-]?\d+)?|[–-]")
_UNIT = re.compile(r"(?<=N) ?([kMGTnµumpN]? ?(s|ms|us|B|iB|FLOP|FLOP/s)|[kMGT])\b")


PRICED_ON = date(2026, 11, 23)
"""The day that prices are old or new on: a page would change by itself one day."""


class Shown(NamedTuple):
    """One command of a page: as typed, the output on the page, the output now, and how it ended."""

    page: str
    command: str
    shown: str
    printed: str
    exit_code: int
    how: frozenset[str]

    def wanted_exit_code(self) -> int:
        return self._said("exit") or 0

    def expected(self) -> str:
        """What the page should show: all of it, its first lines, or its last ones."""
        lines = self.printed.splitlines()
        first, last = self._said("first"), self._said("last")
        if first is not None and len(lines) > first:
            return "\n".join([*lines[:first], "..."])
        return "\n".join(
            ["...", *lines[-last:]] if last is not None and len(lines) > last else lines
        )

    def _said(self, word: str) -> int | None:
        return next((int(one.split()[1]) for one in self.how if one.startswith(f"{word} ")), None)

    def as_compared(self) -> tuple[str, str]:
        """Page and command, without what may differ."""
        if "one machine's" in self.how:
            return "", ""
        return self._plain(self.shown), self._plain(self.expected())

    def _plain(self, text: str) -> str:
        text = _HASH.sub("-HASH", _MOMENT.sub("MOMENT", text))
        if "numbers vary" in self.how:
            text = " ".join(_UNIT.sub("", _NUMBER.sub("N", text)).split())
        return text


def pages() -> list[Path]:
    """Pages of the documentation that show commands."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [path for path in found if "```console" in path.read_text(encoding="utf-8")]


def run_page(path: Path) -> Iterator[Shown]:
    """Run the commands of one page, in order, in their own folder."""
    from perfctl.orchestrator.predict import prices

    with mock.patch.object(prices, "get_today", lambda: PRICED_ON), _folder() as folder:
        for block in BLOCK.finditer(path.read_text(encoding="utf-8")):
            if block["hidden"]:
                said, code = _run(block["hidden"], folder)
                if code:
                    raise RuntimeError(f"{path.name}: {block['hidden']}: exit code {code}\n{said}")
                continue
            how = frozenset(
                word.strip() for word in (block["how"] or "").split(";") if word.strip()
            )
            for command, shown in _commands(block["body"]):
                printed, code = _run(command, folder)
                yield Shown(path.name, command, shown, printed, code, how)


def accepted(path: Path) -> str:
    """The page with the current output of its commands."""
    found = run_page(path)

    def renewed(block: re.Match[str]) -> str:
        if block["hidden"]:
            return block[0]
        parts = []
        for _ in _commands(block["body"]):
            now = next(found)
            if now.exit_code != now.wanted_exit_code():
                raise RuntimeError(
                    f"{path.name}: {now.command}: exit code {now.exit_code}\n{now.printed}"
                )
            parts.append(f"$ {now.command}\n{now.expected()}".rstrip())
        comment = f"<!-- {block['how']} -->\n" if block["how"] else ""
        return f"{comment}```console\n" + "\n".join(parts) + "\n```"

    return BLOCK.sub(renewed, path.read_text(encoding="utf-8"))


def _commands(body: str) -> list[tuple[str, str]]:
    parts = re.split(r"^\$ (.+)$", body, flags=re.MULTILINE)[1:]
    return [
        (command, output.strip("\n"))
        for command, output in zip(parts[::2], parts[1::2], strict=True)
    ]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder with the recordings in it, which is the working folder inside the block."""
    no_display = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY"), "")
    names = ("HOME", "PATH", "PERFCTL_NO_CACHE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", *no_display)
    before, outside = Path.cwd(), {name: os.environ.get(name, "") for name in names}
    with tempfile.TemporaryDirectory(prefix="perfctl-docs-") as name:
        folder = Path(name).resolve()
        shutil.copytree(ROOT / "tests" / "data" / "recorded-cpu", folder / "recorded")
        shutil.copytree(ROOT / "examples" / "mnist_v100_study", folder / "study")
        shutil.copy(ROOT / "tests" / "data" / "scripts" / "mnist.py", folder / "train.py")
        shutil.copy(ROOT / "examples" / "bench" / "grid.toml", folder / "grid.toml")
        shutil.copy(ROOT / "tests" / "data" / "bench-cpu" / "bench.json", folder / "bench.json")
        shutil.copytree(ROOT / "tests" / "data" / "inference-reports", folder / "reports")
        (folder / "runs").mkdir()
        os.chdir(folder)
        os.environ |= {
            "HOME": name,
            "PERFCTL_NO_CACHE": "1",
            "XDG_CONFIG_HOME": name,
            "XDG_CACHE_HOME": f"{name}/.cache",
            **no_display,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{outside['PATH']}",
        }
        try:
            yield folder
        finally:
            os.chdir(before)
            os.environ |= outside


def _run(line: str, folder: Path) -> tuple[str, int]:
    """The output of a command on both streams, without this machine's paths, and its exit code."""
    from perfctl.orchestrator.cli.main import run_command_line

    name, *arguments = shlex.split(line)
    if name != "perfctl":
        raise RuntimeError(f"only perfctl is run here, not {name}")
    said, argv = io.StringIO(), sys.argv
    sys.argv = [name, *arguments]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run_command_line(arguments)
    finally:
        sys.argv = argv
    text = said.getvalue().replace(f"{folder}/", "").replace(str(folder), ".")
    text = re.sub(r"[^\s']*/python(3(\.\d+)?)?(?=\s)", "python3", text)
    # progress, on a slow machine
    text = re.sub(r"^\d+ of \d+: .*, \d+ s\n", "", text, flags=re.MULTILINE)
    return "\n".join(row.rstrip() for row in text.splitlines()).strip("\n"), code


def main(names: list[str]) -> int:
    """Renew the given pages, or all."""
    import reference  # beside this file

    failed = 0
    for path in [Path(name).resolve() for name in names] or pages():
        before = path.read_text(encoding="utf-8")
        try:
            now = accepted(path)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        if now != before:
            path.write_text(now, encoding="utf-8")
            print(f"changed: {path.relative_to(ROOT)}")
    if not names:
        reference.main([])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
