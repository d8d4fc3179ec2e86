"""Every study writes its figures four times, on the page, in the Markdown, in the CSV files and on
the terminal: they agree."""

import csv
import gzip
import html
import json
import re
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run_command_line

DATA = Path(__file__).resolve().parents[1] / "data"
EXAMPLE = DATA.parents[1] / "examples" / "mnist_v100_study"
PREFIX = {
    "p": 1e-12,
    "n": 1e-9,
    "µ": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}
SHOWN = re.compile(
    r"[~ƒ≥ ]*(-?\d[\d,\u202f]*\.?\d*) ?([pnµmkMGT]?)(s|B|FLOP|FLOP/s|%|images/s|)(?: \([\d,.]+ "
    r"MiB\))?"
)
IN_A_SENTENCE = re.compile(
    r"(?<![\d.,x])(\d[\d,]*(?:\.\d+)?) ?(?:([nµmkMGT]?)(s|B|FLOP)|(%|images/s|KiB|MiB|MAC|values))"
    r"\b",
    re.ASCII,
)


def as_numbers(number, prefix, unit):
    """(what a CSV file may hold for it, half of its last digit as a share of it)."""
    plain = re.sub(r"[,\u202f]", "", number)
    value, half = float(plain), 0.5 * 10.0 ** -len(plain.partition(".")[2])
    if len(plain.rstrip("0")) < len(plain) and "." not in plain and prefix:
        half = 0.5
    whole = value * PREFIX[prefix]
    held = {
        "s": (whole * 1e9, whole),
        "%": (value / 100, value),
        "MiB": (value * 2**20,),
        "KiB": (value, value * 1024),
    }
    return held.get(unit, (whole,)), half / abs(value) if value else half


def near(one, held, share):
    return abs(one - held) <= 1.02 * share * (abs(one) or 1) + 1e-12


def agrees(shown, held):
    """Whether the text of a cell is the number of the file, rounded; None where it is no number."""
    if not (found := SHOWN.fullmatch(shown)):
        return None
    candidates, share = as_numbers(found[1], found[2], found[3])
    return any(near(one, held, share) for one in candidates)


def tables(summary):
    """(caption, rows without the head) of each table of the Markdown."""
    for found in re.finditer(
        r"^### ([^\n]+)$(.*?)(?=^##|^!\[|\Z)", summary, re.MULTILINE | re.DOTALL
    ):
        lines = [line for line in found[2].splitlines() if line.startswith("| ")]
        yield (
            found[1],
            [[plain(cell) for cell in re.split(r"(?<!\\) \| ", line[2:-2])] for line in lines[2:]],
        )


def plain(markdown):
    return html.unescape(re.sub(r"\\(.)", r"\1", markdown)).strip()


def squeezed(text):
    return re.sub(r"\s+", "", text)


def page_cells(page):
    cells = re.findall(r"<td\b[^>]*>(.*?)</td>", page, re.DOTALL)
    two = [squeezed(html.unescape(re.sub(r"<[^>]*>", "", cell))) for cell in cells]
    return {*two, *(a + b for a, b in pairwise(two))}  # a number and its unit may be two cells


def recorded(kind, folder):
    """Words that make a study of recorded data."""
    if kind == "flops":
        return ["--from", str(EXAMPLE), "--hand", "conv2=141557760,514112 values"]
    if kind == "flops on a CPU":
        return ["--from", str(DATA / "recorded-cpu" / "torch")]
    if kind == "inference":
        return ["--from", str(DATA / "inference-reports")]
    if kind == "cost":
        return ["--from", str(DATA / "bench-cpu" / "bench.json")]
    for precision in ("fp32", "bf16"):  # the same recording twice, once under another name
        place = folder / "runs" / precision
        shutil.copytree(DATA / "recorded-cpu" / "torch", place)
        for file in place.rglob("workload.json"):
            record = json.loads(file.read_text())
            file.write_text(json.dumps(record | {"precision": precision}))
        for file in place.rglob("*.trace.json.gz"):  # other bytes: no report twice
            other = gzip.decompress(file.read_bytes()) + b"\n" * (precision == "bf16")
            file.write_bytes(gzip.compress(other))
    return ["--from", str(folder / "runs")]


def number_of(value):
    try:
        return float(value)
    except ValueError:
        return None


def same_rows(rows, lines):
    """How many numbers of the Markdown were compared with those of the file; None where
    anything differs."""
    compared = 0
    for shown, values in zip(rows, lines, strict=False):
        for text, value in zip(shown, values, strict=True):
            if (text in ("–", "")) != (value == ""):
                return None
            number = number_of(value)
            same = None if number is None else agrees(text, number)
            if same is False:
                return None
            compared += same is True
    return compared


@pytest.mark.parametrize("kind", ["flops", "flops on a CPU", "inference", "speedup", "cost"])
def test_page_summary_csv_and_terminal_have_the_same_figures(kind, tmp_path, capsys):
    out = tmp_path / "study"
    assert (
        run_command_line(["study", kind.split()[0], *recorded(kind, tmp_path), "--out", str(out)])
        == 0
    )
    printed = re.findall(r"^(?:\d+|!)  (.+)$", capsys.readouterr().out, re.MULTILINE)
    summary, page = (out / "summary.md").read_text(), (out / "study.html").read_text()
    section = summary.partition("\n## ")[0]
    stated = re.findall(r"^(?:\d+\.|- ⚠) (.+)$", section, re.MULTILINE)
    assert printed == [plain(line) for line in stated]
    on_its_page = [html.unescape(one) for one in re.findall(r"<li><span>(.*?)</span>", page)]
    assert printed == [one.replace("\xa0", " ") for one in on_its_page]
    assert all(len(one) <= 140 for one in printed)
    alike = Counter(re.sub(r"[\d.,]+|\b(?:densenet201|resnet152)\b", "#", one) for one in printed)
    assert max(alike.values()) <= 2, "two findings at most about the same thing"

    files = {
        file.stem: list(csv.reader(file.read_text().splitlines()))[1:]
        for file in (out / "tables").iterdir()
    }
    on_page, compared = page_cells(page), 0
    for caption, rows in tables(summary):
        absent = [text for row in rows for text in row if squeezed(text) not in on_page]
        assert not absent, caption
        name = re.sub(r"[^a-z0-9]+", "-", plain(caption).lower()).strip("-")[:60]
        # of several chapters
        held = [lines for stem, lines in files.items() if stem.endswith(f"-{name}")]
        found = [same_rows(rows, lines) for lines in held]
        assert any(count is not None for count in found), (caption, rows, held)
        compared += max(count or 0 for count in found)
    assert compared > 20

    every = (number_of(value) for lines in files.values() for line in lines for value in line)
    known = [value for value in every if value is not None]
    for sentence in printed:
        for number, prefix, scaled, unit in IN_A_SENTENCE.findall(sentence):
            candidates, share = as_numbers(number, prefix, scaled or unit)
            there = any(near(one, held, share) for held in known for one in candidates)
            said = any(squeezed(f"{number}{prefix}{scaled or unit}") in text for text in on_page)
            assert there or said, (
                f"{number} {prefix}{scaled or unit} of '{sentence}' stands in no table"
            )
