"""Batch sizes that a program did not use: expected from what its model received."""

from __future__ import annotations

import pytest

from perfctl.records.run import UnusedBatchSizes, find_unused_batch_sizes


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
def test_the_same_input_at_two_batch_sizes_or_one_that_cannot_fit_proves_it(
    inputs: list[tuple[int | None, str | None]], unused: UnusedBatchSizes | None
) -> None:
    assert find_unused_batch_sizes(inputs) == unused


def test_the_sentence_names_all_sizes() -> None:
    end = "its model received 64 samples"
    assert str(UnusedBatchSizes((16, 32), 64)) == f"did not use the batch sizes 16, 32: {end}"
    doubt = UnusedBatchSizes((16,), 64, is_proven=False)
    assert str(doubt) == f"may not have used the batch size 16: {end}"
