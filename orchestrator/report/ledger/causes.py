"""Causes in words: one template for the sentence and one for the fix of each rule, and the
headlines of a sweep.

In a template, ``[...]`` is left out if a fact in it is None, False, 0 or empty; ``[name?...]`` is
left out if that fact is, and ``[!name?...]`` if it is not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf, log
from string import Formatter
from typing import Any, NamedTuple

from perfctl.orchestrator.ledger.causes.evidence import Place
from perfctl.orchestrator.ledger.causes.judge import Judgement, RowJudgement
from perfctl.orchestrator.ledger.causes.missing_rules import MissingFacts
from perfctl.orchestrator.ledger.causes.rule import (
    Cause,
    Confidence,
    amount,
    deviates,
    percent,
    times,
)
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow

_LARGER_BATCH = (
    "[ Or the batch is larger: {larger:,} samples run in the same blocks, and no other row shows "
    "the batch size.]"
)
_SEVERAL = "{row} ran {number} kernels that each do the whole layer ({names})"
_LAUNCHED = (
    "{row} launches its product {launches:g} times a step, where paper has {needed}[ and all "
    "layers have {all_layers} times paper's]: "
)
_TRANSFORMED = (
    "{row} runs as {method}, which needs {multiplies:times} of the multiply-adds on paper "
    "({tiles:rules}), and {transforms:percent} of paper on top for its transforms, {factor:times} "
    "together.[ Counted were {executed:times} in multiply-adds.]" + _LARGER_BATCH
)
_NOT_COLLECTED = "{row}: [at least {flops:flops}][!flops?no FLOPs], because "
_COVERAGE = " ({launches} of {of_launches} launches have a figure)."
_NOTHING_COUNTED = (
    "{row} ran {ran:g} kernels without a single FLOP, while paper has {estimated:flops}: "
)
_FADD_OUTSIDE = (
    "Only FADD was collected, {fadd:,.0f} in {kernel}: it omits the multiply-adds, which are FFMA "
    "instructions."
)
_SWITCH = "{name} runs another algorithm from batch {batch} on: {new}, up to batch {before} {old}"
_TF32_FLAG = "[ (tf32 is {allowed} in this run)]"
_TF32_OFF = "[tf32? --precision fp32 turns TF32 off.]"
_ASKS = "[!ours?; 'perfctl ncu' asks for all of them]."

_TENSOR_SENTENCES = {
    "executed": "{row} executed {share:times} of the multiply-adds on paper on tensor cores"
    "[ in {math}][, and FFMA {ffma:percent}]" + _TF32_FLAG + ".",
    "not derived": "{row} runs tensor-core kernels[ in {math}], by their names; no rule derives "
    "their FLOPs" + _TF32_FLAG + ".",
    "not counted": "{row} [pipe?ran {pipe:,.0f} tensor instructions][!pipe?runs tensor-core "
    "kernels, by their names,] whose FLOPs were not counted" + _TF32_FLAG + "; FFMA did "
    "{plain:percent} of the multiply-adds on paper.",
}
_TENSOR_FIXES = {
    "executed": "[complete?Nothing is missing: both paths are in the count.][!complete?Both paths "
    "are in the count.]" + _TF32_OFF,
    "not derived": "'perfctl ncu' counts them." + _TF32_OFF,
    "not counted": "[newer_ncu?Collect sm__ops_path_tensor_src_{operand}*.sum too][!newer_ncu?"
    "Collect sm__ops_path_tensor_src_*.sum with a newer ncu than 2022.3][tf32?, or run once with "
    "TF32 off]." + _TF32_OFF,
}
_STEP_REASONS = {
    "launches": "every product was launched {number} times: {number} steps in the capture, or "
    "gradients accumulated over {number} batches[may_be_trials?, or cuDNN tried each kernel "
    "several times].",
    "gradient launches": "every gradient was computed {number} times where forward ran once: "
    "double backward, or {number} losses.",
    "larger batch": "no product was launched {number} times, so a batch of {samples:,.0f} fits"
    "[may_be_3xtf32? or 3 TF32 products for each of fp32].",
    "one rank": "this is one rank of {number}, with {part:.3g} of the batch.",
    "smaller batch": "one rank of {number}, a batch of {samples:g}[may_be_sparse? or 2:4 "
    "sparsity].",
}
_WINDOW_REASONS = {
    "row": "{name} executed the same at batch {first} to {last}[, which fits a batch of {fits:,}]",
    "row with a batch": "{name} executed {value:,.0f} {count} at batch {first} to {last}, which is "
    "a batch of {seen:,}",
    "kernel": "{name} executed the same at batch {first} to {last}",
} | {
    f"kernel of {count}": "{name} executed {value:,.0f} {count} at batch {first} to {last}. That "
    f"is one {unit} of {{layer}} for a batch of {{seen:,}} ({{seen:,}} x {{each:,.0f}})"
    for count, unit in (
        ("fadd", "add per output"),
        ("fmul", "multiply per output"),
        ("tensor", "multiply-add on paper"),
        ("ffma", "FFMA per multiply-add"),
    )
}
_MISSING_REASONS = {
    "left out": "{left_out}, so they may have run unseen",
    "inference": "the run was recorded as inference, which has no backward",
    "did not run": "no kernel outside of layers could be it either, so it did not run during the "
    "recording[backward? (evaluation, frozen layers, or a capture that ended before)]",
    "all": "it is launched from autograd's own thread, which a range around loss.backward() does "
    "not reach",
    "first": "its input needs no gradient, so a module backward hook fires before the kernels run",
    "outside": "no range reached its kernels",
}

SENTENCES = {
    "wrong window": "{row} shows the count of a batch of {seen:,}, {factor:times} times paper's: "
    "the same at every batch size.",
    "FADD alone": "{row}: only FADD was collected, {fadd:,.0f} of them; the {macs:,.0f} "
    "multiply-adds on paper are FFMA instructions, which FADD does not count.",
    "FADD alone: sweep, outside": _FADD_OUTSIDE,
    "FADD alone: sweep, of a layer": _FADD_OUTSIDE + " One output of {layer} takes {macs:,.0f} "
    "multiply-adds, so FFMA should be {ffma:,.0f}.",
    "FADD alone: sweep, derived": _FADD_OUTSIDE + " Derived for {layer} at a batch of {seen:,}: "
    "{derivation}, and {fadd:,.0f} FADD, as counted.",
    "counter not collected: at all": _NOT_COLLECTED
    + "{parts:and} counters were not collected"
    + _COVERAGE,
    "counter not collected: for some kernels": _NOT_COLLECTED + "{kernel}[ and {more} more kernels "
    "have][!more? has] no {parts:and no} counters" + _COVERAGE,
    "counter not collected: for some launches": _NOT_COLLECTED + "{launches} of {of_launches} "
    "launches have a figure.",
    "counter not collected: left out": _NOT_COLLECTED + "{reason}" + _COVERAGE,
    "counter not collected: no value": _NOT_COLLECTED
    + "[{parts:and} counters have no value: ]{reason}"
    + _COVERAGE,
    "nothing counted: integers": _NOTHING_COUNTED + "its tensor cores multiply integers, which are "
    "no FLOPs.",
    "nothing counted: no instruction": _NOTHING_COUNTED + "its product, if it is among them, uses "
    "no instruction that counts as FLOPs.",
    "nothing counted: no product": _NOTHING_COUNTED + "none of them is its product.",
    "direction missing": "{row}: no kernel of it was seen, while paper has {estimated:flops}.",
    "3xTF32": "{row} multiplies fp32 as 3 TF32 products (3xTF32, by the kernel's name): 3.00 times "
    "the FLOPs on paper.",
    "2:4 sparsity": "{row} runs a sparse tensor-core kernel, by its name: 2:4 sparsity does 0.500 "
    "of the multiply-adds on paper.",
    "constant moves": "{row} shows {halves:,.0f} HFMA[ and {pipe:,.0f} tensor instructions] that "
    "[!certain?may only ]move constants: added up they would be {seeming:flops}, {share:percent} "
    "of paper[certain?, that nobody computed].",
    "several algorithms": _SEVERAL + ": by their shapes {factor:times} times the FLOPs on paper "
    "together.",
    "several algorithms: partly counted": _SEVERAL + "; not all of its kernels were counted, so "
    "how much they execute together is not known.",
    "several algorithms: of gradients": "{row} computed [the gradient of its input {inputs:g} "
    "times][both? and ][the gradient of its weight {weights:g} times], each by another kernel: "
    "{factor:times} times the FLOPs on paper.",
    "Winograd": _TRANSFORMED,
    "FFT": _TRANSFORMED,
    "tile padding": "{row} executes {factor:times} times the multiply-adds on paper, because it "
    "computes whole tiles: {tiles:rules}[in_all?; {factor:times} times paper in all].[ Counted "
    "were {executed:times} times as many as that.]" + _LARGER_BATCH,
    "persistent RNN": "{row} runs the steps of its sequence in one persistent kernel ({kernel}): "
    "{flops:flops} of the row's {executed:flops}, where paper has {estimated:flops} in all. It "
    "works on whole groups of the batch, whose size is in neither name nor grid.",
    "extra calls": _LAUNCHED + "{factor:times} times the FLOPs on paper, because the layer ran "
    "more often than the recorded step[!all_layers?, the capture holds more steps than it says, or "
    "gradients are accumulated][may_be_trials?, or cuDNN tried it several times].",
    "extra calls: of gradients": _LAUNCHED + "{factor:times} times the FLOPs on paper, because its "
    "gradients ran {number} times as often as its forward: double backward, or several losses.",
    "extra calls: or parts": _LAUNCHED + "the layer ran more often, or its product is split over "
    "the launches. One part of {launched} may fill as many tiles as all of it.",
    "causal mask": "{row} skips what its causal mask hides: tiles of {m} x {n} scores cover "
    "{factor:times} of the {rows:,} x {columns:,} square on paper.",
    "groups run as dense": "{row} runs its {groups} groups as one dense convolution: "
    "{multiplies:,.0f} multiplies for {estimated:,} on paper, {factor:times} times.",
    "skipped border": "{row} skips the taps of its filter that fall on the padding: "
    "{factor:times} of the multiply-adds on paper.",
    "swapped layers": "{row} has the count of {other}, {factor:times} times its own paper count, "
    "and the other way round: their kernels are swapped.",
    "shared kernel": "{row} executes {factor:times} times its own paper count: its kernel also "
    "does {others:list}.",
    "shared kernel: within another kernel": "{row} has no kernel of its own: its {estimated:flops} "
    "are done in a kernel of {owner}.",
    "gradient missing": "{row} ran one product: [{gradient:gradient} has no kernel][!gradient?one "
    "of its two gradients has no kernel][, and {outside} of the kernels outside of layers may be "
    "it]. What ran is {factor:times} of paper.",
    "needless gradient": "{row} also computes the gradient of its input, {flops:flops} that paper "
    "does not need: 2.00 times paper.",
    "zeros inserted": "{row} computes the gradient of its input over every input, with zeros "
    "between the outputs of the stride: {flops:flops} for {estimated:flops} on paper, "
    "{factor:times} times the row.",
    "recomputation": "{row} runs forward's kernels again: {flops:flops}, {factor:times} times what "
    "the gradients alone need.[may_be_gradient? Or they compute the gradient of its input, as "
    "large, which paper does not need.]",
    "recomputation: as a direction": "{layer} runs forward once more in backward{at}: "
    "{flops:flops}.",
    "recomputation: without a number": "{row} runs forward's kernels again, by their names and "
    "grids; [unclear?which of them do gradients, is not known][!unclear?not all of its kernels "
    "were counted].",
    "recomputation: by another kernel": "{row} runs forward once more, by {kernel}: {flops:flops}, "
    "{extra:percent} on top of the gradients.[!recorded? Or cuDNN tried it for a gradient: whether "
    "cudnn.benchmark was on is not recorded.]",
    "split-K": "{row} splits its sum[ over {slices} slices] and adds the slices up [in {kernel}]"
    "[!kernel?itself]: {flops:flops} more, {extra:percent}.",
    "split-K: by its name": "{row} splits its sum over blocks, by the name of {kernel}: what its "
    "parts add up in memory is in no counter, and how they fill tiles is not known.",
    "layout and epilogue": "{row} executes {flops:flops} in addition to its products "
    "({works:list}), {extra:percent} more.",
    "other GPU": "Parts of this study ran on different GPUs ({gpus:list}): their times cannot be "
    "compared. In this order: {runs}.",
    "more work in less time": "More work in less time: {layer} {direction} took {more_ms:.4g} ms "
    "for {more_macs:number} multiply-adds {more_name}, but {less_ms:.4g} ms for {less_macs:number} "
    "{less_name}. Such times cannot be compared: the host's clock saw launches, not "
    "kernels, or the GPUs were not the same[ (no record names the GPU of the one {unknown})][ (the "
    "records name {gpus:and})].[ Multiply-adds are of batch {batch}.]",
    "hand estimate": "The hand estimate of {layer} ({what}, batch {batch}) is wrong. {explanation}",
    "algorithm switch": _SWITCH + ".",
    "algorithm switch: same FLOPs": _SWITCH + "; FLOPs per sample stay at {more:flops}.",
    "algorithm switch: other FLOPs": _SWITCH + "; FLOPs per sample go from {less:flops} to "
    "{more:flops}.",
    "time does not follow": "The times of {layer} {direction} do not follow the batch[also? "
    "either]: {times} ms at batch {low} to {high}, while the work grows {growth:g}-fold. The "
    "host's clock saw the launch, not the kernel.[ If these were kernel times, batch {low} would "
    "run at {low_rate:flops}/s and batch {high} at {high_rate:flops}/s.][ The device's peak is "
    "{peak:flops}/s.]",
    "time does not follow: kernels": "The times do not follow the batch either: the layers' "
    "kernels take {low_ms:.3g} ms at batch {low} and {high_ms:.3g} ms at batch {high}, while the "
    "work on paper grows {growth:.3g}-fold.",
}
"""Rule, or "rule: variant" -> the sentence."""
for _rule in ("TF32", "tensor cores"):
    SENTENCES |= {f"{_rule}: {key}": text for key, text in _TENSOR_SENTENCES.items()}
for _key, _reason in _STEP_REASONS.items():
    SENTENCES[f"whole step: {_key}"] = (
        "{row} executed {factor:times} times what is on paper, as all rows[of_gradients? of "
        "gradients] did: " + _reason
    )
    SENTENCES[f"whole step: sweep, {_key}"] = (
        "At batch {batch}, [!by_launches?rows with {share:percent} of the FLOPs on paper executed "
        "{times:times} times what paper and the other reasons say: ]" + _reason
    )
for _key, _reason in _WINDOW_REASONS.items():
    SENTENCES[f"wrong window: sweep, {_key}"] = (
        "The count does not follow the batch size: " + _reason + ". The profiler's window caught "
        "something other than the step that was asked for[, or the program pads every batch to "
        "{padded:,}]."
    )
for _key, _reason in _MISSING_REASONS.items():
    SENTENCES[f"direction missing: sweep, {_key}"] = (
        "[is_all?Backward of every layer][is_first?Backward of the first layer, {layers:list},]"
        "[is_other?{direction} of {layers:list}][more? and others] has no kernels at batch "
        "{batch}: " + _reason + ". On paper it is {estimated:flops}, {share:percent} of the step.[ "
        "Kernels outside of layers executed {executed:flops}, {executed_share:percent} of that.]"
    )

_WINDOW_FIX = (
    "Open the profiler's window around the training step, not around a test or warm-up with its "
    "own batch size[!ours?; 'perfctl ncu' does]."
)
_TRANSFORMED_FIX = (
    "Nothing is missing. torch.backends.cudnn.deterministic = True lets cuDNN choose among fewer "
    "algorithms, if paper's arithmetic is what you want to see."
)
FIXES = {
    "wrong window": _WINDOW_FIX,
    "FADD alone": "Collect {metrics}: FLOPs = FADD + FMUL + 2 FFMA" + _ASKS,
    "counter not collected: at all": "Collect {metrics:list}" + _ASKS,
    "counter not collected: for some kernels": "Collect {metrics:list} for every launch" + _ASKS,
    "counter not collected: for some launches": "Profile again without leaving launches out "
    "(--launch-count)" + _ASKS,
    "counter not collected: left out": "Profile again, all of it: {reason}.",
    "counter not collected: no value": "A newer ncu may have them on this chip" + _ASKS,
    "nothing counted": "[outside?Look for its kernels among those outside of layers.][!outside?"
    "Read its kernels' names.]",
    "direction missing: left out": "Profile again, all of it: {left_out}.",
    "direction missing: inference": "Profile training, or read forward alone: inference has no "
    "backward.",
    "direction missing: did not run": "Check what ran during the recording: training or "
    "evaluation, which layers are frozen, where the capture ends.",
    "direction missing: in backward": "Backward is launched from autograd's own thread: annotate "
    "there[!ours? ('perfctl ncu' does)], or use emit_nvtx.",
    "direction missing: outside": "Look for its kernels among those outside of layers.",
    "3xTF32": "Expected: three products keep fp32's precision on tensor cores.",
    "2:4 sparsity": "Expected: two of four weights are zero, and paper counts all four.",
    "constant moves": "They are left out of the count; leave them out of your own sums too.",
    "several algorithms": "torch.backends.cudnn.benchmark = True tries algorithms in the first "
    "step of every shape: warm up outside of the profiled steps, or turn it off.",
    "Winograd": _TRANSFORMED_FIX,
    "FFT": _TRANSFORMED_FIX,
    "tile padding": "Sizes (channels, batch, features) that are multiples of the tile waste "
    "nothing; or accept it as the price.",
    "persistent RNN": "Nothing is missing. Larger batches fill its groups; how many FLOPs they "
    "take cannot be predicted.",
    "extra calls": "Check the number of profiled steps, gradient accumulation, and calls of the "
    "layer.",
    "causal mask": "Expected: paper counts the whole square.",
    "groups run as dense": "A layout or type for which cuDNN has a grouped kernel avoids it.",
    "skipped border": "Expected: paper counts every tap of every output.",
    "swapped layers": "Check the ranges and names of {layer} and {other_layer}.",
    "shared kernel": "Read {name} and {others:list} together: fused layers share a kernel.",
    "shared kernel: within another kernel": "Read {owner} and {name} together.",
    "gradient missing": "Look for it among the kernels outside of layers, or check whether the "
    "step needs that gradient.",
    "needless gradient": "Check requires_grad of the network's input: nothing uses that gradient "
    "in ordinary training.",
    "zeros inserted": "Expected of this kernel: paper counts only what is not multiplied by an "
    "inserted zero.",
    "recomputation": "That is activation checkpointing: it saves memory for this price. Without "
    "it, backward has the gradients only.",
    "split-K": "Expected: split-K adds partial sums. Larger batches avoid it.",
    "layout and epilogue": "Paper counts multiply-adds only; read its elementwise column for bias "
    "additions and activations.",
    "whole step": "Check the batch size that ran, the number of profiled steps, gradient "
    "accumulation, and the number of ranks.",
    "other GPU": "Time every part on one GPU ('nvidia-smi -L' names it); until then compare times "
    "only within a part.",
    "more work in less time": "Synchronise before each reading of the clock, or time with 'perfctl "
    "nsys' or 'perfctl torch', both on one GPU.",
    "hand estimate": "perfctl estimate {workload} --batch {batch} --layer {layer} --check {value}",
    "algorithm switch": "Compare batch sizes on either side of it only by time per sample: their "
    "counted FLOPs differ by algorithm.",
    "algorithm switch: same FLOPs": "Compare times on either side of it per sample.",
    "time does not follow": "Time kernels with 'perfctl nsys' or 'perfctl torch', or synchronise "
    "before each reading of the clock.",
    "time does not follow: kernels": _WINDOW_FIX,
}
"""Rule, or "rule: variant" -> what to do."""
for _rule in ("TF32", "tensor cores"):
    FIXES |= {f"{_rule}: {key}": text for key, text in _TENSOR_FIXES.items()}

_GRADIENTS = {
    "grad_input": "the gradient of its input",
    "grad_weight": "the gradient of its weight",
}
_STYLES: Mapping[str, Callable[[Any], str]] = {
    "times": times,
    "percent": percent,
    "flops": lambda flops: f"{amount(flops)}FLOP",
    "number": lambda number: amount(number).strip(),
    "gradient": _GRADIENTS.__getitem__,
    "list": ", ".join,
    "and": " and ".join,
    "rules": "; ".join,
    "and no": " and no ".join,
}
"""Format of a template's field -> text of the fact."""
_OPTIONAL = re.compile(r"\[(?:(!?)(\w+)\?)?([^][]*)\]")
_FIELD = re.compile(r"\{(\w+)")
GAPS_MAX = 3
"""Gaps of rows that become headlines."""
GAP_RATIO_MIN = 1.1
"""A ratio nearer to 1 makes no headline."""
TIME_SHARE_MIN = 0.01
"""Share of the time below which a gap costs next to nothing, however large its ratio is."""
UNEXPLAINED_SHARE_MIN = 0.02
SWITCH = "algorithm switch"
WITHOUT_NUMBER = ("FADD alone", "counter not collected", "constant moves")


class _FactFormatter(Formatter):
    """A formatter that knows the styles of facts."""

    def format_field(self, value: Any, style: str) -> str:
        """Return a fact in its style, or by Python's format."""
        return _STYLES[style](value) if style in _STYLES else str(format(value, style))


def describe_cause(cause: Cause) -> str:
    """Return the cause as a sentence with the subject, the number, the comparison and the cause."""
    return _fill(SENTENCES, cause, cause.variant)


def describe_fix(cause: Cause) -> str:
    """Return what to do about the cause."""
    facts = cause.facts
    return _fill(FIXES, cause, facts.fix if isinstance(facts, MissingFacts) else cause.variant)


def _fill(templates: Mapping[str, str], cause: Cause, variant: str) -> str:
    facts = {"factor": cause.factor, "row": cause.row, "ours": cause.ours, **asdict(cause.facts)}

    def keep(match: re.Match[str]) -> str:
        negated, name, text = match.groups()
        needed = all(facts.get(name) for name in ([name] if name else _FIELD.findall(text)))
        return str(text) if needed != bool(negated) else ""

    template = templates.get(f"{cause.rule}: {variant}") or templates[cause.rule]
    return _FactFormatter().vformat(_OPTIONAL.sub(keep, template), (), facts)


@dataclass(frozen=True, slots=True)
class CauseOutput:
    """One reason, with its number. FLOPs: 1 multiply-add = 2."""

    rule: str
    sentence: str
    factor: float | None
    explained: float | None
    todo: str
    kernels: tuple[str, ...]
    confidence: Confidence


def cause_output(cause: Cause) -> CauseOutput:
    """Return the cause with its sentences, as JSON has it."""
    return CauseOutput(
        cause.rule,
        describe_cause(cause),
        cause.factor,
        cause.explained,
        describe_fix(cause),
        cause.kernels,
        cause.confidence,
    )


class Headline(NamedTuple):
    """A sentence about the sweep or its largest gaps."""

    sentence: str
    place: Place | None
    """The ledger row that proves it; None for the sweep as a whole."""
    rules: tuple[str, ...]


def headlines(judgement: Judgement, ledger: Ledger) -> tuple[Headline, ...]:
    """Return what is wrong with the sweep, then the three largest gaps with the rules that explain
    them, then what changes, then what was not counted."""
    switches = [cause for cause in judgement.sweep if cause.rule == SWITCH]
    others = [cause for cause in judgement.sweep if cause.rule != SWITCH]
    lines = [Headline(describe_cause(cause), None, (cause.rule,)) for cause in others]
    lines += _gap_headlines(judgement, ledger)
    if switches:
        more = len(switches) - 1
        rows = "rows change their" if more > 1 else "row changes its"
        rest = f" {more} more {rows} algorithm." if more else ""
        lines.append(Headline(describe_cause(switches[0]) + rest, None, (SWITCH,)))
    known = {cause.rule for cause in judgement.sweep}
    without_number: dict[str, list[tuple[Place, Cause]]] = defaultdict(list)
    for place, row in judgement.rows.items():
        for cause in row.causes:
            if cause.factor is None and cause.rule in WITHOUT_NUMBER and cause.rule not in known:
                without_number[cause.rule].append((place, cause))
    for rule, ((place, first), *same) in without_number.items():
        rest = f" The same in {len(same)} more rows." if same else ""
        lines.append(Headline(describe_cause(first) + rest, place, (rule,)))
    return tuple(lines)


def _gap_headlines(judgement: Judgement, ledger: Ledger) -> list[Headline]:
    """Return the largest gaps; those of layers that take little of the time come last."""
    known = {cause.rule for cause in judgement.sweep}
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger.rows:
        is_known = not row.counted.lower_bound or (row.ratio is not None and row.ratio > 1)
        if _gap(row) > log(GAP_RATIO_MIN) and is_known:
            groups[row.name].append(row)
    lines = []
    for rows in sorted(groups.values(), key=lambda rows: (_is_minor(rows), -max(map(_gap, rows)))):
        row = max(rows, key=_gap)
        judged = judgement.at(row.size, row.layer, row.direction)
        if all(cause.rule in known for cause in judged.causes) and judged.causes:
            continue
        rules = tuple(cause.rule for cause in judged.causes)
        sentence = _describe_gap(row, rows, judged, known)
        lines.append(Headline(sentence, (row.size, row.layer, row.direction), rules))
    return lines[:GAPS_MAX]


def _is_minor(rows: Iterable[LedgerRow]) -> bool:
    """Return whether all rows are known to take little of the time."""
    shares = [row.share for row in rows if row.share is not None]
    return bool(shares) and max(shares) < TIME_SHARE_MIN


def _gap(row: LedgerRow) -> float:
    """Return the gap on a scale on which half and double are as far; a count of 0 is the largest
    gap of all."""
    return abs(log(row.ratio)) if row.ratio else 0.0 if row.ratio is None else inf


def _describe_gap(
    row: LedgerRow, rows: Iterable[LedgerRow], judged: RowJudgement, known: set[str]
) -> str:
    """Return the ratio of a row and the causes that explain it; ``known``: rules that have a
    headline."""
    causes = [cause for cause in judged.causes if cause.rule not in known]
    for cause in causes:
        if cause.rule == "nothing counted":
            return describe_cause(cause)
    ratio, state = 1.0 if row.ratio is None else row.ratio, row.counted.state
    sure = "at least " if row.counted.lower_bound else ""
    about = "about " if state == "estimated" else ""
    number = f"{times(ratio)} " if ratio else "none "
    others = ", ".join(str(other.size) for other in rows if other.size != row.size)
    also = f" (more than 10% off at batch {others} too)" if others else ""
    derived = ", derived from its kernels" if state == "derived" else ""
    text = (
        f"{row.name} executed {sure}{about}{number}{'of' if ratio < 1 else 'times'} the FLOPs on "
        f"paper{row.at}{also}{derived}"
    )
    reasons = [
        f"{cause.rule} explains {times(cause.factor)}"
        for cause in causes
        if cause.factor and deviates(cause.factor) and cause.explained != 0
    ]
    left = judged.unexplained
    rest = "" if left is None else f"{percent(left)} of the gap stays unexplained"
    if reasons:
        enough = left is not None and left >= UNEXPLAINED_SHARE_MIN
        return f"{text}: {', '.join(reasons)}{f'; {rest}' if enough else ''}."
    if any(cause.rule == "several algorithms" for cause in causes):
        return f"{text}: several algorithms ran, each for the whole layer."
    return f"{text}; no rule explains it{f': {rest}' if rest else ''}."
