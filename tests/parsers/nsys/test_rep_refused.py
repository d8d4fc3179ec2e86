"""Reports that the nsys here cannot read: which nsys wrote them, what the tool said, and what to
do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.nsys import rep as nsys_rep
from tests.make.nsys_rep import END, MAGIC, STREAM, install


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
    tmp_path: Path, fake_nsys: Path, content: bytes | None, version: str | None
) -> None:
    """The last 65,536 bytes count, and in them the last version; a build number has six characters
    or more."""
    path = tmp_path / "a.nsys-rep"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        nsys_rep.parse(path)
    by = f"it was written by nsys {version}" if version else "it is an nsys report"
    needed = f"nsys {version} or newer" if version else "an nsys at least as new as the report"
    assert caught.value.reason == f"{by}, and this machine has no nsys to read it"
    assert caught.value.remedy == (
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
    tmp_path: Path, fake_nsys: Path, temporary: Path, script: str, reason: str, remedy: str
) -> None:
    path = tmp_path / "a.nsys-rep"
    path.write_bytes(MAGIC)
    install(fake_nsys, script + "\n")
    with pytest.raises(ReportError) as caught:
        nsys_rep.parse(path)
    assert (caught.value.path, caught.value.reason, caught.value.remedy) == (path, reason, remedy)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("Exportation error: Version number is invalid: 2024@6@3@225-24623", "2024.6.3"),
        ("ProtobufParseException", "2024.6.2.225"),
    ],
)
def test_a_newer_report_is_refused_with_the_version_it_needs(
    report: Path, fake_nsys: Path, temporary: Path, said: str, version: str
) -> None:
    install(
        fake_nsys,
        '[ "$1" = --version ] && echo "NVIDIA Nsight Systems version 2022.4.2.1-df9881f" && exit '
        f'0\necho "{said}" >&2; exit 1\n',
    )
    with pytest.raises(ReportError) as caught:
        nsys_rep.parse(report)
    assert f"written by nsys {version}" in caught.value.reason
    assert "(2022.4.2)" in caught.value.reason
    assert f"nsys {version} or newer" in caught.value.remedy
    assert caught.value.path == report
    assert list(temporary.iterdir()) == []
