"""Sheets for a class: numbers follow from the name, and marks from the dimensions."""

import re
from itertools import product

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.exercise import (
    TOPICS,
    GpuPeaks,
    RecordedRow,
    format_exercise_sheet,
    generate_student_exercise,
    mark_answers,
    parse_filled_sheet,
)
from tests.sample import draws

pytest.importorskip("torch")
V100 = GpuPeaks("V100", 15.7e12, 900e9)


def fill(exercise, answers):
    """Return the sheet with answers, as a student leaves it."""
    text = format_exercise_sheet(exercise)
    for number, answer in answers.items():
        text = re.sub(rf"(?m)^(\| {number} \|.*\|)  \|$", rf"\1 {answer} |", text)
    return text


def marks_of(exercise, answers):
    filled = parse_filled_sheet(fill(exercise, answers))
    assert (filled.name, filled.topic) == (exercise.name, exercise.topic)
    again = generate_student_exercise(filled.name, filled.topic, V100)
    return [one.mark for one in mark_answers(again, filled.answers)]


def spoil(number, way):
    """Return a wrong value: another factor, or a slip of the pen, that no unit explains."""
    value = int(re.sub(r"\D", "", number))
    if way == 0:
        return str(3 * value)
    if way == 1:
        return str(value + 7)
    return f"{7 * value / 5:.4g}"


@pytest.mark.parametrize("topic", TOPICS)
def test_drawn_sheets_are_marked_right_by_construction(topic):
    drawn = [
        generate_student_exercise(f"student {number}", topic, V100)
        for number in range(draws(40, 10))
    ]
    assert len({exercise.task for exercise in drawn}) == len(drawn)
    for number, exercise in enumerate(drawn):
        solutions = {at: one.solution for at, one in enumerate(exercise.questions, 1)}
        assert set(marks_of(exercise, solutions)) == {"right"}
        counts = {at for at, one in enumerate(exercise.questions, 1) if one.facts or one.figures}
        wrong = {at: spoil(solutions[at], number % 3) for at in counts}
        marks = marks_of(exercise, wrong)
        assert {marks[at - 1] for at in counts} == {"wrong"}, (exercise.task, wrong)
        assert {one for at, one in enumerate(marks, 1) if at not in counts} <= {"missing"}


def test_the_figures_of_a_convolution_follow_from_its_dimensions():
    exercise = generate_student_exercise("Ada Lovelace", "conv", V100)
    ins, outs, kernel, stride, padding, batch, size = map(
        int,
        re.findall(
            r"has (\d+) input channels, (\d+) output channels, a (\d+) x \d+ kernel, stride (\d+), "
            r"padding (\d+) and \w+ bias. Its input has (\d+) samples of (\d+) x",
            exercise.task,
        )[0],
    )
    side = (size + 2 * padding - kernel) // stride + 1
    macs = batch * side**2 * outs * ins * kernel**2
    parameters = outs * ins * kernel**2 + outs * ("a bias" in exercise.task)
    moved = 4 * (batch * ins * size**2 + parameters + batch * outs * side**2)
    bound = "compute" if 2 * macs / moved > 15.7e12 / 900e9 else "memory"
    assert [one.solution for one in exercise.questions] == [
        f"{batch} x {outs} x {side} x {side}",
        f"{macs:,} MAC",
        f"{parameters:,} values",
        f"{2 * macs:,} FLOP",
        f"{2 * macs:,} FLOP",
        f"{moved:,} B",
        f"{2 * macs / moved:.4g}",
        bound,
    ]
    for answer, expected in (
        (str(macs), "right"),
        (f"{2 * macs}", "other unit"),
        (f"{macs / 1e6:.2f} M", "right"),
        (f"{2 * macs / 1e9:.3g} GFLOP", "other unit"),
        (str(macs // batch), "wrong"),
        ("many", "wrong"),
        ("", "missing"),
    ):
        assert marks_of(exercise, {2: answer})[1] == expected, answer
    (batch_left_out,) = (
        one for one in mark_answers(exercise, {2: str(macs // batch)}) if one.answer
    )
    assert f"batch of {batch} left out" in batch_left_out.comment
    assert marks_of(exercise, {6: f"{moved / 1024:.2f}"})[5] == "other unit"
    assert marks_of(exercise, {6: f"{moved / 1024:.2f} KiB"})[5] == "right"


def test_one_student_has_one_sheet_and_it_holds_no_solution():
    for topic, names in product(TOPICS, [("Ada  Lovelace", "ada lovelace", "Alan Turing")]):
        first, same, other = (generate_student_exercise(name, topic, V100) for name in names)
        assert first.task == same.task != other.task
        text = format_exercise_sheet(first)
        for question in first.questions:
            assert question.unit == "word" or question.solution not in text.replace(first.task, "")
    for name, topic in (("", "conv"), ("Ada\nAlan", "conv"), ("Ada", "poetry")):
        with pytest.raises(UsageError):
            generate_student_exercise(name, topic)
    with pytest.raises(ValueError, match="not a sheet"):
        parse_filled_sheet("# A letter\n\nName: Ada\n")


def test_the_cause_of_a_recorded_row_is_one_of_several_letters():
    recorded = RecordedRow("conv2", "Recorded: conv2.", ("tile padding", "Winograd", "FFT"))
    exercise = generate_student_exercise("Ada", "linear", V100, recorded)
    *_, question = exercise.questions
    assert f"{question.solution}: tile padding" in question.text
    number = len(exercise.questions)
    for letter in "abc":
        *_, one = mark_answers(exercise, {number: letter})
        assert (one.mark == "right") == (letter.upper() == question.solution)
