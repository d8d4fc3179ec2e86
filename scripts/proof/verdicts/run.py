"""Are the reasons that perfctl gives true? ``make verdicts``, or
``python scripts/proof/verdicts/run.py [--draws 5000] [--effect NAME]``.

Draws networks with known effects (``draw.py``), analyses the records as a user's own and holds
every verdict against the truth. A verdict names effects by the table NAMES, which knows only words
of its rule and its fields. Of a row:

- right: each of its causes (factor over 5 %) is named with a factor within 5 % of the true one, or
  the open percent that is told is right to 5 points;
- missing: a gap over 5 % of which neither is so;
- false: a verdict that names what did not happen to the row, or with a factor off by more than
  10 %.

A draw is what its worst row is. Exits 1 when more than 0.5 % of the draws have a false verdict.
``--effect conflict`` draws scenes in which something else has the factor of a cause
(``conflicts.py``). Their possible causes may be false. It exits 1 when more than 0.2 % of the rows
have a false verdict that is called certain.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import isfinite, log, prod
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[3]))

from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report.ledger.causes import describe_cause
from scripts.proof.verdicts.conflicts import CONFLICTS
from scripts.proof.verdicts.draw import EVERY, Draw, Place, RowTruth, draw
from scripts.proof.verdicts.effects import Effect

GAP = 0.05
"""A ratio or factor this near to 1 needs no reason."""
NEAR, FAR = 0.05, 0.10
QUIET = (0.98, 1.02)
WHOLE = {
    "two_steps",
    "accumulation",
    "larger_batch",
    "ddp_rank",
    "pads_batch",
    "extra_calls",
    "gradients_again",
}
TILES = {
    "padding",
    "padding_split",
    "triton",
    "implicit_sgemm",
    "groups_dense",
    "persistent_lstm",
    "zero_insertion",
    "split_inside",
}
LOST = {"dgrad_loose", "frozen", "eval_profiled", "cut_off", "gradient_missing", "swapped"}
AGAIN = {"checkpoint_same", "checkpoint_other", "flash_recompute"}
BESIDE = {"layout", "elementwise"}

UNKNOWN = "unknown: no line of NAMES knows it"
GRADIENTS = ("backward", "grad_input", "grad_weight", "grad_bias", "recompute")


class Name(NamedTuple):
    """Which effects a verdict names rightly. The first line whose patterns are found is taken."""

    rule: str
    """Pattern of the rule's name, lower case."""
    fields: str
    """Pattern of the cause's variant and the names of its facts that hold; "" for any."""
    effects: set[str]
    describes: bool = False
    """The cause may be named anywhere as long as it claims no factor."""

    def is_description(self, factor: float | None) -> bool:
        return self.describes and (factor is None or abs(factor - 1) <= 0.02)


NAMES = (
    Name("whole", "^(sweep, )?copies", {"copies"}),
    Name("whole", "^(sweep, )?uneven", {"uneven"}),
    Name("whole", "^(sweep, )?(one rank|own grids)", WHOLE | {"tensor_parallel", "scaled"}),
    Name(
        "other size",
        "",
        {"larger_batch", "pads_batch", "ddp_rank", "halves", "tensor_parallel", "swapped"},
    ),
    Name("zeros inserted", "", {"zero_insertion"}),
    Name("half weights|packed|hfma", "", {"half_gemm"}, True),
    Name("counter|collected", "", {"fp8_missing", "counters_missing"}),
    Name(
        "missing|unattributed|attribution|not attributed|loose|no kernels|absent",
        "^sweep, all",
        {"dgrad_loose"},
    ),
    Name(
        "missing|unattributed|attribution|not attributed|loose|no kernels|absent|zero|none ran",
        "",
        LOST | {"counters_missing"},
    ),
    Name("swap", "", {"swapped"}),
    Name("shared|elsewhere|other layer", "", {"swapped", "dgrad_loose"}),
    Name(
        "frozen|gradient",
        "",
        {
            "frozen",
            "gradient_missing",
            "needless_grad_input",
            "double_backward",
            "gradients_again",
            "eval_profiled",
        },
    ),
    Name("evaluation|forward only", "", {"eval_profiled"}),
    Name("cut", "", {"cut_off"}),
    Name(
        "winograd|fft",
        r"\bother_batch\b",
        {"winograd2", "winograd4", "fft", "larger_batch", "pads_batch"},
    ),
    Name("winograd", "", {"winograd2", "winograd4"}),
    Name("fft|fourier", "", {"fft"}),
    Name("split-?k|split k", "", {"split_k", "split_inside"}),
    Name("zero|stride|dgrad", "", {"zero_insertion"}),
    Name("dense|groups", "", {"groups_dense"}),
    Name("border|depthwise|edge", "", {"depthwise_border"}),
    Name("persist|recurrent|lstm", "", {"persistent_lstm"}),
    Name("causal|mask", "", {"causal_skip"}),
    Name("flash|fused", "", {"flash_recompute", "causal_skip"}),
    Name("spars", "", {"sparsity"}),
    Name("3x|three|split tf32|emulat", "", {"tf32_three"}),
    Name("benchmark|trial|candidate", "", {"benchmark"}),
    Name(
        "recomput|checkpoint",
        "may_be_gradient",
        {*AGAIN, "needless_grad_input"},
    ),
    Name("recomput|checkpoint", r"^by another kernel(?!.*\brecorded\b)", {*AGAIN, "benchmark"}),
    Name("recomput|checkpoint", "", AGAIN),
    Name("batch|split batch|pieces", "padded", {"pads_batch", "padding_split"}),
    Name(
        "padding|tile",
        r"\bother_batch\b",
        {*TILES, "pads_batch", "split_k", "larger_batch"},
    ),
    Name("padding|tile", "", TILES | {"pads_batch", "split_k"}),
    Name(
        "calls",
        "^or parts",
        WHOLE | {"padding_split", "benchmark", "double_backward"},
        True,
    ),
    Name(
        "window|uniform|whole|rank|accumul|steps|larger|calls|all rows|batch",
        "",
        WHOLE | {"benchmark", "double_backward"},
    ),
    Name(
        "several algorithms|algorithms",
        "",
        {"benchmark", "checkpoint_other", "checkpoint_same", "half_tf32", "extra_calls"},
        True,
    ),
    Name("layout|epilogue|element|beside|other kernels", "", BESIDE | {"split_k", "split_inside"}),
    Name("tensor|tf32", "", {"half_tf32"}, True),
    Name("constant moves|phantom|switch|time|follow|mixed|cuda cores|direct", "", set(), True),
)
"""Extend it when a rule gets a name or words that it lacks; a verdict that no line knows is false,
as "unknown"."""


DESCRIBED = {
    "constant moves|phantom": {"moves"},
    "tf32": {"tf32"},
    "tensor": {"tf32", "fp16", "bf16"},
}
"""Rules that say on which path a row ran -> the paths that make them true."""


class Verdict(NamedTuple):
    """A cause as a reader sees it."""

    rule: str
    factor: float | None
    sentence: str
    fields: str
    """The variant, then the names of the facts that hold."""
    confidence: str
    """certain, likely or possible."""

    @property
    def is_certain(self) -> bool:
        return self.confidence == "certain"


CONFIDENCES = ("certain", "likely", "possible")


def tell(cause: Cause) -> Verdict:
    """Return the cause with its sentence and fields."""
    facts = (name for name, fact in cause.facts.items() if fact)
    return Verdict(
        cause.rule,
        cause.factor,
        describe_cause(cause),
        " ".join((cause.variant, *facts)),
        {"likely": "likely", "plausible": "possible"}.get(cause.confidence, "certain"),
    )


@dataclass(slots=True)
class RowScore:
    """One row: which of its causes are told, and what is false."""

    causes: tuple[str, ...] = ()
    named: dict[str, str] = field(default_factory=dict)
    """Effect -> the confidence with which it is told, the highest."""
    open_right: bool = False
    silent: bool = False
    """Nothing can be said: no count, or counters read otherwise than they were meant."""
    misread: bool = False
    false: list[tuple[Verdict, str]] = field(default_factory=list)
    quiet: bool = False
    """The ratio is within 0.98 to 1.02."""

    @property
    def is_certain_and_false(self) -> bool:
        return any(verdict.is_certain for verdict, _ in self.false)

    def add(self, verdict: Verdict, effects: Iterable[str]) -> None:
        """Note what a verdict names."""
        for effect in effects:
            known = self.named.get(effect, CONFIDENCES[-1])
            self.named[effect] = min(known, verdict.confidence, key=CONFIDENCES.index)

    def outcome(self, effect: str) -> str:
        """Return what is told of an effect: "certain and false", how surely it is named, open, or
        missing."""
        if self.is_certain_and_false:
            return "certain and false"
        if self.false:
            return "possible and false"
        told = self.named.get(effect) or ("open" if self.open_right else "missing")
        return "certain and right" if told == "certain" else told

    def rate(self, effect: str) -> str:
        """Return right, missing or false, for one effect."""
        if self.false:
            return "false"
        return "right" if self.silent or effect in self.named or self.open_right else "missing"


@dataclass(slots=True)
class Score:
    """One draw."""

    seed: int
    effects: tuple[str, ...]
    what: str
    rows: dict[Place, RowScore] = field(default_factory=dict)
    sweep_false: list[tuple[Verdict, str]] = field(default_factory=list)
    error: str = ""

    @property
    def false(self) -> list[tuple[Verdict, str]]:
        return [*self.sweep_false, *(item for row in self.rows.values() for item in row.false)]

    def touched(self, effect: str) -> list[RowScore]:
        return [row for row in self.rows.values() if effect in row.causes]

    def rate(self, effect: str) -> str:
        """Return right, missing or false: the worst of the effect's rows."""
        if self.false:
            return "false"
        rates = {row.rate(effect) for row in self.touched(effect)}
        return "missing" if "missing" in rates else "right"

    @property
    def right(self) -> bool:
        return not self.false and all(self.rate(effect) == "right" for effect in self.effects)

    @property
    def one_right(self) -> bool:
        """As ``right``, but one named cause is enough for a row."""
        rows = [row for row in self.rows.values() if row.causes and not row.silent]
        return not self.false and all(row.named or row.open_right for row in rows)


def find_name(verdict: Verdict) -> Name | None:
    rule = verdict.rule.lower()
    return next(
        (
            name
            for name in NAMES
            if re.search(name.rule, rule) and re.search(name.fields, verdict.fields)
        ),
        None,
    )


def find_acting(truth: RowTruth, effects: Iterable[Effect], place: Place) -> set[str]:
    """Return the effects that did something to the row, if only by choosing its kernels."""
    _, layer, direction = place
    acting = set()
    for effect in effects:
        claims = any(
            name == layer and (part == "forward") == (direction == "forward")
            for name, part in effect.claims
        )
        claims = claims or effect.settings.get("place") == (layer, direction)
        moves = any(abs(factor - 1) > 0.003 for factor in truth.alternatives[effect.name])
        if claims or moves or effect.name in ("fp8_missing", "counters_missing"):
            acting.add(effect.name)
    return acting


def weigh(verdict: Verdict, truth: RowTruth, acting: set[str]) -> tuple[str, set[str]]:
    """Return ("", effects that the verdict names) or (why it is false, nothing)."""
    name, factor = find_name(verdict), verdict.factor
    if name is None:
        return UNKNOWN, set()
    for word, paths in DESCRIBED.items():
        if re.search(word, verdict.rule.lower()) and truth.executed and not truth.paths & paths:
            return f"it ran on {', '.join(sorted(truth.paths)) or 'no known path'}", set()
    named = name.effects & acting
    if name.is_description(factor):
        return "", named
    if is_true_anyway(name, factor, truth, named):
        return "", set()
    if not named:
        return "not among the row's effects", set()
    if factor is None:
        return "", named
    # two causes of one kind multiply: 4 calls in each of 5 steps
    together = prod(truth.factors[effect] for effect in named)
    if len(named) > 1 and measure_error(factor, together) <= NEAR:
        return "", named
    whole = truth.executed / truth.estimated if truth.estimated else 0.0
    # calls as far as they were recorded
    is_cut = "calls" in verdict.rule and "cut_off" in acting
    is_sum = "algorithms" in verdict.rule and not verdict.fields.startswith("of gradients")
    if (is_sum or is_cut) and measure_error(factor, whole) <= NEAR:
        return "", named  # of what all kernels need, their own tiles and transforms included
    # tiles may be told without their epilogue
    scaled = 1 - truth.scale / truth.executed if truth.executed else 1.0
    errors = {
        effect: min(
            measure_error(factor, part)
            for true in truth.alternatives[effect]
            for part in (true, true * scaled)
        )
        for effect in named
    }
    if min(errors.values()) > FAR:
        true = ", ".join(f"{effect} {truth.factors[effect]:.3f}" for effect in sorted(named))
        return f"factor {factor:.3f}, true {true}", set()
    return "", {effect for effect, error in errors.items() if error <= NEAR}


def is_true_anyway(name: Name, factor: float | None, truth: RowTruth, named: set[str]) -> bool:
    """Return whether a verdict is true though it names no effect of the row."""
    if not named and "counters_missing" in name.effects and truth.unread:
        return True
    if factor is None:
        return False
    if name.effects & (BESIDE | TILES) and is_usual(factor, truth, named):
        return True
    # Tiles of a trial, or of forward done again: true, though not the cause. So are those of a
    # padded batch: its launch did execute that much more than the padded batch needs, which the
    # factor of padding the batch does not contain.
    return bool(name.effects & TILES and not named - {"pads_batch"}) and any(
        abs(filling - 1) > 0.005 and measure_error(factor, filling) < NEAR
        for filling in truth.fillings
    )


def is_usual(factor: float, truth: RowTruth, named: set[str]) -> bool:
    """Return whether the factor is that of the tiles and epilogues that every row has: what is
    left of 1 without any effect."""
    usual = truth.usual
    if not named & TILES and abs(usual - 1) > 0.0005 and abs(factor / usual - 1) < 0.02:
        return True
    totals = (truth.estimated, truth.executed - truth.scale)
    shares = [truth.scale / total for total in totals if total > 0]
    return (
        truth.scale > 0
        and factor > 1
        and any(abs(factor - 1 - share) < 0.05 * (1 + share) for share in shares)
    )


def measure_error(factor: float, true: float) -> float:
    if not isfinite(true) or true == 0:
        return 0.0 if factor == true else 9.0
    return abs(factor / true - 1)


def score_row(
    truth: RowTruth,
    verdicts: list[Verdict],
    sweep: list[Verdict],
    opened: list[float],
    ratio: float | None,
    acting: set[str],
) -> RowScore:
    """Return what is told of a row, held against its truth; ``opened``: the shares that are told to
    be unexplained."""
    row = RowScore()
    row.causes = tuple(
        name
        for name, factor in truth.factors.items()
        if measure_error(factor, 1.0) > GAP or factor == 0
    )
    row.quiet = truth.ratio is not None and QUIET[0] <= truth.ratio <= QUIET[1]
    for verdict in verdicts:
        why, named = weigh(verdict, truth, acting)
        row.false += [(verdict, why)] if why else []
        row.add(verdict, named)
    for verdict in sweep:
        row.add(verdict, weigh(verdict, truth, acting)[1])
    if truth.shown is None:
        row.silent = bool(truth.executed)  # no counters at all: nothing to tell a ratio of
        row.open_right = 1.0 in opened
        return row
    row.misread = (
        ratio is not None
        and truth.ratio is not None
        and abs(ratio - truth.ratio) > 0.01 * truth.ratio
    )
    if ratio is None or row.misread or (ratio and abs(log(ratio)) < log(1 + GAP)):
        row.silent = True
        return row
    if not ratio:
        row.open_right = 1.0 in opened
        return row
    told = prod(verdict.factor or 1.0 for verdict in verdicts)
    for product in (told, told * prod(verdict.factor or 1.0 for verdict in sweep)):
        true = min(1.0, abs(log(ratio / product) / log(ratio))) if product > 0 else 1.0
        row.open_right |= any(abs(share - true) <= 0.05 for share in opened)
    return row


def score(seed: int, only: str | None = None, last: bool = False) -> Score:
    """Analyse one draw and hold it against its truth."""
    case = draw(seed, only, last)
    result = Score(seed, tuple(effect.name for effect in case.effects), str(case))
    try:
        (study,) = group_into_studies(case.runs)
        analysis = analyse_study(study)
    except Exception as error:
        # whatever an analysis raises is a finding about that draw, and is printed
        result.error = f"{type(error).__name__}: {error}"
        return result
    judgement = analysis.judgement
    ratios = {(row.batch, row.layer, row.direction): row.ratio for row in analysis.ledger.rows}
    sweep = [tell(cause) for cause in judgement.sweep]
    for place, truth in case.rows.items():
        batch, layer, direction = place
        directions = (direction,) if direction == "forward" else GRADIENTS
        rows = [judgement.get_row_causes(batch, layer, key) for key in directions]
        verdicts = [tell(cause) for row in rows for cause in row.causes]
        opened = [row.unexplained for row in rows if row.unexplained is not None]
        acting = find_acting(truth, case.effects, place)
        result.rows[place] = score_row(truth, verdicts, sweep, opened, ratios.get(place), acting)
    result.sweep_false = [
        (verdict, why) for verdict in sweep if (why := weigh_sweep(verdict, case))
    ]
    return result


def weigh_sweep(verdict: Verdict, case: Draw) -> str:
    """Return why a verdict about the sweep is false, "" where it is not."""
    name, factor = find_name(verdict), verdict.factor
    if name is None:
        return UNKNOWN
    if name.is_description(factor):
        return ""
    named = name.effects & {effect.name for effect in case.effects}
    if not named:
        return "not among the draw's effects"
    true = [
        true for row in case.rows.values() for effect in named for true in row.alternatives[effect]
    ]
    is_far = factor is not None and all(measure_error(factor, item) > FAR for item in true)
    return "no row has this factor" if is_far else ""


def tabulate(scores: list[Score]) -> Iterator[str]:
    """Yield one line for each effect."""
    outcomes = ("certain and right", "certain and false", "likely", "possible")
    outcomes = (*outcomes, "possible and false", "open", "missing")
    head = "".join(f"{outcome:>20}" for outcome in outcomes)
    yield f"{'effect':22}{'draws':>7}{'right %':>9}{'rows':>7}{head}"
    for effect in ("clean", *EVERY):
        own = [
            score for score in scores if effect in (score.effects or ("clean",)) and not score.error
        ]
        if not own:
            continue
        right = sum(score.rate(effect) == "right" for score in own)
        rows = [row for score in own for row in score.touched(effect) if not row.silent]
        if effect == "clean":
            rows = [row for score in own for row in score.rows.values() if row.false]
        counts = Counter(row.outcome(effect) for row in rows)
        cells = "".join(f"{counts[outcome]:20}" for outcome in outcomes)
        yield f"{effect:22}{len(own):7}{100 * right / len(own):9.1f}{len(rows):7}{cells}"


def list_false(scores: list[Score], show: int) -> Iterator[str]:
    """Yield the false verdicts, grouped by rule, ``show`` of each with sentence and draw."""
    by_rule: dict[str, list[tuple[Score, Verdict, str]]] = defaultdict(list)
    for score in scores:
        for verdict, why in score.false:
            by_rule[verdict.rule].append((score, verdict, why))
    for rule, items in sorted(by_rule.items(), key=lambda pair: -len(pair[1])):
        first = {score.seed: (score, verdict, why) for score, verdict, why in reversed(items)}
        certain = sum(verdict.is_certain for _, verdict, _ in items)
        yield (
            f"\nfalse: {rule}: {len(items)} verdicts in {len(first)} draws, "
            f"{certain} of them called certain"
        )
        for seed in sorted(first)[:show]:
            score, verdict, why = first[seed]
            yield f"  {why}\n    {verdict.sentence}\n    {score.what}"


def sum_up(scores: list[Score]) -> Iterator[str]:
    """Yield the shares over all draws."""
    whole = [score for score in scores if not score.error]
    rows = [row for score in whole for row in score.rows.values()]
    false = sum(bool(score.false) for score in whole)
    certain = sum(row.is_certain_and_false for row in rows)
    quiet = [bool(row.false) for row in rows if row.quiet]
    yield (
        f"\ndraws {len(whole)}, rows {len(rows)}; draws with a false verdict: {false} "
        f"({100 * false / (len(whole) or 1):.2f} %)"
    )
    yield (
        f"rows with a false verdict that is called certain: {certain} "
        f"({100 * certain / (len(rows) or 1):.3f} %)"
    )
    yield f"rows at ratio 0.98 to 1.02 with a false verdict: {sum(quiet)} of {len(quiet)}"
    for number, word in ((1, "one effect"), (2, "two effects"), (3, "three effects")):
        own = [score for score in whole if len(score.effects) == number]
        if own:
            right, one = sum(score.right for score in own), sum(score.one_right for score in own)
            yield (
                f"{word}: {len(own)} draws, right {100 * right / len(own):.1f} %; "
                f"at least one cause told in every row {100 * one / len(own):.1f} %"
            )
    yield f"rows whose count was read otherwise than meant: {sum(row.misread for row in rows)}"
    for score in [score for score in scores if score.error][:5]:
        yield f"ERROR {score.error}\n  {score.what}"


def main() -> int:
    """Exit code: 0 when at most 0.5 % of the draws have a false verdict; of conflicts, when at most
    0.2 % of the rows have one that is called certain."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the first draw")
    parser.add_argument("--effect", choices=["clean", "conflict", *EVERY], help="this effect alone")
    parser.add_argument(
        "--last-check",
        action="store_true",
        help="the half of the parameters that is kept for a last check",
    )
    parser.add_argument("--show", type=int, default=2, help="false verdicts to print of each rule")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    work = partial(score, only=arguments.effect, last=arguments.last_check)
    seeds = range(arguments.seed, arguments.seed + arguments.draws)
    with Pool(arguments.workers) as pool:
        scores = pool.map(work, seeds, chunksize=25)
    for line in (*tabulate(scores), *sum_up(scores), *list_false(scores, arguments.show)):
        print(line)
    if any(result.error for result in scores):
        return 1
    if arguments.effect in ("conflict", *CONFLICTS):
        rows = [row for result in scores for row in result.rows.values()]
        return int(sum(row.is_certain_and_false for row in rows) > 0.002 * len(rows))
    return int(sum(bool(result.false) for result in scores) > 0.005 * len(scores))


if __name__ == "__main__":
    sys.exit(main())
