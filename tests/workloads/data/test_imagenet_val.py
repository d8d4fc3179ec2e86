"""A tiny archive and development kit of ImageNet's shape, made here: sorting, going on, and hostile
or damaged input."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from perfctl.workloads.data import imagenet, matfile
from perfctl.workloads.data.imagenet import (
    find_misplaced_images,
    read_devkit,
    sort_archive_into_classes,
    verify_md5_if_published,
)
from perfctl.workloads.data.matfile import MatError, read_matlab_structs
from perfctl.workloads.spec import WorkloadError

TABLE = Path(__file__).resolve().parents[2] / "data" / "imagenet-devkit"
TRUTH = (3, 1, 2, 1, 3, 1)
"""Class numbers of images 1 to 6."""
FOLDERS = {1: "n02119789", 2: "n02100735", 3: "n02096294"}


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_kit(folder, truth=None, meta=None):
    table = (TABLE / "meta.mat").read_bytes() if meta is None else meta
    lines = "".join(f"{number}\n" for number in TRUTH) if truth is None else truth
    top = "ILSVRC2012_devkit_t12/data"
    members = {
        f"{top}/ILSVRC2012_validation_ground_truth.txt": lines.encode(),
        f"{top}/meta.mat": table,
    }
    return write_tar(folder / "devkit.tar.gz", members, "w:gz")


def name(number):
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def write_archive(folder, numbers=(1, 2, 3, 4, 5, 6)):
    return write_tar(
        folder / "val.tar",
        {name(number): f"image {number}".encode() * number for number in numbers},
    )


@pytest.fixture
def out(tmp_path):
    return tmp_path / "sorted"


def test_each_image_goes_where_the_ground_truth_says(tmp_path, out):
    kit = read_devkit(write_kit(tmp_path))
    assert kit.classes == tuple(sorted(FOLDERS.values())), "inner nodes of the tree are no classes"
    done = sort_archive_into_classes(write_archive(tmp_path), kit, out)
    assert list(find_misplaced_images(out, kit)) == []
    assert (done.written, done.already, done.total, done.ignored) == (6, 0, 6, [])
    for number, class_number in enumerate(TRUTH, 1):
        assert (
            out / FOLDERS[class_number] / name(number)
        ).read_bytes() == f"image {number}".encode() * number
    assert sum(path.is_file() for path in out.glob("*/*")) == 6
    assert (out / "classes.txt").read_text().split() == sorted(FOLDERS.values())
    assert json.loads((out / "imagenet-val.json").read_text())["images"] == 6
    (out / FOLDERS[2] / name(1)).write_bytes(b"left by another sorting")
    assert list(find_misplaced_images(out, kit)) == [out / FOLDERS[2] / name(1)]


def test_it_goes_on_where_it_was_stopped_and_repairs_what_was_cut(tmp_path, out):
    archive, kit = write_archive(tmp_path), read_devkit(write_kit(tmp_path))

    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sort_archive_into_classes(archive, kit, out, stop)
    assert not (out / "classes.txt").exists()
    (out / FOLDERS[3] / name(1)).write_bytes(b"cut")
    done = sort_archive_into_classes(archive, kit, out)
    assert (done.written, done.already) == (4, 2)
    assert (out / FOLDERS[3] / name(1)).read_bytes() == b"image 1"


def test_an_archive_that_is_cut_off_keeps_what_was_whole(tmp_path, out):
    archive, kit = write_archive(tmp_path), read_devkit(write_kit(tmp_path))
    whole = archive.read_bytes()
    # a header and 512 bytes for the first, then 5 of 14 bytes of the second
    archive.write_bytes(whole[: 3 * 512 + 5])
    with pytest.raises(WorkloadError, match="truncated or damaged after 1 images") as raised:
        sort_archive_into_classes(archive, kit, out)
    assert "\n" not in str(raised.value)
    archive.write_bytes(whole)
    assert sort_archive_into_classes(archive, kit, out).image_count == 6


def test_members_that_are_no_plain_images_are_ignored_and_named(tmp_path, out):
    path = tmp_path / "val.tar"
    with tarfile.open(path, "w") as archive:
        names = (
            f"../{name(2)}",
            f"/{name(3)}",
            "../../escape.JPEG",
            "notes.txt",
            name(7),
            name(0),
            f"./{name(1)}",
        )
        for word in names:
            member = tarfile.TarInfo(word)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"here"))
        link = tarfile.TarInfo(name(4))
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        again = tarfile.TarInfo(name(1))
        again.size = 5
        archive.addfile(again, io.BytesIO(b"twice"))
    done = sort_archive_into_classes(path, read_devkit(write_kit(tmp_path)), out)
    assert done.image_count == 1
    assert len(done.ignored) == 8
    files = [file.relative_to(tmp_path) for file in tmp_path.rglob("*.JPEG")]
    assert files == [Path("sorted") / FOLDERS[3] / name(1)]
    assert (tmp_path / files[0]).read_bytes() == b"here"


def test_an_archive_without_images_is_refused(tmp_path, out):
    kit = read_devkit(write_kit(tmp_path))
    with pytest.raises(WorkloadError, match=r"contains no ILSVRC2012_val_\*"):
        sort_archive_into_classes(write_tar(tmp_path / "other.tar", {"a.txt": b"a"}), kit, out)


@pytest.mark.parametrize(
    ("truth", "meta", "said"),
    [
        ("1\n9\n", None, "names class 9"),
        ("1\nx\n", None, "classes cannot be read"),
        ("", None, "is empty"),
        (None, b"not a table", "not a MATLAB file"),
    ],
)
def test_a_development_kit_that_makes_no_sense_is_one_line(tmp_path, truth, meta, said):
    with pytest.raises(WorkloadError, match=said) as raised:
        read_devkit(write_kit(tmp_path, truth, meta))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_development_kit_is_one_line(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    with pytest.raises(WorkloadError, match=r"cannot be read .*: name ILSVRC2012_devkit_t12"):
        read_devkit(tmp_path / "a.tar.gz")
    with pytest.raises(WorkloadError, match="has no ILSVRC2012_validation_ground_truth"):
        read_devkit(write_tar(tmp_path / "b.tar", {"a.txt": b""}))


def test_a_list_of_classes_stands_in_for_the_table(tmp_path):
    (tmp_path / "list.txt").write_text("1 n00000009 kit fox\n2 n00000008\n3 n00000007\n")
    kit = read_devkit(write_kit(tmp_path, meta=b"unreadable"), tmp_path / "list.txt")
    assert kit.folders[:3] == ("n00000007", "n00000009", "n00000008")


def test_a_class_that_would_leave_the_folder_is_refused(tmp_path):
    (tmp_path / "list.txt").write_text("1 ../../etc\n2 n00000008\n3 n00000007\n")
    with pytest.raises(WorkloadError, match="is not the name of a class"):
        read_devkit(write_kit(tmp_path), tmp_path / "list.txt")


def test_only_files_with_published_names_are_compared(tmp_path, monkeypatch):
    assert verify_md5_if_published(write_archive(tmp_path)) is False
    known = tmp_path / "ILSVRC2012_img_val.tar"
    known.write_bytes(b"hello")
    with pytest.raises(WorkloadError, match="its MD5 is 5d41402abc4b2a76b9719d911017c592"):
        verify_md5_if_published(known)
    monkeypatch.setitem(imagenet.ARCHIVES, known.name, "5d41402abc4b2a76b9719d911017c592")
    assert verify_md5_if_published(known) is True


@pytest.mark.parametrize("file", ["meta.mat", "meta-plain.mat"])
def test_a_table_that_scipy_wrote_is_read(file):
    rows = read_matlab_structs((TABLE / file).read_bytes(), "synsets")
    assert [row["ILSVRC2012_ID"] for row in rows] == [1, 2, 3, 4]
    assert [row["WNID"] for row in rows] == ["n02119789", "n02100735", "n02096294", "n00001740"]
    assert rows[3]["words"] == "entity, Größe"
    assert [row["num_children"] for row in rows] == [0, 0, 0, 2]
    assert (rows[0]["children"], rows[1]["gloss"]) == (None, None)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_table_that_is_cut_off_is_an_error_and_never_a_shorter_table(share):
    whole = (TABLE / "meta.mat").read_bytes()
    with pytest.raises(MatError):
        read_matlab_structs(whole[: int(len(whole) * share)], "synsets")


def test_without_scipy_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(matfile, "find_spec", lambda name: None)
    with pytest.raises(
        WorkloadError, match=r"needs scipy, .* pip install 'perfctl\[imagenet\]'"
    ) as raised:
        read_devkit(write_kit(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("reader", "limit_s", "said"),
    [
        ("import os; os.abort()", 120.0, "exit code -6"),
        ("import time; time.sleep(900)", 0.5, "took more than 0.5 s"),
    ],
)
def test_a_reader_that_crashes_or_hangs_is_one_line(tmp_path, monkeypatch, reader, limit_s, said):
    (tmp_path / "stand_in_reader.py").write_text(reader)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(matfile, "READER", "stand_in_reader")
    monkeypatch.setattr(matfile, "READER_SECONDS", limit_s)
    with pytest.raises(MatError, match=said):
        read_matlab_structs((TABLE / "meta.mat").read_bytes(), "synsets")


def test_a_table_of_another_name_is_not_taken():
    with pytest.raises(MatError, match="no array of structs called classes"):
        read_matlab_structs((TABLE / "meta.mat").read_bytes(), "classes")
