"""The templates of causes, one for the sentence and one for the fix of each rule, and how facts
fill them.

In a template, ``[...]`` is left out if a fact in it is None, False, 0 or empty; ``[name?...]`` is
left out if that fact is, and ``[!name?...]`` if it is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from perfctl.orchestrator.ledger.causes.rule import (
    Cause,
    format_ratio,
    format_share,
    format_with_si_prefix,
)
from perfctl.orchestrator.report.numbers import format_time

_OTHER_BATCH = "[ A batch of {other_batch:,} may have run instead: it needs the same blocks.]"

_MAY_BE_TRIALS = "[possible? They may be trials.]"

_SEVERAL = "{row} ran {number} kernels that each compute the complete layer ({names})"

_LAUNCHED = (
    "{row} launches its GEMM {launches:g} times per step, but the estimate has {needed}[ and all "
    "layers launch {all_layers} times as many]: "
)

_TRANSFORMED = (
    "{row} runs as {method:method}, which needs {multiplies:times} times the estimated "
    "multiply-adds ({tiles:rules}). Its transforms add {transforms:percent} of the estimate, which "
    "makes {factor:times} times together.[ The count is {executed:times} times in "
    "multiply-adds.]" + _OTHER_BATCH
)

_NOT_COLLECTED = "{row}: [at least {flops:flops}][!flops?no FLOPs], because "

_COVERAGE = " ({launches} of {of_launches} launches have a value)."

_NOTHING_COUNTED = (
    "{row} ran only kernels without FLOPs ({ran:g} per step), but the estimate is "
    "{estimated:flops}: "
)

_FADD_OUTSIDE = (
    "The profiler collected only FADD: {fadd:,.0f} in {kernel}. FADD omits the multiply-adds, "
    "which are FFMA instructions."
)

_SWITCH = (
    "{name} changes its algorithm at batch {batch}: {new:method} instead of {old:method} (up to "
    "batch {before})"
)

_TF32_FLAG = "[ (TF32 is {allowed} in this run)][by_program? (the program itself uses TF32)]"

_TF32_OFF = "[tf32? --precision fp32 turns TF32 off.]"

_ASKS = "[!ours?; 'perfctl ncu' collects all of them]."

_TENSOR_SENTENCES = {
    "executed": "{row} executed {share:times} times the estimated multiply-adds on tensor cores[ "
    "in {math}][, and {ffma:percent} as FFMA]" + _TF32_FLAG + ".",
    "not derived": "{row} runs tensor-core kernels[ in {math}], according to their names; "
    "perfctl has no rule for their FLOPs" + _TF32_FLAG + ".",
    "not counted": "{row} [pipe?ran {pipe:,.0f} tensor instructions][!pipe?runs tensor-core "
    "kernels (according to their names)] whose FLOPs the counters do not include"
    + _TF32_FLAG
    + "; FFMA executed {plain:percent} of the estimated multiply-adds.",
}

_TENSOR_FIXES = {
    "executed": "[complete?Nothing is missing: the executed FLOPs include both "
    "paths.][!complete?The executed FLOPs include both paths.]" + _TF32_OFF,
    "not derived": "Run 'perfctl ncu' to measure them." + _TF32_OFF,
    "not counted": "[newer_ncu?Collect sm__ops_path_tensor_src_{operand}*.sum too][!newer_ncu?"
    "Collect sm__ops_path_tensor_src_*.sum with a newer ncu than 2022.3][tf32?, or run once with "
    "TF32 off]." + _TF32_OFF,
}

_STEP_REASONS = {
    "launches": "each GEMM ran {number} times. The capture has {number} steps, or [trains?the "
    "gradients are accumulated over {number} batches][!trains?each step runs {number} batches]"
    "[may_be_trials?, or cuDNN tried each kernel several times].",
    "gradient launches": "each gradient ran {number} times, but forward ran once. The step has a "
    "double backward, or {number} losses.",
    "larger batch": "no GEMM ran {number} times, so a batch of {samples:,.0f} "
    "may have run[may_be_3xtf32?, or 3 TF32 GEMMs for each fp32 GEMM].",
    "one rank": "this may be one rank of {number}, with {part:.3g} of the batch or of each "
    "layer (tensor parallelism)[, in {runs} batches of {samples:g}].",
    "smaller batch": "this may be one rank of {number}, or a batch of {samples:g}[may_be_sparse?, "
    "or 2:4 sparsity].",
    "other batch": "a batch of {samples:g} may have run[is_smaller?, such as the last one of a "
    "data set].",
    "copies": "the capture has [processes?{processes} processes on ]{devices} devices, and each "
    "ran the complete batch.",
    "uneven steps": "its {steps} steps differ, and executed {least:times} to {most:times} times "
    "the estimate.",
    "own grids": "no GEMM ran {number} times, and the grids are those of a batch of {batch}, so "
    "the counters may be sums of {number} passes[may_be_3xtf32?, or the kernels may run 3 TF32 "
    "GEMMs for each fp32 GEMM].",
    "own grids, other products": "the grids are those of a batch of {batch}, so the kernels may "
    "run [may_be_sparse?with 2:4 sparsity][may_be_3xtf32?3 TF32 GEMMs for each fp32 GEMM].",
}

_WINDOW_REASONS = {
    "row": "{name} executed the same at batch {first} to {last}[, which fits a batch of {fits:,}]",
    "row with a batch": "{name} executed {value:,.0f} {count} at batch {first} to {last}, which "
    "fits a batch of {seen:,}",
    "kernel": "{name} executed the same at batch {first} to {last}",
} | {
    f"kernel of {count}": "{name} executed {value:,.0f} {count} at batch {first} to "
    f"{{last}}. This is one {unit} of {{layer}} for a batch of {{seen:,}} "
    "({seen:,} x {each:,.0f})"
    for count, unit in (
        ("fadd", "add per output"),
        ("fmul", "multiply per output"),
        ("tensor", "estimated multiply-add"),
        ("ffma", "FFMA per multiply-add"),
    )
}

_MISSING_REASONS = {
    "left out": "{left_out}, so the profiler may have missed them",
    "inference": "the run is inference, which has no backward pass",
    "did not run": "no kernel outside of layers fits either, so it may not have run during the "
    "recording[backward? (evaluation, frozen layers, or a capture that ended "
    "before)]",
    "all": "autograd may have launched it from a separate thread, which a range around "
    "loss.backward() does not cover",
    "first": "its input needs no gradient, so a module backward hook may fire before the kernels "
    "run",
    "outside": "it may be among the kernels that no range covers",
}

SENTENCES = {
    "wrong formula": "{row} executed {ratio:times} times the estimate[ at {over}]. The formula "
    "{formula} could come from {mistakes}.",
    "wrong window": "{row} has the executed FLOPs of a batch of {seen:,}, {factor:times} times "
    "the estimate, at every batch size.",
    "FADD alone": "{row}: the profiler collected only FADD ({fadd:,.0f}). The {macs:,.0f} "
    "estimated multiply-adds are FFMA instructions, which FADD does not include.",
    "FADD alone: sweep, outside": _FADD_OUTSIDE,
    "FADD alone: sweep, of a layer": _FADD_OUTSIDE + " One output of {layer} needs {macs:,.0f} "
    "multiply-adds, so FFMA should be {ffma:,.0f}.",
    "FADD alone: sweep, derived": _FADD_OUTSIDE + " The derived count of {layer} at a batch of "
    "{seen:,} is {derivation}, and {fadd:,.0f} FADD, which is the measured count.",
    "counter not collected: at all": _NOT_COLLECTED
    + "the profiler did not collect {parts:and} counters"
    + _COVERAGE,
    "counter not collected: for some kernels": _NOT_COLLECTED + "{kernel}[ and {more} more kernels "
    "have][!more? has] no {parts:and no} counters" + _COVERAGE,
    "counter not collected: for some launches": _NOT_COLLECTED + "{launches} of {of_launches} "
    "launches have a value.",
    "counter not collected: left out": _NOT_COLLECTED + "{reason}" + _COVERAGE,
    "counter not collected: in part": _NOT_COLLECTED + "{reason}" + _COVERAGE,
    "counter not collected: no value": _NOT_COLLECTED
    + "[{parts:and} counters have no value: ]{reason}"
    + _COVERAGE,
    "nothing counted: integers": _NOTHING_COUNTED + "its tensor cores multiply integers, which "
    "do not count as FLOPs.",
    "nothing counted: no instruction": _NOTHING_COUNTED + "if its GEMM is among them, it uses no "
    "instruction that counts as FLOPs.",
    "nothing counted: no product": _NOTHING_COUNTED + "none of them is its GEMM.",
    "direction missing": "{row} has no kernels in the report, but the estimate is "
    "{estimated:flops}.",
    "3xTF32": "{row} multiplies fp32 as 3 TF32 GEMMs (by the kernel's name), which makes "
    "3.00 times the estimated FLOPs.",
    "2:4 sparsity": "{row} runs a sparse tensor-core kernel, according to its name: 2:4 sparsity "
    "executes 0.500 times the estimated multiply-adds.",
    "constant moves": "{row} has {halves:,.0f} HFMA[ and {pipe:,.0f} tensor instructions] that "
    "[!certain?may only ]move constants. Counted as arithmetic, they would add {seeming:flops}, "
    "{share:percent} of the estimate[certain?, although they compute nothing].",
    "several algorithms": _SEVERAL + ": together, {factor:times} times the estimated FLOPs "
    "according to their shapes." + _MAY_BE_TRIALS,
    "several algorithms: partly counted": _SEVERAL + "; some of them have no counters, so their "
    "total is unknown." + _MAY_BE_TRIALS,
    "several algorithms: of gradients": "{row} computed [the gradient of its input {inputs:g} "
    "times][both? and ][the gradient of its weight "
    "{weights:g} times], each with a different kernel: "
    "{factor:times} times the estimated FLOPs." + _MAY_BE_TRIALS,
    "Winograd": _TRANSFORMED,
    "FFT": _TRANSFORMED,
    "tile padding": "{row} executes {factor:times} times the estimated multiply-adds, "
    "[possible?possibly ]because it computes complete tiles: {tiles:rules}[in_all?; "
    "{factor:times} times the estimate in total].[ The measured count is {executed:times} times as "
    "large.]" + _OTHER_BATCH,
    "persistent RNN": "{row} runs the steps of its sequence in one persistent kernel ({kernel}): "
    "{flops:flops} of the row's {executed:flops}; the estimate is "
    "{estimated:flops} in total. The kernel computes complete groups of "
    "samples, but neither its name nor its grid contains the group size.",
    "extra calls": _LAUNCHED + "{factor:times} times the estimated FLOPs, "
    "[possible?possibly ]because the layer ran "
    "more often than the recorded step[!all_layers?, or the capture has more steps than the "
    "report states][accumulates?, or gradients are accumulated]"
    "[may_be_trials?, or cuDNN tried it several times].",
    "extra calls: of gradients": _LAUNCHED + "{factor:times} times the estimated FLOPs, "
    "[possible?possibly ]because "
    "its gradients ran {number} times as often as its "
    "forward pass (double backward, or several losses).",
    "extra calls: or parts": _LAUNCHED + "the layer ran more often, or its GEMM is split over the "
    "launches. One of {parts} parts may need as many tiles as the complete GEMM.",
    "causal mask": "{row} skips the scores that its causal mask hides: tiles of {m} x {n} scores "
    "cover {factor:times} of the estimated {rows:,} x {columns:,} square.",
    "causal mask: by tiles": "{row} skips the scores that its causal mask hides: {tiles:rules}, "
    "{factor:times} times the estimate of the complete square.",
    "groups run as dense": "{row} [possible?may run][!possible?runs] its {groups} groups as one "
    "dense convolution: {multiplies:,.0f} multiplies instead of the estimated {estimated:,}, "
    "{factor:times} times as many.",
    "other size": "{row} may have computed up to {executed:,} {side} instead of {size:,}: its grid "
    "has {rows} x {columns} tiles of {m} x {n}, {factor:times} times the estimate.",
    "skipped border": "{row} [possible?may skip][!possible?skips] the filter taps that fall on "
    "the padding: {factor:times} times the estimated multiply-adds.",
    "swapped layers": "{row} has the count of {other}, {factor:times} times its own estimate, "
    "and {other} has its count: their kernels may be swapped, or some "
    "of one layer attributed to the other.",
    "swapped layers: a part": "{row} executed {flops:flops} [is_more?more][!is_more?less] than "
    "estimated, and {other} as much [is_more?less][!is_more?more]: [is_more?kernels of "
    "{other_layer} may be attributed to {layer}][!is_more?its kernels may be attributed to "
    "{other_layer}].",
    "shared kernel": "{row} executes {factor:times} times its own estimate, "
    "[possible?possibly ]because its kernel also computes {others:list}.",
    "shared kernel: within another kernel": "{row} has no separate kernel: a kernel of {owner} "
    "[possible?may execute][!possible?executes] its {estimated:flops}.",
    "gradient missing": "{row} ran one GEMM: [possible?possibly ][{gradient:gradient} has no "
    "kernel][!gradient?one of its two gradients has no kernel][, and {outside} of the kernels "
    "outside of layers may compute it]. The executed FLOPs are "
    "{factor:times} times the estimate.",
    "needless gradient": "{row} also computes the gradient of its input, {flops:flops} that the "
    "estimate does not include: 2.00 times the estimate.",
    "zeros inserted": "{row} [likely?probably ]computes the gradient of its input at every input "
    "position, with zeros inserted for the stride: {flops:flops} instead of the estimated "
    "{estimated:flops}, {factor:times} times the row.",
    "recomputation": "{row} [possible?may run][!possible?runs] the kernels of the forward pass "
    "again: {flops:flops}, "
    "{factor:times} times the FLOPs of the gradients only.[may_be_gradient? "
    "They may also compute the gradient of its input, which has the same size "
    "and is not in the estimate.]",
    "recomputation: as a direction": "{layer} runs its forward pass again during backward{at}: "
    "{flops:flops}.",
    "recomputation: without a number": "{row} [possible?may run][!possible?runs] the kernels of "
    "the forward pass again, "
    "according to their names and grids; [unclear?it is not "
    "known which of them compute gradients][!unclear?some of "
    "its kernels have no counters].",
    "recomputation: by another kernel": "{row} [possible?may run][!possible?runs] its forward "
    "pass again with {kernel}: "
    "{flops:flops}, {extra:percent} more than the "
    "gradients.[!recorded? cuDNN may also have tried this "
    "kernel for a gradient: the run did not record whether "
    "cudnn.benchmark was on.]",
    "split-K": "{row} splits its K dimension[ into {slices} slices] and adds the slices up [in "
    "{kernel}][!kernel?itself]: {flops:flops} more, {extra:percent}.",
    "split-K: by its name": "{row} splits its K dimension over blocks, according to the name of "
    "{kernel}. The counters do not include the additions in memory, and "
    "the tiling of the slices is not known.",
    "layout and epilogue": "{row} executes {flops:flops} in addition to its GEMMs "
    "({works:list}), {extra:percent} more.",
    "other GPU": "Parts of this study ran on different GPUs ({gpus:list}), so their times cannot "
    "be compared. Runs, in the same order: {runs}.",
    "more work in less time": "Implausible timing: {layer} {direction} took {more_ms:.4g} ms for "
    "{more_macs:number} multiply-adds {more_name}, but {less_ms:.4g} "
    "ms for only {less_macs:number} {less_name}. These times cannot be "
    "compared: the CPU timer may have measured launches instead of kernels, or "
    "the GPUs differ[ (no record names the GPU of the run {unknown})][ "
    "(the records name {gpus:and})].[ The multiply-adds are those of "
    "batch {batch}.]",
    "hand estimate": "The manual estimate of {layer} ({what}, batch {batch}) is wrong. "
    "{explanation}",
    "algorithm switch": _SWITCH + ".",
    "algorithm switch: same FLOPs": _SWITCH + "; FLOPs per sample stay at {more:flops}.",
    "algorithm switch: other FLOPs": _SWITCH + "; FLOPs per sample change from {less:flops} to "
    "{more:flops}.",
    "time does not follow": "The times of {layer} {direction} do not change with the batch "
    "size[also? either]: {shortest_ns:time} to {longest_ns:time} at batch {low} to {high}, "
    "although the work grows {growth:g}-fold. The CPU timer "
    "[possible?may have ]measured the "
    "asynchronous launch, not the kernel.[ If these were kernel times, "
    "batch {low} would run at {low_rate:flops}/s and batch {high} at "
    "{high_rate:flops}/s.][ The device's peak is {peak:flops}/s.]",
    "time does not follow: kernels": "The times do not change with the batch size either: the "
    "layers' kernels take {low_ns:time} at batch {low} and {high_ns:time} at batch {high}, "
    "although the estimated work grows {growth:.3g}-fold.",
}
"""Rule, or "rule: variant" -> the sentence."""

for _rule in ("TF32", "tensor cores"):
    SENTENCES |= {f"{_rule}: {key}": text for key, text in _TENSOR_SENTENCES.items()}

for _key, _reason in _STEP_REASONS.items():
    SENTENCES[f"whole step: {_key}"] = (
        "{row} executed {factor:times} times the estimated FLOPs, as did all rows[of_gradients? "
        "of gradients]: " + _reason
    )
    SENTENCES[f"whole step: sweep, {_key}"] = (
        "At batch {batch}[ (and {others:list})], [!by_launches?rows with {share:percent} of the "
        "estimated FLOPs executed {times:times} times the FLOPs that the estimate and the other "
        "causes explain: ]" + _reason
    )

for _key, _reason in _WINDOW_REASONS.items():
    SENTENCES[f"wrong window: sweep, {_key}"] = (
        "The executed FLOPs do not change with the batch size: "
        + _reason
        + ". The program may ignore its batch size, or the profiler recorded something other than "
        "the training step[, or the program pads every batch to {padded:,}]."
    )

for _key, _reason in _MISSING_REASONS.items():
    SENTENCES[f"direction missing: sweep, {_key}"] = (
        "[is_all?The backward pass of every layer][is_first?The backward pass of the first "
        "layer, {layers:list},][is_other?{direction} of {layers:list}][more? and others] has no "
        "kernels at batch {batch}: "
        + _reason
        + ". The estimate is {estimated:flops}, {share:percent} of the step.[ Kernels outside of "
        "layers executed {executed:flops}, {executed_share:percent} of the estimate.]"
    )

_WINDOW_FIX = (
    "Check that the program uses its batch size. Set the capture range around the training step, "
    "not around a test or warm-up with another "
    "batch size[!ours?; 'perfctl ncu' does this]."
)

_TRANSFORMED_FIX = (
    "Nothing is missing. If the executed FLOPs should match the estimate, set "
    "torch.backends.cudnn.deterministic = True, which lets cuDNN choose among fewer algorithms."
)

FIXES = {
    "wrong formula": "Repeat the command with the right formula: it replaces this one.",
    "wrong window": _WINDOW_FIX,
    "FADD alone": "Collect {metrics}: FLOPs = FADD + FMUL + 2 FFMA" + _ASKS,
    "counter not collected: at all": "Collect {metrics:list}" + _ASKS,
    "counter not collected: for some kernels": "Collect {metrics:list} for every launch" + _ASKS,
    "counter not collected: in part": "Collect {metrics:list}" + _ASKS,
    "counter not collected: for some launches": "Profile again without excluding launches "
    "(--launch-count)" + _ASKS,
    "counter not collected: left out": "Profile the complete run again: {reason}.",
    "counter not collected: no value": "A newer ncu may support them on this chip" + _ASKS,
    "nothing counted": "[outside?Look for its kernels among those outside of "
    "layers.][!outside?Check the names of its kernels.]",
    "direction missing: left out": "Profile the complete run again: {left_out}.",
    "direction missing: inference": "Profile training, or use the forward rows only: inference "
    "has no backward pass.",
    "direction missing: did not run": "Check whether the recording contains training or "
    "evaluation, which layers are frozen, and where the capture ends.",
    "direction missing: in backward": "Autograd launches backward from a separate thread: annotate "
    "that thread[!ours? ('perfctl ncu' does this)], or use emit_nvtx.",
    "direction missing: outside": "Look for its kernels among those outside of layers.",
    "3xTF32": "Expected: three GEMMs keep the precision of fp32 on tensor cores.",
    "2:4 sparsity": "Expected: two of four weights are zero, and the estimate includes all four.",
    "constant moves": "The executed FLOPs do not include them; leave them out of your own sums "
    "too.",
    "several algorithms": "Warm up outside of the profiled steps[products?: torch.compile with "
    "max-autotune and TunableOp try kernels in the first step of each shape][!products?, or turn "
    "torch.backends.cudnn.benchmark off: it tries algorithms in the first step of each shape].",
    "Winograd": _TRANSFORMED_FIX,
    "FFT": _TRANSFORMED_FIX,
    "tile padding": "Use sizes (channels, batch, features) that are multiples of the tile, or "
    "accept the overhead.",
    "persistent RNN": "Nothing is missing. Larger batches fill its groups; perfctl cannot "
    "predict their FLOPs.",
    "extra calls": "Check the number of profiled steps, gradient accumulation, and how often the "
    "layer is called.",
    "causal mask": "Expected: the estimate includes the complete square.",
    "groups run as dense": "Use a layout or data type for which cuDNN has a grouped kernel.",
    "other size": "Check the sizes with which the layer ran.",
    "skipped border": "Expected: the estimate includes every tap of every output.",
    "swapped layers": "Check the ranges and names of {layer} and {other_layer}.",
    "shared kernel": "Compare the sum of {name} and {others:list}: fused layers share a kernel.",
    "shared kernel: within another kernel": "Compare the sum of {owner} and {name}.",
    "gradient missing": "Look for it among the kernels outside of layers, or check whether the "
    "step needs that gradient.",
    "needless gradient": "Check requires_grad of the network's input: ordinary training does not "
    "use that gradient.",
    "zeros inserted": "Expected for this kernel: the estimate does not include multiplications "
    "by inserted zeros.",
    "recomputation": "Activation checkpointing recomputes the forward pass to save memory. "
    "Without it, the backward pass computes only the gradients.",
    "split-K": "Expected: split-K adds up partial sums. Larger batches avoid it.",
    "layout and epilogue": "The estimate includes multiply-adds only; see its elementwise column "
    "for bias additions and activations.",
    "whole step": "Check the batch size of the run, the number of profiled steps, gradient "
    "accumulation, and the number of ranks.",
    "other GPU": "Time all parts on one GPU ('nvidia-smi -L' lists the GPUs). Until then, "
    "compare times only within a part.",
    "more work in less time": "Synchronize before each timestamp, or use 'perfctl nsys' or "
    "'perfctl torch', and run both on one GPU.",
    "hand estimate": "perfctl estimate {workload} --batch {batch} --layer {layer} --check {value}",
    "algorithm switch": "Compare batch sizes on both sides of the change only by time per "
    "sample, because their executed FLOPs differ by algorithm.",
    "algorithm switch: same FLOPs": "Compare times on both sides of the change per sample.",
    "time does not follow": "Time kernels with 'perfctl nsys' or 'perfctl torch', or synchronize "
    "before each timestamp.",
    "time does not follow: kernels": _WINDOW_FIX,
}
"""Rule, or "rule: variant" -> what to do."""

for _rule in ("TF32", "tensor cores"):
    FIXES |= {f"{_rule}: {key}": text for key, text in _TENSOR_FIXES.items()}

_GRADIENTS = {
    "grad_input": "the gradient of its input",
    "grad_weight": "the gradient of its weight",
}

_WORDS = {"winograd": "Winograd", "fft": "FFT", "gemm": "GEMM"}

_STYLES: Mapping[str, Callable[[Any], str]] = {
    "times": format_ratio,
    "percent": format_share,
    "time": format_time,
    "flops": lambda flops: f"{format_with_si_prefix(flops)}FLOP",
    "number": lambda number: format_with_si_prefix(number).strip(),
    "gradient": _GRADIENTS.__getitem__,
    "list": ", ".join,
    "and": lambda parts: " and ".join([*filter(None, [", ".join(parts[:-1])]), parts[-1]]),
    "rules": "; ".join,
    "method": lambda method: re.sub(
        r"^winograd|\b(?:fft|gemm)\b", lambda word: _WORDS[word[0]], method
    ),
    "and no": " and no ".join,
}
"""Format of a template's field -> text of the fact."""

_OPTIONAL = re.compile(r"\[(?:(!?)(\w+)\?)?([^][]*)\]")

_FIELD = re.compile(r"\{(\w+)")


class _FactFormatter(Formatter):
    """A formatter that knows the styles of facts."""

    def format_field(self, value: Any, style: str) -> str:
        """Return a fact in its style, or by Python's format."""
        return _STYLES[style](value) if style in _STYLES else str(format(value, style))


def fill_cause_template(templates: Mapping[str, str], cause: Cause, variant: str) -> str:
    facts = {
        "factor": cause.factor,
        "row": cause.row,
        "ours": cause.ours,
        "possible": cause.confidence == "plausible",
        "likely": cause.confidence == "likely",
        **cause.facts,
    }

    def keep_if_facts_known(match: re.Match[str]) -> str:
        negated, name, text = match.groups()
        needed = all(facts.get(name) for name in ([name] if name else _FIELD.findall(text)))
        return str(text) if needed != bool(negated) else ""

    template = templates.get(f"{cause.rule}: {variant}") or templates[cause.rule]
    return _FactFormatter().vformat(_OPTIONAL.sub(keep_if_facts_known, template), (), facts)
