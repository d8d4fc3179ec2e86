"""The SHA-256 by which a report is recognised when it comes again."""

import hashlib

import pytest

from perfctl.orchestrator.ingest.find import hash_file_or_folder


def test_of_a_file_its_content_counts_and_of_a_folder_names_and_contents(tmp_path):
    (tmp_path / "r.csv").write_bytes(b"one" * 100_000)
    assert hash_file_or_folder(tmp_path / "r.csv") == hashlib.sha256(b"one" * 100_000).hexdigest()
    folder = tmp_path / "dlprof"
    folder.mkdir()
    (folder / "b.csv").write_bytes(b"two")
    (folder / "a.csv").write_bytes(b"one")
    expected = hashlib.sha256(b"a.csv\0oneb.csv\0two").hexdigest()
    assert hash_file_or_folder(folder) == expected
    (folder / "b.csv").rename(folder / "c.csv")
    assert hash_file_or_folder(folder) != expected
    with pytest.raises(FileNotFoundError):
        hash_file_or_folder(tmp_path / "missing")
