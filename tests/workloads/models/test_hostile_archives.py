"""Archives, tables and checkpoints that somebody else made: bombs are refused before they fill
memory or disk."""

import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import pytest

from perfctl.workloads.data import imagenet
from perfctl.workloads.data.imagenet import read_devkit, sort_archive_into_classes
from perfctl.workloads.data.matfile import MatError, read_matlab_structs
from perfctl.workloads.models.torchvision import read_checkpoint_tensors
from perfctl.workloads.spec import WorkloadError

KIT = imagenet.ImagenetDevKit(("n00000001",), ("n00000001",))
TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"
IMAGE = "ILSVRC2012_val_00000001.JPEG"


def header(name, size, kind=tarfile.REGTYPE):
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def zipped(*pieces):
    """A gzip stream, made piece by piece."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*map(packer.compress, pieces), packer.flush()])


def peak_mb(call):
    tracemalloc.start()
    try:
        with pytest.raises(WorkloadError) as raised:
            call()
        assert "\n" not in str(raised.value)
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_a_gigabyte_is_refused_unread(tmp_path, kind):
    bomb = tmp_path / "bomb.tar"
    bomb.write_bytes(header("x", 1 << 30, kind) + bytes(1 << 20))
    for call in (
        lambda: read_devkit(bomb),
        lambda: sort_archive_into_classes(bomb, KIT, tmp_path / "out"),
    ):
        assert peak_mb(call) < 20


def test_a_development_kit_of_gigabytes_is_refused_unread(tmp_path):
    bomb = tmp_path / "kit.tar.gz"
    bomb.write_bytes(zipped(header(TRUTH, 1 << 30)) + zipped(*[bytes(1 << 20)] * 8))
    assert peak_mb(lambda: read_devkit(bomb)) < 20


def test_an_archive_of_endless_members_is_refused(tmp_path, monkeypatch):
    many = tmp_path / "many.tar"
    many.write_bytes(header("x", 0) * 600)
    monkeypatch.setattr(imagenet, "_MOST_MEMBERS", 500)
    for call in (
        lambda: read_devkit(many),
        lambda: sort_archive_into_classes(many, KIT, tmp_path / "out"),
    ):
        with pytest.raises(WorkloadError, match="more than 500 members"):
            call()


def test_what_an_archive_unpacks_to_is_limited(tmp_path, monkeypatch):
    large = tmp_path / "large.tar"
    large.write_bytes(header("x", 5000) + bytes(5120) + bytes(1024))
    monkeypatch.setattr(imagenet, "_MOST_READ", 4999)
    with pytest.raises(WorkloadError, match="unpacks to more than"):
        read_devkit(large)


def test_an_image_too_large_to_be_one_is_ignored(tmp_path, monkeypatch):
    archive = tmp_path / "val.tar"
    archive.write_bytes(
        header(IMAGE, 600) + bytes(1024) + header(IMAGE, 5) + b"small" + bytes(507) + bytes(1024)
    )
    monkeypatch.setattr(imagenet, "_LARGEST_IMAGE", 599)
    done = sort_archive_into_classes(archive, KIT, tmp_path / "out")
    assert (done.written, done.ignored) == (1, [IMAGE])
    assert (tmp_path / "out" / "n00000001" / IMAGE).read_bytes() == b"small"


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_never_made(tmp_path, kind):
    member = tarfile.TarInfo(IMAGE)
    member.type, member.linkname = kind, "/etc/passwd"
    archive = tmp_path / "val.tar"
    archive.write_bytes(member.tobuf() + bytes(1024))
    with pytest.raises(WorkloadError, match="contains no ILSVRC2012_val"):
        sort_archive_into_classes(archive, KIT, tmp_path / "out")
    assert list((tmp_path / "out").rglob("*.JPEG")) == []


def element(kind, data):
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def table(dimensions, width, names, cells=b""):
    """A MAT-file with one array of structs called synsets."""
    parts = [
        element(6, bytes((2, 0, 0, 0, 0, 0, 0, 0))),
        element(5, struct.pack(f"<{len(dimensions)}i", *dimensions)),
        element(1, b"synsets"),
        element(5, struct.pack("<i", width)),
        element(1, names),
        cells,
    ]
    return b" " * 124 + b"\0\1IM" + element(14, b"".join(parts))


UNKNOWN_KIND = (
    element(6, b"\6" + bytes(7)) + element(5, b"\1\0\0\0") + element(1, b"x") + element(99, b"y")
)


@pytest.mark.parametrize(
    "content",
    [
        table((2**31 - 1, 2**31 - 1), 8, b""),
        table((2**31 - 1, 2**31 - 1), -8, b"a" * 8),
        table((2**31 - 1, 2**31 - 1), 8, b"a" * 8),
        table((1,), 8, b"a" * 8, element(14, UNKNOWN_KIND)),
        table((1,), 0, b"a" * 8),
    ],
)
def test_a_table_that_claims_what_is_not_there_is_an_error_at_once(content):
    with pytest.raises(MatError):
        read_matlab_structs(content, "synsets")


def test_a_table_that_unpacks_to_gigabytes_is_refused():
    ones = zlib.compressobj(9)
    packed = b"".join(ones.compress(bytes(64 << 20)) for _ in range(8)) + ones.flush()
    with pytest.raises(MatError):
        read_matlab_structs(b" " * 124 + b"\0\1IM" + element(15, packed), "synsets")


def test_a_checkpoint_that_unpacks_to_more_than_its_size_is_refused_unread(tmp_path):
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(4 << 20))
    with pytest.raises(WorkloadError, match="unpacks to 4,194,304 bytes"):
        read_checkpoint_tensors(bomb)
    whole, cut = bomb.read_bytes(), tmp_path / "cut.pt"
    cut.write_bytes(whole[:40] + whole[-60:])
    with pytest.raises(WorkloadError):
        read_checkpoint_tensors(cut)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x02.", b"\x80\x02a.", b"\x80\x02]q\x01h\x05.", b"\x80\x02}q\x00X\xff\xff\xff\x7f"],
)
def test_a_checkpoint_that_is_no_whole_pickle_is_one_line(tmp_path, content):
    file = tmp_path / "weights.pt"
    file.write_bytes(content)
    with pytest.raises(WorkloadError) as raised:
        read_checkpoint_tensors(file)
    assert "\n" not in str(raised.value)
