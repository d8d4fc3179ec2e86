"""The guard: its comparison fails where a value differs, and says which expected changes are
not needed."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

GUARD = Path(__file__).resolve().parents[2] / "scripts/proof/guard"
VALUES = {"resnet / flops": 100, "resnet / seconds": 0.25, "unet / flops": 7}


def record(folder, **areas):
    folder.mkdir()
    for area, values in areas.items():
        with gzip.open(folder / f"{area}.json.gz", "wt", encoding="utf-8") as file:
            json.dump(values, file)
    return folder


def compare(*arguments):
    command = [sys.executable, str(GUARD / "guard.py"), "compare", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def before(tmp_path):
    return record(tmp_path / "before", estimate=VALUES)


def test_the_same_values_pass(before, tmp_path):
    after = record(tmp_path / "after", estimate=VALUES | {"resnet / seconds": 0.25 + 1e-13})
    assert compare(before, after) == (
        0,
        ["3 values compared, 0 different, 0 of 0 expected changes found"],
    )


def test_a_changed_a_lost_and_a_new_value_fail(before, tmp_path):
    after = record(
        tmp_path / "after",
        estimate={"resnet / flops": 101, "resnet / seconds": 0.25, "vgg / flops": 1},
    )
    status, lines = compare(before, after)
    assert status == 1
    assert lines[:3] == [
        "estimate / resnet / flops: 100 -> 101",
        "estimate / unet / flops: 7 -> (absent)",
        "estimate / vgg / flops: (absent) -> 1",
    ]


def test_an_area_that_was_not_recorded_fails(before, tmp_path):
    record(before.with_name("more"), causes={"seed 0 / padding": [3, 3, 0]})
    after = record(tmp_path / "after", estimate=VALUES)
    status, lines = compare(before, before.with_name("more"), after)
    assert (status, lines[0]) == (1, "causes: not recorded now")
    status, lines = compare(after, before.with_name("more"))
    assert (status, lines[:2]) == (1, ["causes: not recorded before", "estimate: not recorded now"])


def test_an_expected_change_passes_and_one_that_is_not_needed_is_reported(before, tmp_path):
    after = record(tmp_path / "after", estimate={"resnet / flops": 101, "resnet / seconds": 0.25})
    changes = tmp_path / "changes.tsv"
    changes.write_text(
        "# area / key, before, after, reason\n"
        "estimate / resnet / flops\t100\t101\tcorrected\n"
        "estimate / unet*\t*\t(absent)\tremoved\n"
        "estimate / resnet / seconds\t0.25\t0.5\tslower\n"
    )
    status, lines = compare(before, after, "--changes", changes)
    assert status == 0
    assert lines[0] == "not needed: estimate / resnet / seconds"
    assert lines[1].endswith("0 different, 2 of 3 expected changes found")


def test_an_expected_change_holds_for_its_values_only(before, tmp_path):
    after = record(tmp_path / "after", estimate=VALUES | {"resnet / flops": 99})
    changes = tmp_path / "changes.tsv"
    changes.write_text("estimate / resnet / flops\t100\t101\tcorrected\n")
    assert compare(before, after, "--changes", changes)[0] == 1


def test_a_renamed_key_keeps_its_value_and_two_keys_never_become_one(before, tmp_path):
    after = record(
        tmp_path / "after",
        estimate={key.replace("flops", "work"): value for key, value in VALUES.items()},
    )
    renames = tmp_path / "renames.tsv"
    renames.write_text("flops$\twork\n")
    assert compare(before, after, "--renames", renames)[0] == 0
    renames.write_text("flops$\twork\n^unet\tresnet\n")
    status, lines = compare(before, after, "--renames", renames)
    assert status == 1
    assert "estimate / resnet / work: two values are renamed to this key" in lines


def test_the_tables_of_the_repository_can_be_read(before):
    assert (
        compare(
            before,
            before,
            "--renames",
            GUARD / "renames.tsv",
            "--quick",
            "--changes",
            GUARD / "changes.tsv",
        )[0]
        == 0
    )
