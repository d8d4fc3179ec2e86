"""A scrubbed copy holds every measurement, and neither environments nor secrets nor names of
its maker."""

import bz2
import gzip
import sqlite3
import stat
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.commands.ingest import scrub
from perfctl.orchestrator.ingest import scrub as module
from perfctl.orchestrator.ingest.scrub import CHUNK, LONGEST, make_scrubbed_path
from perfctl.parsers import ReportError, parse
from tests.make.nsys_sqlite import GITHUB, PASSWORD, VALUES, with_environment
from tests.sample import sample

GENERATIONS = ["2020.3", "2022.1", "2024.2", "2026.1"]
BULK = ("kernels", "counters", "copies", "ranges", "operations", "samples")
ENVIRONMENT = (
    "MY_OWN=private-life\nSHELL=/bin/bash\nPATH=/opt/private/bin:/bin\nHOME=/home/jdoe17\n"
)
AS_JSON = '{"PATH": "/opt/private/bin", "HOME": "/home/jdoe17", "USER": "jdoe17"}'
STRINGS = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)"
LOG = b"HF_TOKEN=abcdefgh\n"


def measurements(report):
    single = ("devices", "environment", "gaps", "steps", "tool_version", "duration_ns")
    return {name: list(getattr(report, name)) for name in BULK} | {
        name: getattr(report, name) for name in single
    }


def make(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def column(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute(query)]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_copy_of_an_nsys_export_has_the_same_measurements_and_no_value_of_the_environment(
    generation, tmp_path
):
    original = with_environment(tmp_path / "r.sqlite", generation)
    content = original.read_bytes()
    assert all(value.encode() in content for value in (GITHUB, PASSWORD))
    done = scrub(original)
    assert [value for value in VALUES if value.encode() in done.path.read_bytes()] == []
    assert done.rows_removed["StringIds"] == 7
    assert measurements(parse(original))["kernels"]
    assert measurements(parse(original)) == measurements(parse(done.path))
    assert original.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.scrubbed.sqlite", "r.sqlite"]


def test_host_user_and_home_of_an_nsys_export_go_and_the_rest_of_a_path_stays(tmp_path):
    facts = {
        "META_DATA_EXPORT": {
            "EXPORT_HOST": "gpu-node17.cluster.example",
            "EXPORT_USER": "jdoe17",
            "EXPORT_SCHEMA_VERSION": "3.13.2",
        },
        "META_DATA_CAPTURE": {
            "PROCESS_0:USER_NAME": "jdoe17",
            "PROCESS_0:ENVIRONMENT_VARIABLE": "HOSTNAME=login-3",
            "PROCESS_0:ARGUMENT_0": "maple-41",
        },
        "TARGET_INFO_SYSTEM_ENV": {"CpuCores": "2", "Hostname": "gpu-node17"},
    }
    strings = {
        "/home/jdoe17/net/train.py": "/home/(removed)/net/train.py",
        "/scratch/jdoe17/data": "/scratch/(removed)/data",
        "gpu-node17:4711 and login-3": "(removed):4711 and (removed)",
        "gemm_jdoe17_kernel": "gemm_jdoe17_kernel",
        "USER=jdoe17": "(removed)",
        ENVIRONMENT: "(removed)",
    }
    path = make(tmp_path / "r.sqlite", STRINGS, "CREATE TABLE T (nameId INTEGER)")
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, rows in facts.items():
            connection.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows.items())
        for number, text in enumerate(strings):
            connection.execute("INSERT INTO StringIds VALUES (?, ?)", (number, text))
            connection.execute("INSERT INTO T VALUES (?)", (number,))
    done = scrub(path)
    assert column(done.path, "SELECT name FROM META_DATA_EXPORT") == ["EXPORT_SCHEMA_VERSION"]
    assert column(done.path, "SELECT name FROM META_DATA_CAPTURE") == []
    assert column(done.path, "SELECT name FROM TARGET_INFO_SYSTEM_ENV") == ["CpuCores"]
    assert column(done.path, "SELECT value FROM StringIds ORDER BY id") == list(strings.values())
    assert done.rows_removed == {
        "META_DATA_CAPTURE": 3,
        "META_DATA_EXPORT": 2,
        "TARGET_INFO_SYSTEM_ENV": 1,
    }
    assert done.replaced == {"environment": 2, "home folder": 1, "host": 2, "user": 1}
    raw = done.path.read_bytes()
    gone = (b"private-life", b"node17", b"login-3", b"/jdoe17", b"maple-41")
    assert [word for word in gone if word in raw] == []


@pytest.mark.parametrize(
    ("table", "is_kept"),
    [
        ("CREATE TABLE T (x, nameId)", True),
        ("CREATE TABLE T (x, shortName)", True),
        ("CREATE TABLE T (x,\n  odd INTEGER -- REFERENCES StringIds(id)\n)", True),
        ("CREATE TABLE T (x, correlationId)", False),
    ],
)
def test_a_string_stays_where_a_column_for_strings_names_it(table, is_kept, tmp_path):
    path = make(
        tmp_path / "r.sqlite",
        STRINGS,
        "INSERT INTO StringIds VALUES (1, 'first'), (2, 'second')",
        table,
        "INSERT INTO T VALUES (2, 1), (2, NULL), (2, '3')",
    )
    done = scrub(path)
    assert column(done.path, "SELECT value FROM StringIds") == (["first"] if is_kept else [])


@pytest.mark.parametrize(
    ("environment", "left"),
    [(ENVIRONMENT, "(removed)"), (AS_JSON, "{}"), (ENVIRONMENT.replace("\n", "\0"), "(removed)")],
)
def test_an_environment_goes_from_any_table_of_any_database(environment, left, tmp_path):
    path = tmp_path / "r.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE rocpd_string_0 (id INTEGER PRIMARY KEY, string UNIQUE)")
        connection.execute("INSERT INTO rocpd_string_0 VALUES (1, ?), (2, 'gemm')", (environment,))
    done = scrub(path)
    assert done.replaced == {"environment": 1}
    assert column(done.path, "SELECT string FROM rocpd_string_0 ORDER BY id") == [left, "gemm"]


def test_texts_and_bytes_of_every_table_lose_their_secret_and_nothing_else(tmp_path):
    path = make(
        tmp_path / "r.sqlite",
        'CREATE TABLE "odd ""name" (id TEXT PRIMARY KEY COLLATE NOCASE, "a ""b") WITHOUT ROWID',
        """INSERT INTO "odd ""name" VALUES ('a', 'X_TOKEN=a'), ('b', 'PATH and HOME'),
           ('c', CAST('see HF_TOKEN=abcdefgh' AS BLOB)), ('d', 123456789012), ('e', NULL),
           ('f', CAST(X'FFFE610063' || ' HF_TOKEN=abcdefgh' AS TEXT)), ('g', X'FF00FE')""",
        'CREATE TRIGGER t AFTER UPDATE ON "odd ""name" BEGIN DELETE FROM "odd ""name"; END',
    )
    done = scrub(path)
    query = 'SELECT CAST("a ""b" AS BLOB) FROM "odd ""name"'
    assert column(done.path, query) == [
        *(b"X_TOKEN=(removed)", b"PATH and HOME", b"see HF_TOKEN=(removed)", b"123456789012"),
        *(None, b"\xff\xfea\0c HF_TOKEN=(removed)", b"\xff\0\xfe"),
    ]
    kinds = column(done.path, 'SELECT typeof("a ""b") FROM "odd ""name"')
    assert kinds == ["text", "text", "blob", "integer", "null", "text", "blob"]
    assert column(done.path, "SELECT name FROM sqlite_master WHERE type = 'trigger'") == []


def test_a_log_loses_its_secrets_and_home_folders_and_nothing_else(tmp_path):
    log = tmp_path / "ncu.csv"
    rows = '"ID","Kernel Name"\r\n"0","gemm(int)"\r\n' * 20 + "\0\xff"
    log.write_bytes(
        f"DB_PASSWORD={PASSWORD}\r\nhttps://me:hunter2@host/x\r\nFile /home/jdoe17/x.py\n"
        f"C:\\Users\\Jane\\x, /Users/jane/x, /home/\n{rows}".encode("latin-1")
    )
    done = scrub(log)
    assert done.path.read_bytes().decode("latin-1") == (
        "DB_PASSWORD=(removed)\r\nhttps://me:(removed)@host/x\r\nFile /home/(removed)/x.py\n"
        f"C:\\Users\\(removed)\\x, /Users/(removed)/x, /home/\n{rows}"
    )
    assert (done.rows_removed, done.replaced) == ({}, {"home folder": 3, "secret": 2})


@pytest.mark.parametrize(
    ("coding", "is_zipped"),
    [("utf-8", False), ("utf-8", True), ("utf-16-le", False), ("utf-16-be", False)],
)
@pytest.mark.parametrize("before", ["DB_PASSWORD=", "see https://me:", " "])
@pytest.mark.parametrize("place", [0, 8])
def test_a_secret_is_whole_wherever_a_long_line_is_cut(coding, is_zipped, before, place, tmp_path):
    mark = "\ufeff" if "16" in coding else ""
    secret, after = ("hunter2", "@host") if "://" in before else (GITHUB, " é€😀")
    filler = "0,1,2,3," * (CHUNK // 7)
    head = mark + filler[: CHUNK - LONGEST - len(mark) - len(before) - place] + before
    content = (head + secret + after + filler).encode(coding)
    path = tmp_path / "r.log"
    path.write_bytes(gzip.compress(content, 1) if is_zipped else content)
    copy = scrub(path).path.read_bytes()
    copy = gzip.decompress(copy) if is_zipped else copy
    assert copy.decode(coding) == head + "(removed)" + after + filler


@pytest.mark.parametrize(
    "content", [b"a", b"abcde", "é".encode("utf-16"), gzip.compress(b"", mtime=0)]
)
def test_a_text_of_a_few_bytes_is_copied_as_it_is(content, tmp_path):
    path = tmp_path / "r.log"
    path.write_bytes(content)
    copy = scrub(path).path.read_bytes()
    assert (gzip.decompress(copy) == b"") if content.startswith(b"\x1f") else (copy == content)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("r.log", b"", "the file is empty. Check the path"),
        ("r.bin", b"x" * 511 + b"\0", "scrub the export: as SQLite, CSV or JSON"),
        ("r.nsys-rep", LOG, "scrub the export: nsys export --type sqlite REPORT"),
        ("r.ncu-rep", LOG, "scrub the export: ncu --import REPORT --csv --page raw > REPORT.csv"),
        ("r.gz", gzip.compress(LOG * 99, mtime=0)[:-9], "the gzip file is truncated or damaged"),
        ("r.tar.gz", gzip.compress(LOG, mtime=0), "an archive cannot be edited"),
        ("tar.gz", gzip.compress(LOG + bytes(600), mtime=0), "an archive cannot be edited"),
        (
            "r.json.gz",
            gzip.compress(gzip.compress(LOG, mtime=0), mtime=0),
            "an archive cannot be edited",
        ),
        ("r.json", bz2.compress(LOG), "an archive cannot be edited"),
        ("r.csv", "é\n".encode("utf-16") + b"x", "its text is damaged or truncated"),
        ("r.csv", b"\xfe\xff\xd8\x00\x00", "its text is damaged or truncated"),
    ],
)
def test_what_cannot_be_scrubbed_is_refused_with_the_way_out(name, content, said, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ReportError) as found:
        scrub(path)
    assert said in str(found.value)
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_a_database_that_is_cut_off_or_utf_16_is_refused_and_leaves_nothing(tmp_path):
    path = with_environment(tmp_path / "r.sqlite")
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(ReportError, match="damaged or truncated"):
        scrub(path)
    path.unlink()
    make(path, "PRAGMA encoding = 'UTF-16le'", STRINGS)
    with pytest.raises(ReportError, match=r"its texts are UTF-16le, not UTF-8"):
        scrub(path)
    assert [one.name for one in tmp_path.iterdir()] == ["r.sqlite"]


def test_a_copy_that_a_second_look_finds_anything_in_is_not_made(tmp_path, monkeypatch):
    path = tmp_path / "r.log"
    path.write_bytes(LOG)

    def leave_all(source, copy):
        copy.write_bytes(source.read_bytes())
        return {}, Counter(secret=1)

    monkeypatch.setattr(module, "_copy_scrubbed_text", leave_all)
    with pytest.raises(
        ReportError, match="the copy would still contain secret, so perfctl made no copy"
    ):
        scrub(path)
    assert [one.name for one in tmp_path.iterdir()] == ["r.log"]


def test_the_copy_may_be_read_by_those_who_may_read_the_report(tmp_path):
    for mode in (0o600, 0o640, 0o664):
        path, target = tmp_path / "r.log", tmp_path / "copy"
        path.write_bytes(LOG)
        path.chmod(mode)
        target.write_bytes(b"older, and longer than what comes in its place")
        scrub(path, target, force=True)
        assert target.read_bytes() == b"HF_TOKEN=(removed)\n"
        assert stat.S_IMODE(target.stat().st_mode) == mode


def test_every_real_export_keeps_its_measurements(reports, tmp_path):
    scrubbed = 0
    for original in sample(sorted((reports / "nsys" / "sqlite").glob("*.sqlite")), 3):
        try:
            before = measurements(parse(original))
        except ReportError:
            continue
        done = scrub(original, tmp_path / original.name)
        assert measurements(parse(done.path)) == before, original.name
        scrubbed += done.rows_removed.get("StringIds", 0) > 0  # one was made without unused strings
    assert scrubbed > 3


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        ("report.sqlite", "report.scrubbed.sqlite"),
        ("r.pt.trace.json.gz", "r.pt.trace.scrubbed.json.gz"),
        ("log", "log.scrubbed"),
    ],
)
def test_the_name_of_the_copy_keeps_its_endings(name, copy):
    assert make_scrubbed_path(Path("somewhere", name)) == Path("somewhere", copy)
