"""The prices of perfctl predict from the command line's side."""

import re

import pytest

HEAD = "provider,instance,gpu,count,on_demand_usd_per_hour,spot_usd_per_hour,region,date,source\n"
MINE = f"{HEAD}Basement,rack,T4,2,0.36,,home,2026-11-20,invoice\n"


def unbroken(text):
    """A text that may hold a path longer than a line."""
    return "".join(text.split())


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "perfctl" / "prices.csv"


def test_an_offer_without_a_known_date_is_in_no_prediction_unless_it_is_asked_for(perfctl):
    typed = "predict mlp:depth=2 --batch 8 --dataset-size 1000 --device GH200 --frontier --json"
    without, included = (perfctl(f"{typed} {more}").json for more in ("", "--undated"))
    assert without["batches"][0]["offers"] == []
    assert any(
        "no cost: perfctl ignores offers with an undated or promotional price (1 of" in note
        for note in without["notes"]
    )
    assert [offer["uncertain"] for offer in included["batches"][0]["offers"]] == ["undated"]
    assert not any(choice["uncertain"] for choice in without["frontier"]["choices"])
    assert included["frontier"]["compared"] > without["frontier"]["compared"]


def test_the_environment_may_say_where_the_own_table_is(perfctl, tmp_path, monkeypatch, config):
    mine = tmp_path / "elsewhere" / "table.csv"
    monkeypatch.setenv("PERFCTL_PRICES", str(mine))
    missing = perfctl("predict --list-prices")
    assert missing.code == 1 and f"PERFCTL_PRICES: {mine} not found" in missing.err
    (tmp_path / "mine.csv").write_text(MINE)
    assert f"Wrote{mine}(1offer)" in unbroken(perfctl("predict --use-prices mine.csv").out)
    assert [
        offer["provider"] for offer in perfctl("predict --list-prices --json").json["prices"]
    ] == ["Basement"]
    refused = perfctl("predict --reset-prices")
    assert refused.code == 2 and mine.exists(), "a file that the user named is not removed"
    assert not config.exists()


def test_an_own_table_takes_the_place_of_the_other_until_it_is_reset(perfctl, tmp_path, config):
    (tmp_path / "mine.csv").write_text(MINE)
    said = perfctl("predict --use-prices mine.csv")
    assert f"Wrote{config}(1offer)" in unbroken(said.out)
    (offer,) = perfctl("predict --list-prices --json").json["prices"]
    assert (offer["provider"], offer["count"], offer["spot_usd_per_hour"]) == ("Basement", 2, None)
    assert unbroken(perfctl("predict --reset-prices").out) == f"Removed{config}"
    assert len(perfctl("predict --list-prices --json").json["prices"]) > 40
    assert "No price table of your own" in perfctl("predict --reset-prices").out


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (MINE.replace("0.36", "free").encode(), "bad.csv, line 2: on_demand_usd_per_hour 'free'"),
        (b"\xff", "bad.csv: not UTF-8 (byte 0)"),
    ],
)
def test_a_wrong_table_is_one_line_with_its_place_and_the_one_before_stays(
    perfctl, tmp_path, config, content, reason
):
    (tmp_path / "mine.csv").write_text(MINE)
    assert perfctl("predict --use-prices mine.csv").code == 0
    (tmp_path / "bad.csv").write_bytes(content)
    found = perfctl("predict --use-prices bad.csv")
    assert (found.code, found.err.count("\n")) == (1, 1) and reason in found.err
    assert config.read_text() == MINE
    assert [path.name for path in config.parent.iterdir()] == ["prices.csv"]


def test_an_own_table_that_was_damaged_later_says_how_to_get_out(perfctl, config):
    config.parent.mkdir(parents=True)
    config.write_text("provider\n")
    perfctl("predict --list-prices").ends(1, "line 1", "perfctl predict --reset-prices")
    assert perfctl("predict --reset-prices").code == 0
    assert perfctl("predict --list-prices").code == 0


def test_an_update_says_which_offers_no_prediction_will_use(perfctl, tmp_path):
    (tmp_path / "mine.csv").write_text(MINE + MINE.partition("\n")[2].replace("T4", "A100 80 GB"))
    said = " ".join(perfctl("predict --use-prices mine.csv").ok().out.split())
    assert "no prediction uses 1 of 2 offers" in said and "A100 SXM4 80 GB" in said


def test_the_list_shows_every_offer_with_its_date_and_source_in_lines_that_fit(perfctl):
    said = perfctl("predict --list-prices").ok()
    found = perfctl("predict --list-prices --json").json["prices"]
    rows = [
        line
        for line in said.out.splitlines()
        if re.search(r"20\d\d-\d\d(-\d\d)?( \?)? \[\d\]", line)
    ]
    assert len(rows) == len(found)
    assert all(len(line) <= 80 for line in rows) and "…" not in said.out
    legend = {
        line.partition("] ")[2] for line in said.out.splitlines() if re.match(r"\[\d\] ", line)
    }
    assert legend == {offer["source"] for offer in found}
    undated = [offer for offer in found if "undated" in offer["source"]]
    assert undated and [offer for offer in found if offer["uncertain"]] == undated
    assert sum(" ? [" in line for line in rows) == len(undated)
