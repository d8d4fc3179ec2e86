"""Bench files: what is read from them, and what is said of a wrong one."""

from pathlib import Path

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.bench_file import (
    BenchSpec,
    expand_bench_into_points,
    read_bench_file,
    select_points_of_part,
)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "bench" / "grid.toml"


def written(tmp_path, text):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return path


def made(**said):
    families = said.pop("families", {"mlp": {"width": (8, 16), "depth": (2, 3)}})
    return expand_bench_into_points(BenchSpec(families=families, **said))  # type: ignore[arg-type]


def test_a_file_is_read_with_its_defaults(tmp_path):
    found = read_bench_file(
        written(
            tmp_path,
            """
            batches = [16, 4]
            [families.resnet]
            width = { from = 8, to = 24, step = 8 }
            depth = 10
            [families.mlp]
            batches = [64]
            """,
        )
    )

    assert found.families == {"resnet": {"width": (8, 16, 24), "depth": (10,)}, "mlp": {}}
    assert found.batches == (4, 16)
    assert found.own_batches == {"mlp": (64,)}
    assert (found.design, found.mode, found.precision) == ("latin", "train", "fp32")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = [", "is not TOML"),
        ("seed = 1", "no family was named"),
        ("[families.lenet]", "'lenet'"),
        ("[families.mlp]\nwidht = [1]", "families.mlp.widht: unknown parameter"),
        (
            "[families.mlp]\nwidth = [1.5]",
            r"families.mlp.width = \[1.5\]: expected `int \| str`",
        ),
        ("[families.mlp]\nwidth = []", r"width = \[\]: expected `array` of length >= 1"),
        ("[families.mlp]\nwidth = { from = 9, to = 8 }", "is not a range"),
        ("[families.mlp]\nwidth = { from = 1, to = 8, by = 2 }", "unknown field `by`"),
        ("[families.mlp]\nbatches = [0]", r"families.mlp.batches = \[0\]: expected `int` >= 1"),
        ("families = 3", "no family was named"),
        ("speed = 1\n[families.mlp]", "unknown key 'speed'"),
        ('design = "random"\n[families.mlp]', "design = 'random': invalid enum value"),
        ("samples = 0\n[families.mlp]", "samples = 0: expected `int` >= 1"),
        ("gflops = [4, 1]\n[families.mlp]", "must be the minimum and maximum"),
        ("within = 0\n[families.mlp]", "within = 0: expected `float` > 0"),
    ],
)
def test_a_wrong_file_is_named_with_the_key_and_its_value(tmp_path, text, said):
    path = written(tmp_path, text)

    with pytest.raises(UsageError, match=said) as error:
        read_bench_file(path)
    assert str(path) in error.value.message


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_bench_file(tmp_path / "none.toml")


def test_a_grid_has_every_combination_at_every_batch_size():
    found = made(design="grid", batches=(1, 2))

    assert len(found.models) == 2 * 2
    assert [point.batch for point in found.points] == [1, 2] * 4


def test_a_latin_hypercube_takes_each_parts_values_equally_often():
    values = tuple(range(1, 13))
    found = made(families={"mlp": {"depth": values, "width": (100,)}}, samples=12, batches=(1,))

    depths = sorted(
        dict(word.split("=") for word in model[4:].split(",")).get("depth", "3")
        for model in found.models
    )
    assert depths == sorted(map(str, values))


def test_the_same_file_gives_the_same_design_and_another_seed_another():
    wide = {"mlp": {"width": tuple(range(1, 500)), "depth": tuple(range(2, 40))}}

    assert made(families=wide, seed=1) == made(families=wide, seed=1)
    assert made(families=wide, seed=1).models != made(families=wide, seed=2).models


def test_networks_of_the_families_come_in_turn():
    found = made(
        families={"mlp": {"width": (8, 16)}, "vgg": {"width": (8, 16)}}, design="grid", batches=(1,)
    )

    assert [point.family for point in found.points] == ["mlp", "vgg", "mlp", "vgg"]


def test_what_cannot_be_is_named_and_skipped():
    found = made(families={"vgg": {"image": (16, 32)}}, design="grid", batches=(1,))

    assert found.models == ("vgg:image=32",)
    assert [one.model for one in found.skipped] == ["vgg:image=16"]
    assert "image=16 is too small: stage5.pool would pool 2x2 from 1x1" in found.skipped[0].reason


def test_a_file_of_which_nothing_can_be_is_refused():
    with pytest.raises(
        UsageError, match=r"the file has no network that perfctl can measure.*image=16 is too small"
    ):
        made(families={"vgg": {"image": (16,)}}, design="grid")


def test_a_training_step_is_three_times_the_forward_pass_and_limits_are_held():
    forward = 2 * (784 * 512 + 512 * 512 + 512 * 10)
    everything = made(families={"mlp": {}}, batches=(1, 10))
    assert [point.flops for point in everything.points] == [3 * forward, 30 * forward]

    some = made(families={"mlp": {}}, batches=(1, 10), gflops=(0.01, 1.0))
    assert [point.batch for point in some.points] == [10]
    assert (
        "mlp, batch 1: a step is 0.00401 GFLOP, but gflops allows 0.01 to 1"
        in some.skipped[0].reason
    )


def test_a_grid_without_end_is_refused_before_it_is_made():
    many = tuple(range(1, 200))
    with pytest.raises(UsageError, match="has 7,880,599 networks"):
        made(families={"mlp": {"width": many, "depth": many, "image": many}}, design="grid")


def test_the_parts_of_a_bench_are_all_of_it_and_share_no_network():
    points = made(design="grid", batches=(1, 2)).points
    parts = [select_points_of_part(points, number, 3) for number in (1, 2, 3)]

    assert sorted(map(str, points)) == sorted(str(point) for part in parts for point in part)
    models = [{point.model for point in part} for part in parts]
    assert sum(map(len, models)) == len(set().union(*models)) == 4


def test_the_example_has_networks_of_all_families():
    found = expand_bench_into_points(read_bench_file(EXAMPLE))

    assert {point.family for point in found.points} == {"vgg", "resnet", "inception", "mlp"}
