"""JSON that is read at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.common import json as text_json
from perfctl.parsers.common.json import read_whole


def test_a_file_too_long_to_be_read_at_once_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert text_json.LIMIT == 64 * 1024 * 1024
    path = tmp_path / "record.json"
    path.write_text('{"steps": [1, 2, NaN]}'.replace(" ", "", 2))
    monkeypatch.setattr(text_json, "LIMIT", 20)
    assert read_whole(path, "workload", "Run it again") == {"steps": [1, 2, "NaN"]}, (
        "numbers that are none stay texts"
    )
    monkeypatch.setattr(text_json, "LIMIT", 19)
    with pytest.raises(ReportError, match=r"20 bytes of JSON exceed the limit\. Run it again"):
        read_whole(path, "workload", "Run it again")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"steps": [1, 2', "the JSON is incomplete"),
        (b"[" * 100_000, "the JSON is incomplete"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_to_do(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReportError, match=rf"record.json: .*{reason}.*Run it again") as caught:
        read_whole(path, "workload", "Run it again")
    assert caught.value.tool == "workload"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_json_is_read_in_its_encoding(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes('{"network": "plain"}'.encode(encoding))
    assert read_whole(path, "workload", "Run it again") == {"network": "plain"}
    path.write_bytes(b'{"network": "\xff"}')
    assert read_whole(path, "workload", "Run it again") == {"network": "\ufffd"}
