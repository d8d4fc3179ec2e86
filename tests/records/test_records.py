"""Percentiles, names of ranges, and batch sizes that a program did not use."""

import pytest

from perfctl.records.ranges import DIRECTIONS, RangeName, parse_range_name
from perfctl.records.report import pluralize_count
from perfctl.records.run import UnusedBatchSizes, find_ignored_batch_sizes
from perfctl.records.stats import compute_percentile, count_values_needed_for_percentile


@pytest.mark.parametrize(
    ("percent", "count", "above"),
    [
        (1, 1, 0),
        (49, 1, 0),
        (50, 1, 0),
        *((percent, count, 1) for percent, count in ((51, 3), (75, 4), (80, 5), (90, 10))),
        (95, 20, 1),
        (99, 100, 1),
    ],
)
def test_a_percentile_takes_so_many_values_that_one_lies_above_it(percent, count, above):
    assert count_values_needed_for_percentile(percent) == count
    values = [float(value) for value in range(1, count + 1)]
    assert compute_percentile(values[:-1], percent) is None
    rank = compute_percentile(values, percent)
    assert rank is not None
    assert sum(value > rank for value in values) == above


def test_a_percentile_is_the_nearest_rank():
    values = [10.0, 20.0, 30.0, 40.0, 50.0]
    assert [compute_percentile(values, percent) for percent in (20, 21, 40, 75, 80)] == [
        10.0,
        20.0,
        20.0,
        40.0,
        40.0,
    ]
    assert compute_percentile(values, 81) is None
    assert compute_percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert [
        compute_percentile([float(value) for value in range(200, 0, -1)], percent)
        for percent in (95, 99)
    ] == [
        190.0,
        198.0,
    ]
    assert compute_percentile([], 50) is None


# Names of ranges that perfctl writes are read back; other people's names say nothing


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_layer_and_its_direction_are_parted_at_the_last_colon(direction):
    assert parse_range_name(f"conv2:{direction}") == RangeName(layer="conv2", direction=direction)
    assert parse_range_name(f"block:0:{direction}") == RangeName(
        layer="block:0", direction=direction
    )


@pytest.mark.parametrize(
    ("name", "step", "phase"),
    [
        ("perfctl:step:0", 0, None),
        ("perfctl:step:3", 3, None),
        (f"perfctl:step:{'9' * 18}", 10**18 - 1, None),
        ("perfctl:phase:forward", None, "forward"),
        ("perfctl:phase:a:b", None, "a:b"),
    ],
)
def test_ranges_of_the_loop_say_a_step_or_a_phase(name, step, phase):
    assert parse_range_name(name) == RangeName(step=step, phase=phase)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "conv2",
        "forward",
        ":forward",
        "conv2:",
        "conv2:sideways",
        "Conv2d::forward",
        "conv2:Forward",
        "perfctl:window",
        "perfctl:step:",
        "perfctl:step:-1",
        "perfctl:step:x",
        f"perfctl:step:{'9' * 19}",
        "perfctl:phase:",
        "perfctl:conv2:forward",
        "perfctl:",
    ],
)
def test_all_other_names_say_nothing(name):
    assert parse_range_name(name) == RangeName()


# Batch sizes that a program did not use: expected from what its model received


@pytest.mark.parametrize(
    ("inputs", "unused"),
    [
        ([(64, None), (128, "64x32")], UnusedBatchSizes((128,), 64)),
        ([(16, "64x32"), (32, "64x32")], UnusedBatchSizes((16, 32), 64)),
        ([(48, "64x32")], UnusedBatchSizes((48,), 64)),
        ([(16, None), (32, None)], None),
        ([(16, "3136x768"), (32, "6272x768")], None),  # a row for each part of an image
        ([(16, "35x16x100"), (32, "35x32x100"), (35, None)], None),  # a recurrent network
        # two views of each image, or four steps of accumulation, or not used: all fit
        ([(16, "32x3x8x8")], UnusedBatchSizes((16,), 32, is_proven=False)),
        ([(64, "16x3x8x8")], UnusedBatchSizes((64,), 16, is_proven=False)),
        ([(16, "35x16x100")], None),  # a recurrent network has the batch second
        ([(None, "64x32"), (None, None)], None),
    ],
)
def test_the_same_input_at_two_batch_sizes_or_one_that_cannot_fit_proves_it(inputs, unused):
    assert find_ignored_batch_sizes(inputs) == unused


def test_the_sentence_names_all_sizes():
    end = "its model received 64 samples"
    assert str(UnusedBatchSizes((16, 32), 64)) == f"did not use the batch sizes 16, 32: {end}"
    doubt = UnusedBatchSizes((16,), 64, is_proven=False)
    assert str(doubt) == f"may not have used the batch size 16: {end}"


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "launch", "1 launch has"),
        (2, "launch", "2 launches have"),
        (1000, "row", "1,000 rows have"),
    ],
)
def test_a_count_of_one_has_a_singular_noun_and_verb(count, noun, text):
    assert pluralize_count(count, noun, "has", "have") == text
    assert pluralize_count(count, noun) == text.rpartition(" ")[0]
