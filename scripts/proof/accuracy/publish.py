"""Makes the fits that ship with perfctl, published.json and published_cpu.json in
orchestrator/predict.

    python scripts/proof/accuracy/publish.py [--shared ../shared] [--traces FILE]

They come from published measurements. Only rows whose licence allows it are learned from; the
others judge the fit in accuracy_published.py. The CPU's rows have a fit of their own, by the same
steps: the GPUs' does not see them.

Costs are found by non-negative least squares of relative errors, all devices together. A cost in
one regime is pulled towards the cost of the part in all regimes, and that towards a prior; factors
of devices are pulled towards 1. How strong the first pull is, is learned with the costs, from the
same rows: a regime that few rows teach is not believed. Outliers get less weight (Huber, at the
median error), and a source of n rows counts as n^0.6.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from accuracy_lines import parser_for
from numpy.typing import NDArray
from published_rows import KEPT, Row, cpu_rows, rows
from scipy.optimize import nnls
from scipy.stats import t as student

from perfctl.orchestrator.predict import published
from perfctl.orchestrator.predict.efficiency import split_groups_into_folds
from perfctl.orchestrator.predict.operations import get_activation_element_bytes
from perfctl.orchestrator.predict.published import (
    COMPILED,
    FILE,
    FILES,
    FORMAT,
    TRAINING_STARTS,
    ShippedFit,
    classify_part_resource,
    get_cost_regime,
    list_cost_terms,
    list_nonzero_part_amounts,
    strip_memory_size,
)
from perfctl.orchestrator.predict.step_parts import EXTRA, PARTS

Floats = NDArray[np.float64]
HUBER = 1.0
"""Errors beyond this many medians count less."""
TOGETHER, LAYOUT, PRIOR, FACTOR, COUNT = 0.05, 0.01, 0.01, 2.0, 0.6
"""Pull of a regime towards its part and of channels-last towards contiguous tensors, to begin with
(:func:`_likeliest`); of a part towards its prior, of a factor towards 1; power of the rows of a
source. A pull of 1 is that of one step that is missed by all of its time where a cost is off by
its scale."""
WEAKEST, STRONGEST = 0.001, 100.0
"""Of the learned pulls: where rows determine no difference, regimes have the same cost within a
hundredth of its scale."""
LEAST = {"conv": 0.44, "pointwise": 0.6, "grouped": 0.44, "linear": 0.6, "matmul": 0.3}
"""Least cost of arithmetic: Winograd's F(2x2, 3x3) has 2.25 times fewer multiply-adds; boards run
above the sheet's clock; causal attention needs half of its products. Few networks alone would not
tell arithmetic from bytes."""
COMPILED_PULL = 0.3
"""Pull of a factor of torch.compile towards 1."""
SMALL = 4
"""Up to this batch the host may be what a network waits for: such steps teach the host's
time alone."""
COVERED = 0.9
REGIMES = ("iT", "iV", "tT", "tV", "iTl", "tTl")
SOURCES_LEAST = 3
"""Chips and sources of a regime from which on it has a width of its own."""
MARGIN = 1.2
"""Width for a new device over what the errors of left-out devices say: a dozen devices say little
about the next one."""
SOURCES = (
    (
        "huggingface/pytorch-image-models, results/ (timm)",
        "Apache-2.0",
        "2022-11 to 2025-11",
        (
            "training of 820 networks on an RTX 3090, contiguous and channels-last; inference of "
            "1,600 on RTX 3090, 4090 and 5090"
        ),
    ),
    (
        "sitar-lab/NeuSight @ 6945927, summary.csv",
        "MIT",
        "2025-03",
        "language models in fp32 on 8 GPUs of NVIDIA and 3 of AMD",
    ),
    (
        "NVIDIA/DeepLearningExamples, README.md of each model",
        "BSD-3-Clause and Apache-2.0",
        "2019 to 2022",
        (
            "training and inference on V100, T4 and A100; rows and commits in "
            "scripts/proof/accuracy/published.csv"
        ),
    ),
    (
        "ELS-RD/transformer-deploy and huggingface/transformers",
        "Apache-2.0",
        "2022 to 2023",
        "inference on T4, RTX 3090 and A100",
    ),
)


CPU_SOURCE = {
    "name": "huggingface/pytorch-image-models, results/ (timm)",
    "licence": "Apache-2.0",
    "dates": "2024",
    "what": (
        "inference of 1,430 networks in fp32 on a Core i9-10940X, one sample, under torch.compile"
    ),
}

NOT_LEARNED = {"host": 1.0, "known": 1.5, "new": 2.5}
KINDS_COMPILED = ("products", "grouped", "plain")

HOSTS = ("dle", "td", "hfc")
"""Sources that timed single samples, by the first word of their rows' id in published.csv."""

NO_SPREAD: dict[str, float] = {
    f"{what} {key}": 0.5 for what in ("known", "new") for key in ("iT", "iV", "tT", "tV")
} | {
    "host i": 0.4,
    "host t": 0.7,
}


def teaches(row: Row) -> bool:
    """Is a row learned from, apart from the host's time?"""
    return (
        row.may_fit
        and not row.case.compiled
        and (row.case.batch > SMALL or row.source == "neusight")
    )


def _prior(name: str) -> float:
    first = name.split(" ")[0]
    if first in EXTRA or first in ("issued", "power", "spilled", "overflow"):
        return 0.0
    counts = {"operations": 4.0, "tensors": 3.0, "step": 0.3}
    return counts.get(first) or {"A": 1.2, "D": 2.0, "B": 1.1}[classify_part_resource(name)]


def _scale(name: str) -> float:
    """Size of a usual cost."""
    return {"operations": 4.0, "tensors": 4.0, "step": 4.0, "unpacked": 10.0}.get(
        name.split(" ")[0], 1.0
    )


@dataclass(slots=True)
class Learned:
    costs: dict[tuple[str, str], float]
    factors: dict[tuple[str, str], float]


def columns(row: Row) -> list[tuple[str, str, str, float]]:
    """(cost, regime, class of factor, share of the step at cost 1)."""
    held = dict(list_nonzero_part_amounts(row.case))
    sums: dict[tuple[str, str, str], float] = defaultdict(float)
    for term in list_cost_terms(row.case, row.machine):
        if term.place in held:
            sums[term.name, term.key, term.factor] += held[term.place] * term.unit
    return [(*key, seconds / row.seconds) for key, seconds in sums.items()]


def learn(given: Sequence[Row], made: dict[int, Any] | None = None) -> Learned:
    """Costs and factors. ``made``: columns of rows by id, filled in, for the next time."""
    made = {} if made is None else made
    found = [
        made[id(row)] if id(row) in made else made.setdefault(id(row), columns(row))
        for row in given
    ]
    keys: dict[tuple[str, str], int] = {}
    for row in found:
        for name, key, _, _ in row:
            keys.setdefault((name, key), len(keys))
    base = {
        name: len(keys) + place
        for place, name in enumerate(dict.fromkeys(name for name, _ in keys))
    }
    count = len(keys) + len(base)
    pull, wanted = np.zeros((count, count)), np.zeros(count)
    apart = np.zeros((len(keys), count))
    for (name, key), place in keys.items():
        towards = (
            keys.get((name, key.removesuffix("l")), base[name]) if key.endswith("l") else base[name]
        )
        apart[place, place], apart[place, towards] = 1.0 / _scale(name), -1.0 / _scale(name)
    strengths = np.array([LAYOUT if key.endswith("l") else TOGETHER for _, key in keys])
    regimes = Counter(name for name, _ in keys)
    shared = [key.endswith("l") if regimes[name] > 1 else None for name, key in keys]
    pulls = [np.array([each is last for each in shared]) for last in (False, True)]
    pull[: len(keys)] = apart * strengths[:, None] ** 0.5
    for name, place in base.items():
        pull[place, place] = PRIOR**0.5 / _scale(name)
        wanted[place] = pull[place, place] * _prior(name)
    least = np.array([LEAST.get(name.split(" ")[0], 0.0) for name, _ in keys] + [0.0] * len(base))
    kinds = [
        (strip_memory_size(row.machine.name), row.source, row.case.precision, row.case.training)
        for row in given
    ]
    counted = Counter(kinds)
    fixed = np.array([counted[kind] ** (COUNT - 1) for kind in kinds]) ** 0.5
    places = [
        (row, keys[name, key], kinds[row][0], factor, share)
        for row, found_row in enumerate(found)
        for name, key, factor, share in found_row
    ]
    at, column = np.array([one[0] for one in places]), np.array([one[1] for one in places])
    share = np.array([one[4] for one in places])
    names = {
        pair: place for place, pair in enumerate(dict.fromkeys((one[2], one[3]) for one in places))
    }
    which = np.array([names[one[2], one[3]] for one in places])
    factors, weights, costs = np.ones(len(names)), fixed, np.zeros(count)
    for _ in range(5):
        left = np.zeros((len(given), count))
        np.add.at(left, (at, column), share * factors[which])
        q, r = np.linalg.qr(np.vstack([left * weights[:, None], pull]))
        right = np.concatenate([weights * (1.0 - left @ least), wanted - pull @ least])
        costs = nnls(r, q.T @ right, maxiter=50 * count)[0] + least
        missed = abs(left @ costs - 1.0)
        weights = fixed * np.sqrt(
            np.minimum(1.0, HUBER * np.median(missed) / np.maximum(missed, 1e-9))
        )
        sums = np.zeros((len(given), len(names)))
        np.add.at(sums, (at, which), share * costs[column])
        eye = FACTOR**0.5 * np.eye(len(names))
        factors = np.linalg.lstsq(
            np.vstack([sums * weights[:, None], eye]),
            np.concatenate([weights, np.diag(eye)]),
            rcond=None,
        )[0]
        factors = np.clip(factors, 0.5, 2.0)
        for mine in (each for each in pulls if each.any()):
            strengths[mine] = _likeliest(
                left * weights[:, None], weights, pull, apart[mine], costs, strengths[mine][0]
            )
        pull[: len(keys)] = apart * strengths[:, None] ** 0.5
    by_key = {pair: float(costs[place]) for pair, place in keys.items()}
    by_key |= {(name, ""): float(costs[place]) for name, place in base.items()}
    return Learned(by_key, {pair: float(factors[place]) for pair, place in names.items()})


def _likeliest(
    data: Floats, weights: Floats, pull: Floats, apart: Floats, costs: Floats, before: float
) -> float:
    """The strength of a pull under which what was measured is likeliest, one step towards it
    from ``before``.

    It is the variance of the errors over that of the costs' differences (``apart @ costs``), where
    only as many differences count as the rows determine (MacKay, Bayesian interpolation, 1992,
    equations 2.23 and 2.24). So the prior comes from the rows that teach and from no others: it is
    strong where few rows teach many costs. data: shares times weights, one row a step.
    """
    free = np.flatnonzero(costs > 0)
    taught = data[:, free].T @ data[:, free]
    spread = np.linalg.pinv(taught + pull[:, free].T @ pull[:, free])
    rows, determined = float((weights**2).sum()), float(np.sum(spread * taught))
    variance = float(((data @ costs - weights) ** 2).sum()) / max(rows - determined, 1.0)
    differences = len(apart) - before * float(np.sum((apart[:, free] @ spread) * apart[:, free]))
    found = variance * max(differences, 0.0) / max(float(((apart @ costs) ** 2).sum()), 1e-9)
    return min(max(found, WEAKEST), STRONGEST)


def compiled_of(given: Iterable[Row], fit: ShippedFit) -> dict[str, float]:
    """Factors of torch.compile on the GPU's time of each kind of part, by bytes an element; at
    most 1.

    Least squares of relative errors, pulled towards 1; outliers get less weight. Small batches,
    which may wait for the host, are left out, so the host's factor stays 1.
    """
    eager, by_size = replace(fit, compiled=NOT_LEARNED), defaultdict[int, list[list[float]]](list)
    for row in given:
        if row.case.batch > SMALL:
            rates, sums = (
                published.scale_fit_to_machine(eager, row.case, row.machine).rates,
                dict.fromkeys(KINDS_COMPILED, 0.0),
            )
            for place, amount in list_nonzero_part_amounts(row.case):
                sums[COMPILED[place]] += rates[place] * amount / row.seconds
            by_size[get_activation_element_bytes(row.case.precision)].append(list(sums.values()))
    found = dict(NOT_LEARNED)
    for size, each in by_size.items():
        shares, weights, factors = np.array(each), np.ones(len(each)), np.ones(len(KINDS_COMPILED))
        eye = COMPILED_PULL * np.eye(len(KINDS_COMPILED))
        for _ in range(5):
            factors = nnls(
                np.vstack([shares * weights[:, None], eye]), np.concatenate([weights, np.diag(eye)])
            )[0]
            missed = abs(shares @ factors - 1.0)
            weights = np.sqrt(np.minimum(1.0, HUBER * np.median(missed) / np.maximum(missed, 1e-9)))
        for kind, factor in zip(KINDS_COMPILED, factors, strict=True):
            found[f"{kind} {size}"] = round(min(float(factor), 1.0), 4)
    return found


def as_published(
    learned: Learned,
    given: Sequence[Row],
    host: dict[str, float],
    spread: dict[str, float],
    compiled: Mapping[str, float] = NOT_LEARNED,
) -> ShippedFit:
    costs: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, key), cost in sorted(learned.costs.items()):
        costs[name][key] = round(cost, 5)
    factors: dict[str, dict[str, float]] = defaultdict(dict)
    for (device, name), factor in sorted(learned.factors.items()):
        factors[device][name] = round(factor, 4)
    measured: dict[str, set[str]] = defaultdict(set)
    for row in given:
        measured[strip_memory_size(row.machine.name)].add(
            get_cost_regime(row.case, row.machine).make_cost_key("A").removesuffix("l")
        )
    watts = [row.machine.power_w for row in given if row.machine.power_w]
    sources = tuple(
        dict(zip(("name", "licence", "dates", "what"), source, strict=True)) for source in SOURCES
    )
    return ShippedFit(
        dict(costs),
        dict(factors),
        {name: tuple(sorted(all_)) for name, all_ in sorted(measured.items())},
        host,
        spread,
        networks_of(given),
        sources,
        (min(watts), max(watts)),
        len(given),
        compiled,
    )


def networks_of(given: Iterable[Row]) -> tuple[tuple[str, float, float, str], ...]:
    """Each network once, with the devices and regimes that it was measured on."""
    where: dict[tuple[str, float, float], set[str]] = defaultdict(set)
    for row in given:
        macs = sum(work.calls * work.macs for work in row.case.works)
        held = sum(work.calls * (work.inputs + work.outputs) for work in row.case.works)
        regime = get_cost_regime(row.case, row.machine).make_cost_key("A").removesuffix("l")
        where[row.case.model, float(f"{macs:.4g}"), float(f"{held:.4g}")].add(
            f"{strip_memory_size(row.machine.name)}/{regime}"
        )
    return tuple((*key, "|".join(sorted(places))) for key, places in sorted(where.items()))


def chip(row: Row) -> str:
    """What is left out together: all boards of one chip's name."""
    return re.sub(r" (SXM|PCIe|\d+ GB).*", "", row.machine.name)


def host_of(given: Iterable[Row], fit: ShippedFit) -> dict[str, float]:
    """Seconds of the host an operation, from single samples that wait for it.

    Each device counts alike, because each source's hosts are its own.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in waiting(given, fit):
        width = get_cost_regime(row.case, row.machine).make_cost_key("B").removesuffix("l")
        found[width][chip(row)].append(an_operation(row))
    host = {}
    for width, devices in found.items():
        each = [float(np.median(np.log(seconds))) for seconds in devices.values()]
        host[width] = float(f"{np.exp(np.mean(each)):.3g}")
        host[f"t{width[1:]}"] = float(f"{TRAINING_STARTS * host[width]:.3g}")
    return host


def waiting(every: Iterable[Row], fit: ShippedFit) -> list[Row]:
    """Single samples that wait for the host: the GPU needs less than four fifths of the time, and
    no other step of the same source on the same board was started in less than half the time an
    operation, which shows what the host can do."""
    given = [row for row in every if single(row)]
    least: dict[tuple[str, str, int, int], float] = defaultdict(lambda: float("inf"))
    for row in given:
        least[_host(row)] = min(least[_host(row)], an_operation(row))
    return [
        row
        for row in given
        if published.predict_device_step_seconds(fit, row.case, row.machine) < 0.8 * row.seconds
        and an_operation(row) < 2.0 * least[_host(row)]
    ]


def _host(row: Row) -> tuple[str, str, int, int]:
    return row.machine.name, row.source, row.year, get_activation_element_bytes(row.case.precision)


def an_operation(row: Row) -> float:
    """Seconds of the step for each of its operations."""
    return row.seconds / sum(work.calls for work in row.case.works)


def host_spread(given: Iterable[Row], fit: ShippedFit) -> float:
    """Half the 90 % interval of the host's time, in logarithms, for a host that nobody published.

    One source's rows of one year on one board are one host. Each is left out, the time an operation
    comes from the others, and the errors of its steps give their mean square; all hosts count
    alike. Few hosts are known, so the root of the mean counts as often as Student's t for so
    many says.
    """
    bound = waiting(given, fit)
    hosts: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in bound:
        hosts[row.machine.name, row.source, str(row.year)].append(row)
    missed = []
    for mine in hosts.values():
        others = replace(fit, host=host_of([row for row in bound if row not in mine], fit))
        errors = [
            np.log(row.seconds / published.predict_host_launch_seconds(others, row.case))
            for row in mine
        ]
        missed.append(float(np.mean(np.square(errors))))
    return round(float(student.ppf((1 + COVERED) / 2, len(missed) - 1) * np.mean(missed) ** 0.5), 4)


def single(row: Row) -> bool:
    """One sample in inference, of a source that timed such steps."""
    alone = row.case.batch == 1 and not row.case.training and not row.case.compiled
    return row.may_fit and alone and row.source in HOSTS


@dataclass(slots=True)
class HeldOut:
    """Predicted seconds of rows by fits that did not see their network's relatives (new: nor
    their device)."""

    known: dict[int, float]
    new: dict[int, float]
    compiled: dict[int, float]
    """Rows under torch.compile, by fits that did not see their network's relatives."""
    compiled_new: dict[int, float]
    """Rows under torch.compile, by fits that saw nothing of their chip."""


def held_out(every: Sequence[Row]) -> HeldOut:
    """Five folds by module on known devices; each chip left out once. Keys: id of a row."""
    made: dict[int, Any] = {}
    taught, compiled = (
        [row for row in every if teaches(row)],
        [row for row in every if row.case.compiled],
    )
    chips = sorted({chip(row) for row in taught})
    modules = [
        {taught[place].module for place in test}
        for _, test in split_groups_into_folds([row.module for row in taught], 5, 3)
    ]
    # networks that have no eager row
    modules += [{row.module for row in compiled} - set().union(*modules)]
    found: list[dict[int, float]] = [{}, {}, {}, {}]
    for place, of, groups in (
        (0, lambda row: row.module, modules),
        (1, chip, [{name} for name in chips]),
    ):
        for held in groups:
            rest = [row for row in taught if of(row) not in held]
            fit = as_published(learn(rest, made), rest, {}, NO_SPREAD)
            fit = replace(
                fit, compiled=compiled_of([row for row in compiled if of(row) not in held], fit)
            )
            for into, judged in ((found[place], taught), (found[place + 2], compiled)):
                into |= {
                    id(row): published.predict_device_step_seconds(fit, row.case, row.machine)
                    for row in judged
                    if of(row) in held
                }
    return HeldOut(*found)


def spread_of(every: Sequence[Row], found: HeldOut) -> dict[str, float]:
    """Half the 90 % interval of each regime, in logarithms; each device (known) and chip (new)
    counts alike."""
    spread = {}
    for what, predicted in (("known", found.known), ("new", found.new)):
        by: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in every:
            if id(row) in predicted:
                missed = abs(np.log(predicted[id(row)] / row.seconds))
                for key in (get_cost_regime(row.case, row.machine).make_cost_key("A"), "every"):
                    by[key][f"{chip(row)} {row.source}"].append(missed)
        for key in REGIMES:
            if len(by[key]) >= SOURCES_LEAST:
                spread[f"{what} {key}"] = _covering(by[key])
            elif not key.endswith("l"):
                spread[f"{what} {key}"] = _covering(by["every"])
    for key in REGIMES:
        if f"new {key}" in spread:
            known = spread.get(f"known {key}", spread[f"known {key.removesuffix('l')}"])
            spread[f"new {key}"] = round(MARGIN * max(spread[f"new {key}"], known), 4)
    return spread


def _covering(groups: Mapping[str, Sequence[float]]) -> float:
    """The error, in logarithms, that 90 % of the errors do not exceed; a group of n counts
    as n^0.6."""
    missed = np.concatenate([np.array(group) for group in groups.values()])
    weight = np.concatenate(
        [np.full(len(group), len(group) ** (COUNT - 1)) for group in groups.values()]
    )
    order = np.argsort(missed)
    place = int(np.searchsorted(np.cumsum(weight[order]) / weight.sum(), COVERED))
    return round(float(missed[order][min(place, len(order) - 1)]), 4)


def fitted(every: Sequence[Row], found: HeldOut | None = None) -> ShippedFit:
    """The whole fit, with its intervals."""
    taught = [row for row in every if teaches(row)]
    learned = learn(taught)
    first = as_published(learned, taught, {}, NO_SPREAD)
    spread = dict(NO_SPREAD) if found is None else spread_of(every, found)
    host = host_of(every, first)
    compiled = [row for row in every if row.case.compiled]
    whole = replace(first, host=host, spread=spread)
    places = {
        (
            f"{strip_memory_size(row.machine.name)}/"
            f"{get_cost_regime(row.case, row.machine).make_cost_key('A').removesuffix('l')}"
        )
        for row in compiled
    }
    whole = replace(whole, compiled=compiled_of(compiled, whole), compiled_on=tuple(sorted(places)))
    if found is not None:
        whole = replace(whole, compiled={**whole.compiled, **compiled_widths(compiled, found)})
    spread["host i"] = host_spread(every, whole)
    # TRAINING_STARTS is taken to be as unsure again
    spread["host t"] = round(2.0**0.5 * spread["host i"], 4)
    return replace(whole, spread=spread)


def compiled_widths(given: Sequence[Row], found: HeldOut) -> dict[str, float]:
    """Factors to the ends of the interval under torch.compile. On GPUs it was not measured on: each
    left-out chip counts alike."""
    chips = defaultdict[str, list[float]](list)
    for row in given:
        if row.case.batch > SMALL:
            chips[chip(row)].append(abs(float(np.log(found.compiled_new[id(row)] / row.seconds))))
    known = [
        abs(np.log(found.compiled[id(row)] / row.seconds))
        for row in given
        if row.case.batch > SMALL
    ]
    new = MARGIN * max(float(np.quantile(missed, COVERED)) for missed in chips.values())
    return {
        "known": round(float(np.exp(np.quantile(known, COVERED))), 4),
        "new": round(float(np.exp(new)), 4),
    }


def cpu_held_out(given: Sequence[Row]) -> dict[int, float]:
    """Seconds of a CPU's rows by five fits, each without whole modules. Keys: id of a row."""
    made, found = dict[int, Any](), dict[int, float]()
    for train, test in split_groups_into_folds([row.module for row in given], 5, 3):
        rest = [given[place] for place in train]
        fit = as_published(learn(rest, made), rest, {}, NO_SPREAD)
        found |= {
            id(row): published.predict_device_step_seconds(
                replace(fit, kind="cpu", compiled={}), row.case, row.machine
            )
            for row in (given[place] for place in test)
        }
    return found


def cpu_fitted(given: Sequence[Row], found: Mapping[int, float]) -> ShippedFit:
    """The fit of a CPU; all its rows are compiled, so there is no factor for it, and no time of a
    host beside it."""
    missed = [abs(np.log(found[id(row)] / row.seconds)) for row in given]
    spread = {"known iV": round(float(np.quantile(missed, COVERED)), 4), "host i": 0.0}
    fit = as_published(learn(given), given, {}, spread, {"host": 1.0})
    return replace(fit, kind="cpu", sources=(CPU_SOURCE,))


def to_json(fit: ShippedFit) -> dict[str, Any]:
    kind = {"kind": fit.kind} if fit.kind != "gpu" else {}
    return {
        "format": FORMAT,
        **kind,
        "rows": fit.rows,
        "watts": list(fit.watts),
        "sources": list(fit.sources),
        "parts": list(PARTS),
        "host": dict(fit.host),
        "spread": dict(fit.spread),
        "compiled": dict(fit.compiled),
        "compiled on": list(fit.compiled_on),
        "factors": dict(fit.factors),
        "measured": {name: list(regimes) for name, regimes in fit.measured.items()},
        "costs": dict(fit.costs),
        "networks": [list(one) for one in fit.networks],
    }


def written(fit: ShippedFit) -> str:
    """One line for each entry of the first level, and for each network."""
    record = to_json(fit)
    lines = [
        f" {json.dumps(key)}: {json.dumps(record[key], separators=(',', ':'))}"
        for key in record
        if key != "networks"
    ]
    networks = ",\n".join(
        f"  {json.dumps(one, separators=(',', ':'))}" for one in record["networks"]
    )
    return "{\n" + ",\n".join(lines) + ',\n "networks": [\n' + networks + "\n ]\n}\n"


def main() -> int:
    given = parser_for(__doc__, "datasets/timm and datasets/neusight", KEPT).parse_args()
    every = rows(given.shared, given.traces)
    fit = fitted(every, held_out(every))
    FILE.write_text(written(fit), encoding="utf-8")
    of_cpu = cpu_rows(given.shared, given.traces)
    cpu = cpu_fitted(of_cpu, cpu_held_out(of_cpu))
    FILES["cpu"].write_text(written(cpu), encoding="utf-8")
    for file, one in ((FILE, fit), (FILES["cpu"], cpu)):
        size = f"{len(one.measured)} devices, {file.stat().st_size:,} bytes"
        print(f"Wrote {file}: {one.rows:,} steps, {len(one.networks):,} networks, {size}")
    print(json.dumps({"host": fit.host, "spread": fit.spread, "compiled": fit.compiled}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
