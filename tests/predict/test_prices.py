"""The price table: what is in the one that comes along, and what is refused in one's own."""

import re
import runpy
from datetime import date
from importlib import resources
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.hardware.machines import find_boards
from perfctl.orchestrator.predict import prices as prices_module
from perfctl.orchestrator.predict.prices import (
    COLUMNS,
    PriceTableError,
    parse_price_table,
    select_ambiguous_offers,
    select_board_offers,
)
from perfctl.orchestrator.report.prices import warn_of_old_prices

HEAD = ",".join(COLUMNS)
ROW = "Mine,box,T4,1,0.50,0.20,eu-1,2026-11,invoice"


def table():
    return parse_price_table(
        resources.files("perfctl.templates").joinpath("prices.csv").read_text(encoding="utf-8")
    )


def test_every_price_that_comes_along_has_a_date_a_source_and_a_known_gpu():
    prices = table()
    assert len(prices) > 200
    assert len({price.provider for price in prices}) > 8
    for price in prices:
        assert re.fullmatch(r"\d{4}-\d\d(-\d\d)?", price.date)
        assert price.source
        assert price.boards
        assert price.on_demand is not None and 0.1 < price.on_demand / price.count < 20
        assert price.spot is None or 0 < price.spot < price.on_demand
    offers = [(price.provider, price.instance, price.gpu, price.count) for price in prices]
    assert len(set(offers)) == len(offers)


def test_a_price_has_the_date_of_the_page_that_published_it_not_that_of_a_commit():
    dates = {price.date for price in table() if "Full Stack" in price.source}
    assert dates == {"2023-10", "2024-02-08"}, (
        "the page says: updated October 30, 2023; one pull request is of 2024-02-08"
    )


def test_the_large_clouds_h100_is_there_and_no_board_has_an_offer_of_another_form():
    prices = table()
    (sxm,), (pcie,) = find_boards("H100 SXM5"), find_boards("H100 PCIe")
    assert {("AWS", "p5.48xlarge"), ("Oracle Cloud", "BM.GPU.H100.8")} <= {
        (price.provider, price.instance) for price in select_board_offers(prices, sxm)
    }
    assert {price.gpu for price in select_board_offers(prices, sxm)} == {"H100 SXM5"}
    assert {price.gpu for price in select_board_offers(prices, pcie)} == {"H100 PCIe"}
    assert (
        {price.gpu for price in select_ambiguous_offers(prices, sxm)}
        == {"H100 80 GB"}
        == {price.gpu for price in select_ambiguous_offers(prices, pcie)}
    )


def test_the_table_is_what_the_script_makes_of_the_public_file(shared, capsys):
    script = Path(__file__).parents[2] / "scripts" / "accept" / "make_prices.py"
    runpy.run_path(str(script))["main"](
        str(shared / "datasets" / "cloud_prices" / "cloud-gpus.csv")
    )
    said = capsys.readouterr()
    assert said.out == resources.files("perfctl.templates").joinpath("prices.csv").read_text(
        encoding="utf-8"
    )
    left_out = [int(line.split()[0]) for line in said.err.splitlines() if "left out" in line]
    kept = int(said.err.splitlines()[-1].split()[0])
    assert kept + sum(left_out) == 257 and kept > 200


@pytest.mark.parametrize(
    ("day", "today", "old"),
    [
        ("2025-11-22", date(2026, 11, 23), False),
        ("2025-11-21", date(2026, 11, 23), True),
        ("2025-11", date(2026, 11, 23), False),  # a month counts to its end
        ("2025-10", date(2026, 11, 23), True),
        ("2027-01", date(2026, 11, 23), False),
    ],
)
def test_a_price_is_old_after_a_year(day, today, old, monkeypatch):
    (price,) = parse_price_table(f"{HEAD}\n{ROW.replace('2026-11', day)}\n")
    monkeypatch.setattr(prices_module, "get_today", lambda: today)
    assert price.is_old is old
    assert bool(warn_of_old_prices([price])) is old


def test_a_row_is_read_with_empty_cells_as_unknown():
    (price,) = parse_price_table(f"{HEAD}\nMine,,T4,2,,0.20,,2026-11-05,\n")
    assert (price.provider, price.instance, price.count) == ("Mine", None, 2)
    assert (price.date, price.on_demand, price.spot) == ("2026-11-05", None, 0.20)


def test_columns_in_another_order_and_others_beside_them_do_no_harm():
    (price,) = parse_price_table(
        "\ufeffnote,"
        + ",".join(reversed(COLUMNS))
        + "\nhello,"
        + ",".join(reversed(ROW.split(",")))
    )
    assert (price.provider, price.gpu, price.on_demand, price.region) == ("Mine", "T4", 0.5, "eu-1")


def test_an_offer_whose_form_is_not_stated_prices_no_board_but_is_known_to_be_there():
    prices = parse_price_table(
        f"{HEAD}\nMine,box,A100 80 GB,1,2.00,,,2026-11,me\nMine,box,T4,1,0.50,,,2026-11,me\n"
    )
    for name in ("A100 SXM4 80 GB", "A100 PCIe 80 GB"):
        assert select_board_offers(prices, find_boards(name)[0]) == ()
        assert select_ambiguous_offers(prices, find_boards(name)[0]) == prices[:1]
    assert select_ambiguous_offers(prices, find_boards("A100 SXM4 40 GB")[0]) == ()
    assert select_board_offers(prices, find_boards("T4")[0]) == prices[1:]


NO_PRICE = "Dollars per hour, such as 3.06; empty if not known"
MISSING = "Only instance, on_demand_usd_per_hour, spot_usd_per_hour, region, source may be"


def edited(old, new):
    """A table of one row, with a change in it."""
    return f"{HEAD}\n{ROW.replace(old, new)}\n"


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        (HEAD.replace("region,", "") + "\n", "column region missing", f"The header must be {HEAD}"),
        (
            HEAD.replace("spot_usd_per_hour,region,", "") + "\n",
            "columns spot_usd_per_hour, region missing",
            f"The header must be {HEAD}",
        ),
        ("", "columns provider, instance", None),
        (HEAD + "\n", "a header without prices", None),
        (edited("0.50", "cheap"), "on_demand_usd_per_hour 'cheap' is not a price", NO_PRICE),
        (edited("0.50", "-1"), "on_demand_usd_per_hour '-1' is not a price", NO_PRICE),
        (edited("0.50", "nan"), "on_demand_usd_per_hour 'nan' is not a price", NO_PRICE),
        (edited("0.50", "0"), "on_demand_usd_per_hour is 0", "Leave it empty if it is unknown"),
        (edited("0.50,0.20", ","), "no price", None),
        (edited("T4", "T5"), "gpu 'T5' is not in the table of devices", "Similar names: T4"),
        (edited("T4", "banana"), "gpu 'banana'", "For example A100 SXM 80GB"),
        (edited("T4,1", "T4,0"), "count '0' is not a number of GPUs", None),
        (edited("2026-11", "May"), "date 'May' is not a date", None),
        (edited("2026-11", "2026-02-30"), "date '2026-02-30' is not a date", None),
        (edited("2026-11", "2026-13"), "date '2026-13' is not a date", None),
        (edited("Mine", ""), "provider is empty", MISSING),
        (f"{HEAD}\n{ROW},more\n", "10 cells under 9 columns", None),
        (f'{HEAD}\n{ROW}\nMine,"box" x,T4,1,0.5,,,2026-11,me\n', "not CSV", None),
    ],
)
def test_a_wrong_table_is_refused_with_its_line_what_is_wrong_and_what_to_do(text, said, remedy):
    with pytest.raises(PriceTableError) as caught:
        parse_price_table(text)
    line = max(len(text.splitlines()), 1)
    assert str(caught.value).startswith(f"line {line}: {said}")
    assert caught.value.remedy
    assert remedy in (None, caught.value.remedy)


def test_one_gpu_and_a_price_below_a_cent_are_taken():
    (price,) = parse_price_table(f"{HEAD}\n{ROW.replace('0.50', '0.004')}\n")
    assert (price.count, price.on_demand, price.spot) == (1, 0.004, 0.2)
