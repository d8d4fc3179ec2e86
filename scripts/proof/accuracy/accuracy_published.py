"""How far the fit that ships with perfctl is from published steps that it did not see.

    python scripts/proof/accuracy/accuracy_published.py [--shared ../shared] [--traces FILE]

Left out together: the networks of one timm module (five folds), all boards of one chip, all that
was published in a year and later, all chips that came out in a year and later, and, as judges only,
every row of published.csv whose licence does not allow to learn from it. Each line stands beside a
line through GMACs (fitted in logarithms), the roofline alone, and Habitat and NeuSight where their
predictions are published. The first run traces 2,500 networks, which takes a quarter of an hour of
one core; the traces are kept in build/accuracy/. Needs perfctl[peers], perfctl[predict].
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import exp
from typing import Any

import numpy as np
from accuracy_lines import Line, parser_for, percent, print_lines
from publish import (
    SMALL,
    HeldOut,
    as_published,
    chip,
    cpu_fitted,
    cpu_held_out,
    fitted,
    held_out,
    host_of,
    learn,
    single,
    spread_of,
    teaches,
)
from published_rows import KEPT, Row, cpu_rows, rows
from scipy.stats import beta

from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.published import (
    ShippedFit,
    compute_device_interval_factor,
    list_device_facts_beyond_fit,
    strip_memory_size,
)
from perfctl.orchestrator.predict.step_parts import compute_step_floor_seconds

HEADING = (
    f"{'':91}{'':>12}{'median error of others':>40}\n"
    f"{'steps that the fit did not see':62}{'median error':>14}{'wanted':>14}{'':>5}{'p90':>10}"
    f"{'GMACs':>10}{'roofline':>10}{'Habitat':>10}{'NeuSight':>10}"
)
NOTE = (
    "-: NeuSight's summary.csv has predictions of NeuSight and Habitat for language models in fp32 "
    "only; none are published for the other rows."
)

RELEASED = {
    "P100": 2016,
    "P4": 2016,
    "V100": 2017,
    "T4": 2018,
    "A100": 2020,
    "RTX 3090": 2020,
    "MI100": 2020,
    "MI250": 2021,
    "MI210": 2022,
    "H100": 2022,
    "RTX 4090": 2022,
    "L4": 2023,
    "RTX 5090": 2025,
}
"""Year in which each chip came out, from memory: not looked up."""
FEWEST = 30
"""Rows of earlier years to learn from."""


def _errors(given: Sequence[Row], seconds: Callable[[Row], float]) -> np.ndarray:
    return np.array([abs(seconds(row) / row.seconds - 1.0) for row in given])


def _roofline(given: Sequence[Row]) -> np.ndarray:
    return _errors(given, lambda row: compute_step_floor_seconds(row.case, row.machine))


def _gmacs(given: Sequence[Row], through: Sequence[Row]) -> np.ndarray:
    """Errors of a line through GMACs of ``through``, these very rows or more, so better than it
    could be on rows not seen."""
    macs, seconds = (
        np.log([row.case.forward_macs_of_batch for row in through]),
        np.log([row.seconds for row in through]),
    )
    slope, start = np.polyfit(macs, seconds, 1)
    return _errors(
        given, lambda row: float(np.exp(start + slope * np.log(row.case.forward_macs_of_batch)))
    )


def line(
    name: str,
    given: Sequence[Row],
    seconds: Callable[[Row], float],
    aim: float | None,
    through: Sequence[Row] = (),
) -> Line:
    """A line of the table; ``through``: the rows that the line through GMACs is fitted to, where
    these are too few."""
    errors = _errors(given, seconds)
    median = float(np.median(errors))
    others: list[np.ndarray | None] = [_gmacs(given, through or given), _roofline(given)]
    others += [_theirs(given, lambda row: row.habitat), _theirs(given, lambda row: row.neusight)]
    cells = [percent(float(np.quantile(errors, 0.9)))]
    cells += ["-" if each is None else percent(float(np.median(each))) for each in others]
    return Line(
        f"{name} ({len(given)})",
        percent(median),
        f"< {aim:.0%}" if aim else "",
        aim is None or median < aim,
        "".join(f"{cell:>10}" for cell in cells)[2:],
    )


def _theirs(given: Sequence[Row], seconds: Callable[[Row], float | None]) -> np.ndarray | None:
    """Errors of another's predictions; None unless it has one for every row."""
    found = [seconds(row) for row in given]
    if any(one is None for one in found):
        return None
    return np.array(
        [abs((one or 0.0) / row.seconds - 1.0) for one, row in zip(found, given, strict=True)]
    )


def lines(every: Sequence[Row], fit: ShippedFit, found: HeldOut) -> Iterator[Line]:
    known, new = (lambda row: found.known[id(row)]), (lambda row: found.new[id(row)])

    def taught(source: str, training: bool | None = None) -> list[Row]:
        return [
            row
            for row in every
            if teaches(row)
            and row.source.startswith(source)
            and training in (None, row.case.training)
        ]

    def whole(row: Row) -> float:
        return published.predict_step_by_published_fit(fit, row.case, row.machine).seconds

    judges = [row for row in every if not row.may_fit]
    resnets = [row for row in judges if row.case.training and "resnet50" in row.case.model]
    language = taught("neusight")
    with_habitat = [row for row in language if row.habitat is not None]
    yield from (
        line("timm, inference, by left-out module", taught("timm", False), known, 0.10),
        line("timm, training, NCHW, by left-out module", taught("timm train nchw"), known, 0.10),
        line("timm, training, NHWC, by left-out module", taught("timm train nhwc"), known, 0.10),
        line("timm, inference, by left-out GPU", taught("timm", False), new, 0.20),
        line("timm, training, by left-out GPU", taught("timm train"), new, 0.20),
        line("language models, fp32, by left-out GPU", language, new, 0.15),
        line("  those that Habitat predicts too", with_habitat, new, None),
        line("ResNet-50 training, rows that no fit may see", resnets, whole, 0.15),
    )
    for name in ("A100", "V100", "H100", "T4", "RTX 3090"):
        for precision in ("fp32", "tf32", "fp16"):
            mine = [row for row in resnets if chip(row) == name and row.case.precision == precision]
            if mine:
                yield line(f"  {name} {precision}", mine, whole, None, resnets)
        if not any(chip(row) == name for row in resnets):
            yield Line(f"  {name} (0)", "-", "", True, "published.csv has none")
    hosts = {
        name: replace(fit, host=host_of([row for row in every if chip(row) != name], fit))
        for name in {chip(row) for row in every if single(row)}
    }
    singles = [row for row in every if single(row)]
    yield line(
        "one sample, inference, host by left-out GPU",
        singles,
        lambda row: (
            published.predict_step_by_published_fit(hosts[chip(row)], row.case, row.machine).seconds
        ),
        0.30,
    )
    for what, chosen in (("convolutions", False), ("Lambda's BERT", True)):
        mine = [
            row
            for row in judges
            if row.case.training and row.case.model.startswith("hf:") == chosen
        ]
        yield line(f"all training that no fit may see, {what}", mine, whole, None)
        for name in sorted({chip(row) for row in mine}):
            its = [row for row in mine if chip(row) == name]
            slower = float(np.median([whole(row) / row.seconds for row in its])) - 1.0
            one = line(f"  {name}", its, whole, None, mine)
            yield replace(one, note=f"{one.note}  median {slower:+.1%}")
    yield from _not_learned(every, fit, hosts)
    yield from _disagreements(every, fit)
    yield from _compiled(every, found)
    yield from _years(every, found)
    yield from _coverage(every, fit, found)


def cpu_lines(given: Sequence[Row]) -> list[Line]:
    """One CPU by left-out module. No other CPU is published, so none can be left out."""
    found = cpu_held_out(given)
    fit = cpu_fitted(given, found)
    inside = [
        _inside(row, found[id(row)], compute_device_interval_factor(fit, row.case, row.machine))
        for row in given
    ]
    widths = f"factor to its ends {exp(fit.spread['known iV']):.2f}, from these very errors"
    return [
        line(
            "timm, inference on one CPU, by left-out module",
            given,
            lambda row: found[id(row)],
            0.10,
        ),
        Line(
            f"90 % interval, one CPU, left-out modules ({len(given)})",
            percent(float(np.mean(inside))),
            "",
            True,
            widths,
        ),
    ]


def _not_learned(
    every: Sequence[Row], fit: ShippedFit, hosts: Mapping[str, ShippedFit]
) -> Iterator[Line]:
    """Rows that taught no cost. Single samples taught the host's time: ``hosts`` has fits without
    their chip's."""
    mine = [row for row in every if not teaches(row) and not row.case.compiled]
    ranges = {
        id(row): published.predict_step_by_published_fit(
            hosts[chip(row)] if single(row) else fit, row.case, row.machine
        )
        for row in mine
    }
    for first, last in ((1, 10**6), (1, 1), (2, 8), (9, 64), (65, 10**6)):
        chosen = [row for row in mine if first <= row.case.batch <= last]
        held = [ranges[id(row)].low <= row.seconds <= ranges[id(row)].high for row in chosen]
        batches = "every batch" if first == 1 < last else f"batch {first} to {last}"
        one = line(
            f"rows that taught no cost, {batches}",
            chosen,
            lambda row: ranges[id(row)].seconds,
            None,
        )
        yield replace(one, note=f"{one.note}  in 90 %: {percent(float(np.mean(held)))}")


def _disagreements(every: Sequence[Row], fit: ShippedFit) -> Iterator[Line]:
    """How far publications of one step are apart. No predictor that knows GPU, network, batch and
    precision does better than the best single value of each step."""
    steps = defaultdict[Any, list[Row]](list)
    for row in every:
        steps[row.source.startswith("timm"), row.machine.name, row.case].append(row)
    for what, of, timm in (
        ("publications", lambda row: (row.source, row.year), False),
        ("publishers", lambda row: row.source, False),
        ("timm with PyTorch 2.4 and 2.9", lambda row: row.year, True),
    ):
        groups = {
            id(row): group
            for key, group in steps.items()
            if key[0] == timm and len({of(row) for row in group}) > 1
            for row in group
        }
        mine = [row for row in every if id(row) in groups]
        factors = [
            max(row.seconds for row in group) / min(row.seconds for row in group)
            for group in {id(group): group for group in groups.values()}.values()
        ]

        def between(row: Row, others: bool, groups: Any = groups, of: Any = of) -> float:
            taken = [one for one in groups[id(row)] if not others or of(one) != of(row)]
            return float(np.exp(np.mean(np.log([one.seconds for one in taken]))))

        best = line(f"same step, {what}: best value", mine, lambda row: between(row, False), None)
        apart = f"slowest over fastest: median {np.median(factors):.2f}, most {max(factors):.2f}"
        yield replace(best, note=f"{best.note}  {len(factors)} steps, {apart}")
        yield line("  from the others' value", mine, lambda row: between(row, True), None)
        yield line(
            "  from this fit, which learned some of them",
            mine,
            lambda row: published.predict_step_by_published_fit(fit, row.case, row.machine).seconds,
            None,
        )


def _compiled(every: Sequence[Row], found: HeldOut) -> list[Line]:
    """Inference under torch.compile: the factors, and the eager costs they apply to, come from
    other networks, then other GPUs."""
    mine = [row for row in every if row.case.compiled and row.case.batch > SMALL]
    said = [
        line(
            "torch.compile, inference, by left-out module",
            mine,
            lambda row: found.compiled[id(row)],
            None,
        )
    ]
    for name in sorted({chip(row) for row in mine}):
        its = [row for row in mine if chip(row) == name]
        said.append(
            line(f"  {name} left out", its, lambda row: found.compiled_new[id(row)], None, mine)
        )
    return said


def _years(every: Sequence[Row], found: HeldOut) -> Iterator[Line]:
    """Each year predicted by a fit to earlier years only: of publication, then of the
    chips' release."""
    taught, made = [row for row in every if teaches(row)], dict[int, Any]()
    for what, year_of in (
        ("published", lambda row: row.year),
        ("chips of", lambda row: RELEASED[chip(row)]),
    ):
        for year in sorted({year_of(row) for row in taught}):
            before = [row for row in taught if year_of(row) < year]
            mine = [row for row in taught if year_of(row) == year]
            if len(before) < FEWEST:
                continue
            fit = as_published(learn(before, made), before, {}, spread_of(before, found))
            seconds = {
                id(row): published.predict_device_step_seconds(fit, row.case, row.machine)
                for row in mine
            }
            inside = [
                _inside(
                    row,
                    seconds[id(row)],
                    compute_device_interval_factor(fit, row.case, row.machine),
                )
                for row in mine
            ]
            one = line(
                f"{what} {year}, from earlier years",
                mine,
                lambda row, seconds=seconds: seconds[id(row)],
                None,
            )
            more = f"  in 90 %: {percent(float(np.mean(inside)))}; learned from {len(before)}"
            yield replace(one, note=f"{one.note}{more}")


def _inside(row: Row, seconds: float, width: float) -> bool:
    return seconds / width <= row.seconds <= seconds * width


def likely(inside: Sequence[bool], groups: Sequence[str]) -> tuple[float, float]:
    """The shares of steps in their interval that such a result allows: 95 % binomial range (Clopper
    and Pearson, 1934).

    Relatives miss together, so each of the ``groups`` counts as one step.
    """
    count = len(set(groups))
    held = count * float(np.mean(inside))
    least = float(beta.ppf(0.025, held, count - held + 1)) if held > 0 else 0.0
    return least, float(beta.ppf(0.975, held + 1, count - held)) if held < count else 1.0


def _coverage(every: Sequence[Row], fit: ShippedFit, found: HeldOut) -> list[Line]:
    """Rows inside their 90 % interval: held-out networks, then each chip left out, then
    the judges."""
    taught = [row for row in every if teaches(row)]
    inside = [
        _inside(
            row, found.known[id(row)], compute_device_interval_factor(fit, row.case, row.machine)
        )
        for row in taught
    ]
    widths = ", ".join(f"{name} {exp(half):.2f}" for name, half in fit.spread.items())
    said = [
        Line(
            f"90 % interval, left-out modules ({len(inside)})",
            percent(float(np.mean(inside))),
            "85..95 %",
            0.85 <= np.mean(inside) <= 0.95,
            f"factors to its ends: {widths}",
        )
    ]
    for name in sorted({chip(row) for row in taught}):
        mine = [row for row in taught if chip(row) == name]
        said.append(_without(fit, found, taught, name, mine))
    resnets = [
        row
        for row in every
        if not row.may_fit and row.case.training and "resnet50" in row.case.model
    ]
    spans = [
        (published.predict_step_by_published_fit(fit, row.case, row.machine), row.seconds)
        for row in resnets
    ]
    held = sum(span.low <= seconds <= span.high for span, seconds in spans)
    said.append(
        Line(
            f"90 % interval, ResNet-50, rows that no fit may see ({len(spans)})",
            percent(held / len(spans)),
            "all",
            held == len(spans),
            "",
        )
    )
    judged: dict[str, list[bool]] = defaultdict(list)
    for row in every:
        if not row.may_fit:
            predicted = published.predict_step_by_published_fit(fit, row.case, row.machine)
            judged[chip(row)].append(predicted.low <= row.seconds <= predicted.high)
    everything = [one for those in judged.values() for one in those]
    each = ", ".join(
        f"{name} {sum(those)} of {len(those)}" for name, those in sorted(judged.items())
    )
    return [
        *said,
        Line(
            f"90 % interval, rows that no fit may see ({len(everything)})",
            percent(float(np.mean(everything))),
            "",
            True,
            each,
        ),
    ]


def _without(
    fit: ShippedFit, found: HeldOut, taught: Sequence[Row], name: str, mine: Sequence[Row]
) -> Line:
    """Rows of one chip inside the intervals that a fit without it gives: as wide as the other
    devices' errors say."""
    spread = spread_of([row for row in taught if chip(row) != name], found)
    own = {strip_memory_size(row.machine.name) for row in mine}
    rest = replace(
        fit,
        measured={one: known for one, known in fit.measured.items() if one not in own},
        spread=fit.spread | spread,
    )
    inside = [
        _inside(
            row, found.new[id(row)], compute_device_interval_factor(rest, row.case, row.machine)
        )
        for row in mine
    ]
    share, modules = float(np.mean(inside)), [row.module for row in mine]
    least, most = likely(inside, modules)
    allows = (
        f"{len(set(modules))} kinds of network: {100 * least:.0f} to {100 * most:.0f} % are "
        "possible"
    )
    beyond = sorted(
        {said for row in mine for said in list_device_facts_beyond_fit(rest, row.machine)}
    )
    holds = 0.85 <= share <= 0.95
    too_few = not holds and least <= 0.95 and most >= 0.85
    why = (
        f"beyond what is known: {', '.join(beyond)}"
        if beyond
        else "too few to tell from 85..95 %"
        if too_few
        else ""
    )
    wanted = "" if why else "85..95 %"
    return Line(
        f"  {name} left out ({len(mine)})",
        percent(share),
        wanted,
        bool(why) or holds,
        "; ".join(part for part in (allows, why) if part),
    )


def main() -> int:
    """Print the lines; return 1 when one misses its target."""
    given = parser_for(__doc__, "datasets/timm and datasets/neusight", KEPT).parse_args()
    if not (given.shared / "datasets" / "neusight").is_dir():
        print(f"No published results in {given.shared}: say where they are with --shared")
        return 0
    every = rows(given.shared, given.traces)
    found = held_out(every)
    print(HEADING, flush=True)
    gpus, cpu = lines(every, fitted(every, found), found), cpu_rows(given.shared, given.traces)
    missed = print_lines(chain(gpus, cpu_lines(cpu)))
    print(NOTE)
    return missed


if __name__ == "__main__":
    sys.exit(main())
