"""Short kernel names: never the same for two kernels, and with what tells them apart."""

import csv
import json
import re
import time
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels.short_names import LONGEST, shorten_kernel_names_uniquely

DATA = Path(__file__).resolve().parents[2] / "data"
PUBLIC = list(
    csv.DictReader(
        (DATA / "names-algorithms" / "public.csv").read_text(encoding="utf-8").splitlines()
    )
)
KNOWN = [
    *(row["name"] for row in PUBLIC),
    *(
        row["name"]
        for row in json.loads(
            (DATA / "names-algorithms" / "names.json").read_text(encoding="utf-8")
        )
    ),
]
TILE = re.compile(r"\d+x\d+")


UNCUT = 10**6


def check(names):
    """What holds for the names of any page."""
    shown = shorten_kernel_names_uniquely(names)
    assert set(shown) == set(names)
    whole = shorten_kernel_names_uniquely(names, UNCUT)
    kernels = {short: whole[name] for name, short in shown.items()}
    for name, short in shown.items():
        assert short
        assert len(short) <= LONGEST, name
        assert "at::" not in short
        assert "void " not in short
        if "(" not in short.partition("<")[0] and not short.startswith("_Z"):
            assert kernels[short] == whole[name], (short, name)


def test_two_kernels_of_public_profiles_never_have_the_same_short_name():
    check(KNOWN)


@pytest.mark.parametrize(
    "row",
    [row for row in PUBLIC if TILE.fullmatch(row["tile"]) and row["tile"] in row["name"]],
    ids=lambda row: row["name"][:60],
)
def test_the_tile_of_a_kernel_stays(row):
    assert row["tile"] in shorten_kernel_names_uniquely(KNOWN)[row["name"]]


def test_functor_and_type_of_an_elementwise_kernel_stay():
    start = "void at::native::vectorized_elementwise_kernel<4, at::native::"
    end = ", at::detail::Array<char*, 3> >(int, T2, T3)"
    names = [
        f"{start}CUDAFunctor_add<float>{end}",
        f"{start}CUDAFunctor_add<c10::BFloat16>{end}",
        (
            f"{start}BinaryFunctor<float, float, float, "
            f"at::native::binary_internal::MulFunctor<float> >{end}"
        ),
        (
            f"{start}BinaryFunctor<float, float, float, "
            f"at::native::binary_internal::DivFunctor<float> >{end}"
        ),
    ]
    shown = list(shorten_kernel_names_uniquely(names).values())
    assert ["CUDAFunctor_add<float>" in one for one in shown] == [True, False, False, False]
    assert ["BFloat16" in one for one in shown] == [False, True, False, False]
    assert ["MulFunctor" in one for one in shown] == [False, False, True, False]
    assert ["DivFunctor" in one for one in shown] == [False, False, False, True]
    check(names)


def test_a_lambda_is_named_after_the_function_that_it_stands_in():
    name = (
        "void at::native::vectorized_elementwise_kernel<4, "
        "at::native::exp_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() "
        "const::{lambda()#2}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2> "
        ">(int)"
    )
    assert shorten_kernel_names_uniquely([name]) == {
        name: "vectorized_elementwise_kernel<4, exp_kernel_cuda{float}>"
    }


def test_the_spellings_of_two_tools_have_one_short_name():
    nsys = (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
        "at::detail::Array<char *, (int)1>>(int, T2, T3)"
    )
    kineto = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "at::detail::Array<char*, 1> >(int, at::native::FillFunctor<float>, "
        "at::detail::Array<char*, 1>)"
    )
    assert len(set(shorten_kernel_names_uniquely([nsys, kineto]).values())) == 1


def test_what_differs_in_the_middle_of_a_long_name_is_seen():
    both = [f"kernel_{'word_' * 20}{tile}_{'more_' * 20}end" for tile in ("128x64x8", "64x32x8")]
    shown = shorten_kernel_names_uniquely(both)
    assert "128x64x8" in shown[both[0]]
    assert "64x32x8" in shown[both[1]]


def test_the_numbers_alone_tell_variants_apart():
    names = [f"void reduce<{'float, ' * 30}{threads}, 4>(float*)" for threads in (128, 256, 512)]
    shown = shorten_kernel_names_uniquely(names)
    assert [
        str(threads) in shown[name] for threads, name in zip((128, 256, 512), names, strict=True)
    ] == [True] * 3


def test_overloads_keep_their_parameters():
    assert shorten_kernel_names_uniquely(["add(int*)", "add(float*)"]) == {
        "add(int*)": "add(int*)",
        "add(float*)": "add(float*)",
    }


def test_names_that_differ_in_nothing_that_fits_are_numbered():
    names = [f"{'a' * 80}{'b' * 80}{end}" for end in "xyz"]
    assert len(set(shorten_kernel_names_uniquely(names).values())) == 3
    check(names)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "<",
        ">",
        "(",
        "k<",
        "_Z",
        "_Z9",
        "void ",
        "()",
        "at::",
        "x" * 5000,
        "<<<>>>((",
        "🙂" * 100,
        "__",
    ],
    ids=lambda name: name[:9],
)
def test_a_name_of_any_form_is_shown(name):
    assert len(shorten_kernel_names_uniquely([name, "other"])[name]) <= LONGEST


def test_long_names_take_no_quadratic_time_and_stay_different():
    names = [f"_GLOBAL__N__{'a' * 60_000}{number}::kernel" for number in range(3)]
    began = time.process_time()
    assert len(set(shorten_kernel_names_uniquely(names).values())) == len(names)
    assert time.process_time() - began < 2


def test_kernels_that_differ_only_in_a_namespace_have_different_names():
    names = [f"void cutlass::device_kernel<dpsk::{part}::Kernel>(int)" for part in ("a", "b")]
    assert list(shorten_kernel_names_uniquely(names).values()) == [
        "device_kernel<a::Kernel>",
        "device_kernel<b::Kernel>",
    ]
    fill = [
        f"void fill<1, {array}<char*, 1>>(int)" for array in ("at::detail::Array", "std::array")
    ]
    assert len(set(shorten_kernel_names_uniquely(fill).values())) == 1
