"""Reports that nsys keeps for itself: read through whichever nsys is installed, or refused with what
the tool said, the version that wrote them, and what to do next."""

import gc
import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, sniff
from perfctl.parsers.nsys import rep as nsys_rep
from perfctl.parsers.nsys import sqlite
from perfctl.records.bulk import ColumnRecords, SqlKernels
from tests.launch.programs import wait_until
from tests.make.files import write
from tests.make.nsys_rep import END, MAGIC, STREAM, STREAM_WORDS, install
from tests.make.nsys_sqlite import NsysBuilder, training_step


def export_of(tmp_path):
    return training_step(NsysBuilder()).write(tmp_path / "export.sqlite")


def refuse(path):
    """Return why the report is refused."""
    with pytest.raises(ReportError) as caught:
        nsys_rep.parse(path)
    return caught.value


@pytest.mark.parametrize(
    ("name", "head", "taken"),
    [
        ("a.dat", b"x" * 36 + STREAM_WORDS, True),
        ("a.dat", b"x" * 37 + STREAM_WORDS, False),
        ("a.dat", MAGIC, True),
        ("a.dat", b"x" + MAGIC, False),
        ("a.sqlite", b"\x01", False),
        ("a.QDREP", b"\x01", True),
        ("a.qdstrm", b"\x01", True),
        ("a.nsys-rep", b"", False),
        ("a.nsys-rep", b"SQLite format 3\0", False),
        ("a.nsys-rep", b"version https://git-lfs.github.com/spec/v1\n", False),
        ("a.dat", STREAM, True),
        ("a.dat", b"\x01", False),
    ],
)
def test_the_first_64_bytes_or_the_suffix_say_what_it_is(tmp_path, name, head, taken):
    path = write(tmp_path / name, head)
    parser = sniff(path)
    assert (
        (parser is not None and parser.name == "nsys report") == nsys_rep.sniff(path, head) == taken
    )


def test_the_whole_command_and_the_records(tmp_path, report, fake_nsys, temporary):
    export = export_of(tmp_path)
    install(fake_nsys, f'printf "%s\\n" "$@" > {tmp_path}/argv; cp {export} "$5"\n')
    before = sorted(report.parent.iterdir())
    found = nsys_rep.parse(report)
    (folder,) = temporary.iterdir()
    assert (tmp_path / "argv").read_text().split("\n")[:-1] == [
        "export",
        "--type",
        "sqlite",
        "--output",
        f"{folder}/report.sqlite",
        f"{folder}/report.nsys-rep",
    ]
    assert found.path == report
    assert found.tool == "nsys"
    assert found.form == "nsys report, exported: nsys SQLite, schema 3.11.1"
    kernels = found.kernels
    direct = sqlite.parse(export)
    assert isinstance(kernels, SqlKernels)
    assert isinstance(found.ranges, ColumnRecords)
    assert [list(rows) for rows in (kernels, found.ranges, found.copies, found.samples)] == [
        list(rows) for rows in (direct.kernels, direct.ranges, direct.copies, direct.samples)
    ]
    assert sorted({*report.parent.iterdir()} - {tmp_path / "argv"}) == before
    del found
    gc.collect()
    assert len(list(kernels)) > 0  # the export is there as long as any of the records


def test_what_is_wrong_with_the_export_is_said_of_the_report(
    tmp_path, report, fake_nsys, temporary
):
    install(fake_nsys, f'cp {export_of(tmp_path)} "$5"\n')
    found = nsys_rep.parse(report)
    kernels = found.kernels
    assert isinstance(kernels, SqlKernels)
    kernels.path.write_bytes(b"no database any more" * 1000)
    for read in (lambda: list(kernels), lambda: list(found.copies)):
        with pytest.raises(ReportError) as raised:
            read()
        assert raised.value.path == report
        assert "damaged or truncated" in raised.value.reason


@pytest.mark.parametrize("place", ["bin", "bin/host-linux-x64", "opt/host-linux-x64"])
def test_a_stream_is_imported_first(tmp_path, fake_nsys, temporary, place):
    """By the importer on the PATH, beside nsys, or in the installation that a link to nsys
    leads to."""
    export = export_of(tmp_path)
    for folder in (
        tmp_path / "opt/target/bin",
        tmp_path / place,
        fake_nsys / "host-linux-a/QdstrmImporter",
    ):
        folder.mkdir(parents=True, exist_ok=True)
    install(tmp_path / "opt/target/bin", f'cp {export} "$5"\n')
    (fake_nsys / "nsys").symlink_to(tmp_path / "opt/target/bin/nsys")
    install(
        tmp_path / place,
        f'printf "%s\\n" "$@" > {tmp_path}/argv; echo report > "$4"\n',
        "QdstrmImporter",
    )
    found = nsys_rep.parse(write(tmp_path / "a.qdstrm", STREAM))
    (folder,) = temporary.iterdir()
    assert (tmp_path / "argv").read_text().split("\n")[:-1] == [
        "--input-file",
        f"{folder}/stream.qdstrm",
        "--output-file",
        f"{folder}/report.nsys-rep",
    ]
    assert found.form.startswith("nsys stream, exported: nsys SQLite")
    assert len(list(found.kernels)) == 5


def test_the_tool_works_in_the_private_folder_and_is_told_nothing(
    tmp_path, report, fake_nsys, temporary
):
    export = export_of(tmp_path)
    said = f'printf "%s\\n" "$TMPDIR" "$LC_ALL" "$(pwd -P)" "$(wc -c)" > {tmp_path}/said'
    install(fake_nsys, f'{said}; cp {export} "$5"\n')
    found = nsys_rep.parse(report)  # keeps the folder
    (folder,) = temporary.iterdir()
    assert (tmp_path / "said").read_text().split() == [str(folder), "C", str(folder.resolve()), "0"]
    del found


def test_a_report_that_is_gone_is_named_with_what_to_check(tmp_path, fake_nsys, temporary):
    install(fake_nsys, "exit 0\n")
    refused = refuse(tmp_path / "gone.nsys-rep")
    assert refused.reason == "it cannot be exported (No such file or directory)"
    assert refused.remedy == "Check its permissions and the free space in TMPDIR"


def test_an_export_that_is_interrupted_leaves_nothing(report, fake_nsys, temporary):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    install(fake_nsys, "sleep 0.3; kill -USR1 $PPID; sleep 60\n")
    try:
        with pytest.raises(KeyboardInterrupt):
            nsys_rep.parse(report)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("name", "head", "is_stream"),
    [
        ("a.QDSTRM", b"\x01", True),
        ("a.dat", b"x" * 36 + STREAM_WORDS, True),
        ("a.dat", b"x" * 37 + STREAM_WORDS, False),
    ],
)
def test_a_stream_without_an_importer_says_what_is_missing(
    tmp_path, fake_nsys, temporary, name, head, is_stream
):
    install(fake_nsys, "exit 0\n")
    no_importer = "it is a stream .* and the installed nsys has no QdstrmImporter"
    said = no_importer if is_stream else "nsys could not export it .exit code 0"
    with pytest.raises(ReportError, match=said):
        nsys_rep.parse(write(tmp_path / name, head))


def test_a_hanging_export_ends_with_all_it_started(
    report, fake_nsys, temporary, tmp_path, monkeypatch
):
    child, limit_s = tmp_path / "child", 1
    install(fake_nsys, f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; sleep 600\n")
    while not child.exists():  # until the limit lets it start something
        monkeypatch.setattr(nsys_rep, "TIMEOUT_S", limit_s)
        with pytest.raises(ReportError, match=f"within {limit_s} seconds"):
            nsys_rep.parse(report)
        limit_s *= 2
    wait_until(lambda: not _runs(int(child.read_text())))


def _runs(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    "rest", [b"", bytes(5000), random.Random(5).randbytes(5000)], ids=["nothing", "zeros", "noise"]
)
def test_the_installed_nsys_refuses_damage_in_one_sentence(tmp_path, temporary, rest):
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    with pytest.raises(ReportError, match="could not export"):
        nsys_rep.parse(write(tmp_path / "cut.nsys-rep", MAGIC + rest))
    assert [one.name for one in tmp_path.iterdir() if one.suffix] == ["cut.nsys-rep"]


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (STREAM + bytes(200) + b"2021.1.1.1-abcdef0", "2022.4.2.1"),
        (MAGIC + END, "2024.6.2.225"),
        (MAGIC + END + b"2025.1.1-1234567", "2025.1.1"),
        (MAGIC + END + bytes(65_400), "2024.6.2.225"),
        (MAGIC + END + bytes(65_600), None),
        (MAGIC + b"2021.3.2.4-02753", None),
        (MAGIC, None),
        (None, None),
    ],
)
def test_a_stream_says_at_its_beginning_and_a_report_near_its_end_who_wrote_it(
    tmp_path, fake_nsys, content, version
):
    """The last 65,536 bytes count, and in them the last version; a build number has six characters
    or more."""
    path = tmp_path / "a.nsys-rep"
    if content is not None:
        path.write_bytes(content)
    refused = refuse(path)
    by = f"it was written by nsys {version}" if version else "it is an nsys report"
    needed = f"nsys {version} or newer" if version else "an nsys at least as new as the report"
    assert refused.reason == f"{by}, and this machine has no nsys to read it"
    assert refused.remedy == (
        f"Run 'nsys export --type sqlite FILE' where {needed} is installed and pass the .sqlite "
        "file it writes"
    )


DAMAGED = "It may be truncated or damaged. Copy it again from the machine that recorded it"
NEWER = (
    "Run 'nsys export --type sqlite FILE' where an nsys at least as new as the report is installed "
    "and pass the .sqlite file it writes"
)


@pytest.mark.parametrize(
    ("script", "reason", "remedy"),
    [
        (
            "printf 'it begins\\nat 50%%\\rfailed  here \\r\\n\\n 100%%\\n'; exit 2",
            "nsys could not export it: failed  here",
            DAMAGED,
        ),
        ("printf '%0400d' 1; exit 1", "nsys could not export it: " + 300 * "0", DAMAGED),
        ("exit 3", "nsys could not export it (exit code 3)", DAMAGED),
        # it left a database
        ("echo x > $5; echo no magic; exit 1", "nsys could not export it: no magic", DAMAGED),
        ("exit 0", "nsys could not export it (exit code 0)", DAMAGED),
        (
            "echo ProtobufParseException; exit 1",
            ("it was written by a newer nsys, and the installed nsys cannot read newer reports"),
            NEWER,
        ),
    ],
)
def test_the_last_line_that_is_no_progress_says_why_it_was_refused(
    tmp_path, fake_nsys, temporary, script, reason, remedy
):
    path = write(tmp_path / "a.nsys-rep", MAGIC)
    install(fake_nsys, script + "\n")
    refused = refuse(path)
    assert (refused.path, refused.reason, refused.remedy) == (path, reason, remedy)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("Exportation error: Version number is invalid: 2024@6@3@225-24623", "2024.6.3"),
        ("ProtobufParseException", "2024.6.2.225"),
    ],
)
def test_a_newer_report_is_refused_with_the_version_it_needs(
    report, fake_nsys, temporary, said, version
):
    install(
        fake_nsys,
        '[ "$1" = --version ] && echo "NVIDIA Nsight Systems version 2022.4.2.1-df9881f" && exit '
        f'0\necho "{said}" >&2; exit 1\n',
    )
    refused = refuse(report)
    assert f"written by nsys {version}" in refused.reason
    assert "(2022.4.2)" in refused.reason
    assert f"nsys {version} or newer" in refused.remedy
    assert refused.path == report
