"""Exercises for a class: shapes drawn from a student's name, a sheet with blanks, and its marks.

The name alone decides the shapes, so that a sheet can be marked without a list of solutions. The
marks follow the same rules as ``perfctl estimate --check``.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from math import prod
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.session import estimate, require_torch, silence_driver_warning
from perfctl.orchestrator.estimate.sheets.layers import ManualCheckFacts
from perfctl.orchestrator.estimate.sheets.network import list_forward_and_backward_totals
from perfctl.orchestrator.estimate.sheets.sheet import (
    SheetFigure,
    build_layer_sheet,
    list_layers_with_operations,
)
from perfctl.orchestrator.estimate.sheets.slips import (
    diagnose_stated_value,
    explain_check_finding,
    parse_stated_value,
)

if TYPE_CHECKING:
    from torch import nn

    from perfctl.orchestrator.estimate.step import Estimate

BYTES_MOVED = "bytes moved"
ITEM = 4
"""Bytes of an fp32 value."""
BYTES = {"values": ITEM, "KiB": 1 << 10, "MiB": 1 << 20, "KB": 10**3, "MB": 10**6}
"""Other units of a number of bytes."""
RIDGE_MARGIN = 1.25
"""A bound is asked only where the intensity differs from the GPU's by at least this factor."""
_HEAD = re.compile(r"<!-- perfctl exercise 1; topic (\w+); gpu ([^;]*); row (.*) -->")
_NAME = re.compile(r"^Name: *(.+?) *$", re.MULTILINE)
_ROW = re.compile(r"^\| *(\d+) *\|(?:[^|]*)\| *([^|]*?) *\| *$", re.MULTILINE)


class GpuPeaks(NamedTuple):
    """The published peaks of a GPU."""

    name: str
    flops_per_s: float
    bytes_per_s: float


class RecordedRow(NamedTuple):
    """A row of a recorded run whose cause is asked for."""

    row: str
    """Which row, without its cause."""
    text: str
    causes: tuple[str, ...]
    """The right one first."""


@dataclass(frozen=True, slots=True)
class ExerciseQuestion:
    """One blank of a sheet."""

    text: str
    solution: str
    derivation: str = ""
    unit: str = ""
    """MAC, FLOP, values or B for a count; "shape", "ratio" or "word" for other answers."""
    quantity: str = ""
    facts: ManualCheckFacts | None = field(default=None, repr=False)
    figures: tuple[SheetFigure, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Exercise:
    """One student's task."""

    name: str
    topic: str
    task: str
    questions: tuple[ExerciseQuestion, ...]
    gpu: str = ""
    row: str = ""


class AnswerMark(NamedTuple):
    """The mark of one answer."""

    question: int
    answer: str
    mark: str
    """right, other unit, wrong or missing."""
    comment: str
    """What was probably forgotten; empty for a right answer."""


class DrawnNetwork(NamedTuple):
    """A network that was drawn: its text, its layers by name, and the shape of its input."""

    task: str
    layers: Mapping[str, nn.Module]
    shape: tuple[int, ...]


def _generate_conv_exercise(random_generator: Random) -> DrawnNetwork:
    from torch import nn

    ins, outs = (
        random_generator.choice((3, 8, 16, 24, 32)),
        random_generator.choice((12, 20, 40, 48, 96)),
    )
    kernel, stride, padding = (
        random_generator.choice((3, 5, 7)),
        random_generator.choice((1, 2)),
        random_generator.choice((0, 1)),
    )
    bias, batch = random_generator.random() < 0.5, random_generator.choice((8, 12, 16, 24, 32))
    size = stride * random_generator.randrange(10, 28) + kernel - 2 * padding
    task = (
        f"A convolution has {ins} input channels, {outs} output channels, a {kernel} x {kernel} "
        f"kernel, stride {stride}, padding {padding} and {'a' if bias else 'no'} bias. Its input "
        f"has {batch} samples of {size} x {size} values per channel."
    )
    layer = nn.Conv2d(ins, outs, kernel, stride, padding, bias=bias)
    return DrawnNetwork(task, {"layer": layer}, (batch, ins, size, size))


def _generate_linear_exercise(random_generator: Random) -> DrawnNetwork:
    from torch import nn

    ins, outs = random_generator.randrange(96, 900, 12), random_generator.randrange(50, 700, 10)
    bias, batch = random_generator.random() < 0.5, random_generator.choice((16, 24, 48, 64, 128))
    task = (
        f"A linear layer has {ins} inputs, {outs} outputs and {'a' if bias else 'no'} bias. The "
        f"batch has {batch} samples."
    )
    return DrawnNetwork(task, {"layer": nn.Linear(ins, outs, bias=bias)}, (batch, ins))


def _generate_attention_exercise(random_generator: Random) -> DrawnNetwork:
    heads, head = (
        random_generator.choice((2, 3, 4, 6, 8)),
        random_generator.choice((16, 24, 32, 48, 64)),
    )
    tokens, batch = random_generator.randrange(24, 200), random_generator.choice((2, 3, 4, 5, 6))
    width = heads * head
    task = (
        f"A self-attention layer (query, key, value and output projections with biases, no mask) "
        f"has a width of {width} in {heads} heads. The batch has {batch} sequences of {tokens} "
        "tokens."
    )
    return DrawnNetwork(
        task, {"layer": _build_self_attention(width, heads)}, (batch, tokens, width)
    )


def _build_self_attention(width: int, heads: int) -> nn.Module:
    from torch import nn

    class SelfAttention(nn.MultiheadAttention):
        def forward(self, data: Any) -> Any:  # type: ignore[override]
            return super().forward(data, data, data, need_weights=False)[0]

    return SelfAttention(width, heads, batch_first=True)


def _generate_lstm_exercise(random_generator: Random) -> DrawnNetwork:
    from torch import nn

    ins, hidden = random_generator.randrange(20, 120, 4), random_generator.randrange(32, 160, 8)
    steps, batch = random_generator.randrange(6, 40), random_generator.choice((4, 8, 16))
    task = (
        f"An LSTM with one layer has {ins} inputs, {hidden} hidden values and both bias vectors. "
        f"The batch has {batch} sequences of {steps} steps."
    )
    return DrawnNetwork(
        task, {"layer": nn.LSTM(ins, hidden, batch_first=True)}, (batch, steps, ins)
    )


def _generate_network_exercise(random_generator: Random) -> DrawnNetwork:
    from torch import nn

    ins, outs, classes = (
        random_generator.choice((1, 3)),
        random_generator.choice((8, 12, 16, 20)),
        random_generator.choice((5, 10)),
    )
    size, batch, hidden = (
        2 * random_generator.randrange(8, 17),
        random_generator.choice((8, 16, 32)),
        random_generator.randrange(48, 160),
    )
    task = (
        f"A network: 'conv', a 3 x 3 convolution with padding 1 and bias from {ins} to {outs} "
        "channels; ReLU; max pooling 2 x 2; flatten; 'fc1', a linear layer with bias to "
        f"{hidden} values; ReLU; 'fc2', a linear layer with bias to {classes} values. Its input "
        f"has {batch} samples of {ins} x {size} x {size} values."
    )
    flat = outs * (size // 2) ** 2
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(ins, outs, 3, padding=1),
        "relu": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(flat, hidden),
        "relu1": nn.ReLU(),
        "fc2": nn.Linear(hidden, classes),
    }
    return DrawnNetwork(task, layers, (batch, ins, size, size))


TOPICS: Mapping[str, Callable[[Random], DrawnNetwork]] = {
    "conv": _generate_conv_exercise,
    "linear": _generate_linear_exercise,
    "attention": _generate_attention_exercise,
    "rnn": _generate_lstm_exercise,
    "model": _generate_network_exercise,
}


def generate_student_exercise(
    student_name: str,
    topic: str,
    gpu_peaks: GpuPeaks | None = None,
    recorded_row: RecordedRow | None = None,
) -> Exercise:
    """Return the exercise of a student. ``gpu_peaks``: the GPU whose bound is asked for;
    ``recorded_row``: a row of a recorded run. Raises UsageError for another topic, ToolMissing
    without torch."""
    if topic not in TOPICS:
        raise UsageError(f"invalid value '{topic}' for `topic`", f"Choose {', '.join(TOPICS)}")
    if not student_name.strip() or len(student_name.splitlines()) > 1:
        raise UsageError("`name` must be one line", "The name decides the numbers of the sheet")
    require_torch()
    from torch import nn

    dice = create_random_for_student(student_name, topic)
    drawn = TOPICS[topic](dice)
    network = nn.Sequential(OrderedDict(drawn.layers))
    with silence_driver_warning():
        estimated = estimate(network, drawn.shape)
    questions = [*_build_exercise_questions(estimated, drawn, gpu_peaks)]
    if recorded_row is not None:
        causes = dice.sample(recorded_row.causes, len(recorded_row.causes))
        letters = dict(zip("ABCDEFG", causes, strict=False))
        listed = "; ".join(f"{letter}: {cause}" for letter, cause in letters.items())
        (solution,) = (key for key, cause in letters.items() if cause == recorded_row.causes[0])
        text = f"{recorded_row.text} Why? {listed}"
        questions.append(ExerciseQuestion(text, solution, recorded_row.causes[0], "word"))
    return Exercise(
        student_name.strip(),
        topic,
        drawn.task,
        tuple(questions),
        gpu_peaks.name if gpu_peaks else "",
        recorded_row.row if recorded_row else "",
    )


def create_random_for_student(student_name: str, topic: str) -> Random:
    """Return what draws the numbers of a student; spaces and capitals do not matter."""
    key = f"{topic}\n{' '.join(student_name.casefold().split())}"
    return Random(sha256(key.encode()).digest())  # noqa: S311  # nosec B311


def _build_exercise_questions(
    estimated: Estimate, drawn: DrawnNetwork, gpu_peaks: GpuPeaks | None
) -> Iterator[ExerciseQuestion]:
    outputs = {module.path: module.output for module in estimated.modules}
    paths = [path for path in list_layers_with_operations(estimated.ops) if path in drawn.layers]
    worked = [build_layer_sheet(estimated.ops, path, outputs[path]) for path in paths]
    heavy = [sheet for sheet in worked if sheet and sheet.facts]
    is_model = len(heavy) > 1
    for sheet in heavy:
        path = sheet.layer
        shape = " x ".join(map(str, outputs[path] or ()))
        of_layer = f" of '{path}'" if is_model else ""
        yield ExerciseQuestion(
            f"Output shape{of_layer}, for example 8 x 16 x 32", shape, "", "shape"
        )
        yield _build_figure_question(
            f"Multiply-adds of the forward pass{of_layer}",
            "forward",
            "MAC",
            sheet.facts,
            sheet.quantities,
        )
    model_figures = _list_network_figures(estimated, drawn.shape, outputs[""] or ())
    facts, figures = None, model_figures
    if not is_model:
        facts, figures = heavy[0].facts, (*model_figures, *heavy[0].quantities)
    yield _build_figure_question("Parameters", "parameters", "values", facts, figures)
    yield _build_figure_question("FLOPs of the forward pass", "forward", "FLOP", facts, figures)
    yield _build_figure_question(
        "FLOPs of the backward pass, if only parameters need gradients",
        "backward",
        "FLOP",
        facts,
        figures,
    )
    moved = (
        "input, parameters and output"
        if not is_model
        else "the input, all parameters and the last output"
    )
    yield _build_figure_question(
        f"Bytes in fp32 if {moved} move once", BYTES_MOVED, "B", None, figures
    )
    flops = next(
        figure.value
        for figure in model_figures
        if (figure.quantity, figure.unit) == ("forward", "FLOP")
    )
    size = next(figure.value for figure in model_figures if figure.quantity == BYTES_MOVED)
    intensity = flops / size
    text = f"{flops:,} FLOP / {size:,} B"
    yield ExerciseQuestion(
        "Arithmetic intensity of the forward pass in FLOP/B, with these bytes",
        f"{intensity:.4g}",
        text,
        "ratio",
    )
    ridge = gpu_peaks.flops_per_s / gpu_peaks.bytes_per_s if gpu_peaks else None
    if gpu_peaks and ridge and max(intensity / ridge, ridge / intensity) > RIDGE_MARGIN:
        peaks = (
            f"{gpu_peaks.flops_per_s / 1e12:.4g} TFLOP/s in fp32 and "
            f"{gpu_peaks.bytes_per_s / 1e9:.4g} GB/s"
        )
        bound = "compute" if intensity > ridge else "memory"
        yield ExerciseQuestion(
            f"Bound of the forward pass on {gpu_peaks.name} ({peaks}): compute or memory",
            bound,
            f"{intensity:.4g} FLOP/B against {ridge:.4g}",
            "word",
        )


def _build_figure_question(
    text: str,
    quantity: str,
    unit: str,
    facts: ManualCheckFacts | None,
    figures: Sequence[SheetFigure],
) -> ExerciseQuestion:
    """Return the question for one figure."""
    meant = next(item for item in figures if (item.quantity, item.unit) == (quantity, unit))
    return ExerciseQuestion(
        text, f"{meant.value:,} {unit}", meant.worked, unit, quantity, facts, tuple(figures)
    )


def _list_network_figures(
    estimated: Estimate, shape: Sequence[int], output: Sequence[int]
) -> tuple[SheetFigure, ...]:
    """Return the figures of the whole network."""
    parameters = sum(module.parameters for module in estimated.modules)
    sizes = {"input": prod(shape), "parameters": parameters, "output": prod(output)}
    moved = ITEM * sum(sizes.values())
    text = " + ".join(f"{size:,}" for size in sizes.values())
    return (
        SheetFigure("parameters", parameters, "values", f"{parameters:,} values"),
        SheetFigure(BYTES_MOVED, moved, "B", f"({text}) values x {ITEM} B = {moved:,} B"),
        SheetFigure(
            "bytes without the input", moved - ITEM * sizes["input"], "B", "parameters and output"
        ),
        *list_forward_and_backward_totals(estimated),
    )


def format_exercise_sheet(exercise: Exercise) -> str:
    """Return the sheet with blanks, in Markdown. It holds no solution."""
    rows = "".join(
        f"| {number} | {asked_question.text} |  |\n"
        for number, asked_question in enumerate(exercise.questions, 1)
    )
    facts = f"topic {exercise.topic}; gpu {exercise.gpu}; row {exercise.row}"
    paragraphs = (
        f"# Exercise: {exercise.topic}",
        f"Name: {exercise.name}",
        f"<!-- perfctl exercise 1; {facts} -->",
        exercise.task,
        "1 multiply-add = 2 FLOPs. Write each answer into the last column: 1358954496, 1.36 G, "
        "44.04 M or 1936 KiB.",
        f"| | question | answer |\n|---|---|---|\n{rows}",
    )
    return "\n\n".join(paragraphs)


class FilledSheet(NamedTuple):
    """What a sheet says: whose it is, and its answers by number."""

    name: str
    topic: str
    gpu: str
    row: str
    answers: Mapping[int, str]


def parse_filled_sheet(text: str) -> FilledSheet:
    """Read a sheet that was filled in. Raises ValueError if it is none."""
    head, name = _HEAD.search(text), _NAME.search(text)
    if head is None or name is None or head[1] not in TOPICS:
        raise ValueError("it is not a sheet of perfctl exercise")
    answers = {int(number): answer.strip() for number, answer in _ROW.findall(text)}
    return FilledSheet(name[1], head[1], head[2], head[3], answers)


def mark_answers(exercise: Exercise, answers: Mapping[int, str]) -> Iterator[AnswerMark]:
    """Yield the mark of each question."""
    for number, question in enumerate(exercise.questions, 1):
        answer = answers.get(number, "").strip("` ")
        yield AnswerMark(
            number, answer, *(_mark_answer(question, answer) if answer else ("missing", ""))
        )


def _mark_answer(question: ExerciseQuestion, answer: str) -> tuple[str, str]:
    """Return the mark and the comment."""
    correct = f"Correct: {question.solution}"
    if question.unit == "shape":
        sizes = [int(size) for size in re.findall(r"\d+", answer)]
        is_right = sizes == [int(size) for size in question.solution.split(" x ")]
        return ("right", "") if is_right else ("wrong", correct)
    if question.unit == "word":
        letters = re.sub(r"[^a-z]", "", answer.casefold())
        is_right = letters[: len(question.solution)] == question.solution.casefold()
        return ("right", "") if is_right else ("wrong", f"{correct} ({question.derivation})")
    try:
        stated = parse_stated_value(re.sub(r"(?i)\s*flops?/(b|byte)s?$", "", answer))
    except UsageError:
        return "wrong", f"perfctl cannot read this number. {correct}"
    if question.unit == "ratio":
        solution = float(question.solution)
        tolerance = max(float(stated.half_digit), solution / 1000)
        is_right = abs(float(stated.value) - solution) <= tolerance
        return ("right", "") if is_right else ("wrong", f"{correct} = {question.derivation}")
    units = (stated.unit,) if stated.unit else (question.unit, *({"MAC", "FLOP"} - {question.unit}))
    for unit in units if question.unit in ("MAC", "FLOP") or stated.unit else (question.unit,):
        expected = stated._replace(unit=unit, quantity=question.quantity)
        if diagnose_stated_value(expected, question.facts, question.figures).is_correct:
            if unit == question.unit:
                return "right", ""
            return "other unit", f"This is the value in {unit}. {correct}"
    expected = stated._replace(unit=stated.unit or question.unit, quantity=question.quantity)
    finding = diagnose_stated_value(expected, question.facts, question.figures)
    for name, size in BYTES.items() if question.unit == "B" and not stated.unit else ():
        if stated.equals_within_rounding(Fraction(finding.correct_value, size)):
            return "other unit", f"This is the value in {name}. {correct}"
    return "wrong", explain_check_finding(finding)
