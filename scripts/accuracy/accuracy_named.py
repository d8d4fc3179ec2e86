"""Models that libraries name, against torch's FlopCounterMode and published figures, forward and backward: one table.

    python scripts/accuracy/accuracy_named.py [NAME ...] [--shared ../shared]

Nothing is downloaded: models have their default configs, no weights, and tensors on the meta device. 1 multiply-add is 2 FLOPs;
published figures are multiply-adds of one sample. A difference over 1 % is followed by what explains it: a sum over the operators
that ran, which has to close the gap to 0.1 % (published: to the rounding, or 0.5 %). Exits 1 when one does not. Needs perfctl[peers].
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accuracy_named_counters import as_counted, by_torch, total, unknown_to_torch
from accuracy_named_models import INPUTS, Published, available, published, timm_results

from perfctl.orchestrator.actions.estimate import Request, Session, open_session
from perfctl.orchestrator.errors import PerfctlError
from perfctl.workloads.tracing import recorder

BATCH = 2
ALLOWED = 0.01
NAME = 67
"""Width of the first column."""
LEFT = {"torch": 0.001, "published": 0.005}
"""What an explanation may leave open."""
GROUPED = "torch counts the weights' gradient of grouped convolutions `groups` times"


@dataclass
class Row:
    """One model: its line, the lines that explain it, and how each comparison ended."""

    name: str
    cells: str = ""
    lines: list[str] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    """Comparison ("forward", "backward", "published") -> "same", "explained" or "failed"."""


def inputs_of(session: Session, batch: int) -> tuple[Any, ...]:
    shapes = session.shapes
    return recorder.make_inputs([shape.at(batch) for shape in shapes], [shape.dtype for shape in shapes], "meta")


def compare(name: str, of_timm: Mapping[tuple[str, int], Published]) -> Row:
    row = Row(name)
    try:
        session = open_session(Request(name, INPUTS.get(name, ())))
    except PerfctlError as error:
        row.cells, row.ends = f"{error}", {"forward": "failed"}
        return row
    found, model = session.at(BATCH), session.source.model
    if found.problem is not None:
        row.cells, row.ends = found.problem, {"forward": "failed"}
        return row
    model.zero_grad(set_to_none=True)
    theirs = by_torch(model, inputs_of(session, BATCH))
    strange = unknown_to_torch(found)
    more: dict[str, list[tuple[str, int]]] = {"forward": [], "backward": []}
    if theirs.beside.grouped:
        more["backward"].append((GROUPED, -theirs.beside.grouped))
    for kind, flops in strange.items():
        for way, count in zip(more, flops, strict=True):
            more[way] += [(f"torch has no formula for {kind}", count)] if count else []
    pairs = (("forward", found.forward, theirs.forward), ("backward", found.backward, theirs.backward))
    for way, own, other in pairs:
        at_least = "at least " if own.at_least else ""
        row.cells += f"{at_least + format(own.flops, ','):>28}{own.flops / other - 1 if other else 1:>+9.2%}"
        row.ends[way] = settle(row, way, own.flops, other, more[way])
        if own.at_least:
            row.lines.append(f"    {way}: not counted: {', '.join(kind for kind, _ in own.unknown)}")
    said = published(name, session.shapes[0].sizes, of_timm)
    if said is not None:
        beside_published(row, session, said)
    return row


def settle(row: Row, way: str, own: int, other: int, more: list[tuple[str, int]]) -> str:
    """ "same" within 1 %; "explained" where what the other counts differently closes the gap."""
    if abs(own - other) <= ALLOWED * other:
        return "same"
    expected = other + sum(count for _, count in more)
    rest = own / expected - 1 if expected > 0 else 1.0
    said = "; ".join(f"{text}: {count:+,} FLOP" for text, count in more) or "no explanation"
    row.lines.append(f"    {way}: {said}; {rest:+.3%} left")
    return "explained" if abs(rest) <= LEFT["torch"] else "failed"


def beside_published(row: Row, session: Session, said: Published) -> None:
    """One sample in eval, as who published counted."""
    session.request = replace(session.request, mode="infer")
    found = session.at(1)
    own = found.forward.macs / 1e9
    apart = own / said.gmac - 1
    row.cells += f"{own:>12.4f}{said.gmac:>10.6g}{apart:>+9.2%}"
    if abs(apart) <= ALLOWED:
        row.ends["published"] = "same"
        return
    terms = as_counted(said.counter, session.source.model, inputs_of(session, 1), found)
    theirs = own + total(terms)
    rest = theirs - said.gmac
    text = "; ".join(f"{text} {count:+.4f}" for text, count in terms)
    counted = f"{said.counter} counts otherwise: {text} = {theirs:.4f}" if text else "no other rule is known"
    row.lines.append(
        f"    published: {counted}, {rest / said.gmac:+.2%} left; theirs is rounded to +-{said.rounding:g} ({said.source})"
    )
    good = abs(rest) <= max(LEFT["published"] * said.gmac, said.rounding * 1.0001)
    row.ends["published"] = "explained" if good else "failed"


def summary(rows: list[Row], seconds: float) -> str:
    libraries = Counter(row.name.partition(":")[0] for row in rows)
    parts = []
    for way in ("forward", "backward", "published"):
        ends = Counter(row.ends[way] for row in rows if way in row.ends)
        count = sum(ends.values())
        parts.append(
            f"{way} {count}: {ends['same']} within 1 %, {ends['explained']} explained, {ends['failed']} failed"
        )
    models = ", ".join(f"{count} {library}" for library, count in libraries.items())
    return f"{len(rows)} models ({models}). {'. '.join(parts)}. {seconds:.0f} s of CPU"


def main(names: list[str], shared: Path) -> int:
    """Print a line for each model, what explains it, and a last line that counts; 1 when a difference has no explanation."""
    begun = time.process_time()
    there, left_out = available()
    folder = shared / "datasets" / "timm"
    of_timm = timm_results(folder)
    if not of_timm:
        left_out.append(
            f"No results of timm in {folder}: no published figures for its models; say where they are with --shared"
        )
    print("\n".join(left_out))
    print(
        f"{'model':<{NAME}}{'forward FLOP':>28}{'torch':>9}{'backward FLOP':>28}{'torch':>9}{'GMAC':>12}{'published':>10}"
    )
    rows = []
    for name in names or there:
        row = compare(name, of_timm)
        rows.append(row)
        print("\n".join([f"{row.name:<{NAME}}{row.cells}", *row.lines]), flush=True)
    print(summary(rows, time.process_time() - begun))
    return int(any("failed" in row.ends.values() for row in rows))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = Path(os.environ.get("PERFCTL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="timm:resnet50, hf:bert, ...; all of the table when none is given"
    )
    parser.add_argument("--shared", type=Path, default=where, help="folder that holds datasets/timm")
    given = parser.parse_args()
    sys.exit(main(given.names, given.shared))
