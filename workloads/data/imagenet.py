"""ImageNet's validation archive, sorted into class folders by what its development kit says. Needs
no torch."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from perfctl.workloads.data.matfile import MatError, read_matlab_structs
from perfctl.workloads.spec import WorkloadError, get_first_error_line

_MOST_NAME = 1 << 20
"""Bytes of a header with a long name or attributes, which Python reads into memory."""
_MOST_MEMBER = 64 << 20
_MOST_READ = 1 << 30
"""Unpacked bytes of an archive of which a few members are wanted."""
_MOST_MEMBERS = 200_000
"""tarfile keeps an object per member; ImageNet's validation archive has 50,000."""
_LONG_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)

CLASS_LIST = "classes.txt"
"""In the sorted folder: names of the class folders, in the order of the models' class numbers."""
DONE = "imagenet-val.json"
"""In the sorted folder: how many images, of how many, from what."""
ARCHIVES = {
    "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
    "ILSVRC2012_devkit_t12.tar.gz": "fa75699e90414af021442c21a62c3abf",
}
"""MD5 of the published files, as torchvision's datasets state them."""

_LARGEST_IMAGE = 256 << 20
"""Bytes; the largest of the validation images has 10 MB."""
_IMAGE = re.compile(r"(?:\./)?ILSVRC2012_val_(\d{8})\.JPEG")
_CLASS = re.compile(r"n\d{8}")


class BoundedTarInfo(tarfile.TarInfo):
    """Rejects headers that would fill the memory. Raises tarfile.ReadError."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> BoundedTarInfo:
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _LONG_HEADERS and member.size > _MOST_NAME):
            raise tarfile.ReadError(f"a member's name or attributes take {member.size:,} bytes")
        return member


def iterate_members_bounded(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members in order. Raises tarfile.ReadError when there are too many."""
    for number, member in enumerate(archive):
        if number >= _MOST_MEMBERS:
            raise tarfile.ReadError(f"it has more than {_MOST_MEMBERS:,} members")
        yield member


def read_archive_files(path: Path) -> dict[str, bytes]:
    """Contents of the two files of the devkit in any folder of the archive; the last of each name
    wins.

    Raises tarfile.ReadError for a file over 64 MiB and for an archive that unpacks to more than 1
    GiB, and what tarfile raises for a damaged archive.
    """
    contents: dict[str, bytes] = {}
    read = 0
    with tarfile.open(path, "r|*", tarinfo=BoundedTarInfo) as archive:
        for member in iterate_members_bounded(archive):
            read += member.size
            if read > _MOST_READ:
                raise tarfile.ReadError(f"it unpacks to more than {_MOST_READ >> 20:,} MiB")
            name = member.name.rsplit("/", 1)[-1]
            if not member.isfile() or name not in (_TRUTH, _META):
                continue
            if member.size > _MOST_MEMBER:
                raise tarfile.ReadError(f"{name} has {member.size:,} bytes")
            file = archive.extractfile(member)
            contents[name] = file.read() if file is not None else b""
    return contents


_TRUTH, _META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
_TAR_ERRORS = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)

Tick = Callable[[int, int], None]
"""(done, of all)."""


@dataclass(frozen=True, slots=True)
class ImagenetDevKit:
    folders: tuple[str, ...]
    """Class folder of image 1, 2, ..."""
    classes: tuple[str, ...]
    """All class folders, in the order of the models' class numbers."""


@dataclass(slots=True)
class SortedImages:
    total: int
    """Images that the development kit knows."""
    written: int = 0
    already: int = 0
    """In place before, whole."""
    ignored: list[str] = field(default_factory=list)
    """Members of the archive that are no validation images, or no plain files."""

    @property
    def image_count(self) -> int:
        return self.written + self.already


def verify_md5_if_published(path: Path, tick: Tick = lambda done, total: None) -> bool:
    """Compare a published file with its MD5; False when its name is none of ARCHIVES. Raises
    WorkloadError."""
    published = ARCHIVES.get(path.name)
    if published is None:
        return False
    digest = hashlib.md5(usedforsecurity=False)
    total, done = path.stat().st_size, 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
            done += len(piece)
            tick(done, total)
    if digest.hexdigest() != published:
        sums = f"its MD5 is {digest.hexdigest()}, but that of the published file is {published}"
        raise WorkloadError(
            f"{path}: {sums}. Download it again, or set `no_verify` if the difference is intended"
        )
    return True


def read_devkit(path: Path, synsets: Path | None = None) -> ImagenetDevKit:
    """From the development kit's archive. ``synsets``: "ID WNID" lines to use instead of
    its meta.mat.

    Raises WorkloadError.
    """
    kit = "name ILSVRC2012_devkit_t12.tar.gz"
    try:
        contents = read_archive_files(path)
    except (*_TAR_ERRORS, OSError) as error:
        problem = f"`devkit` {path} cannot be read ({_describe_error(error)})"
        raise WorkloadError(f"{problem}: {kit}") from error
    if (truth := contents.get(_TRUTH)) is None:
        raise WorkloadError(f"`devkit` {path} has no {_TRUTH}: {kit}")
    source = path
    try:
        numbers = [int(line) for line in truth.decode("ascii").split()]
        source = synsets or path
        names = (
            _read_class_folder_lines(synsets)
            if synsets is not None
            else _parse_class_folders(contents.get(_META))
        )
    except (ValueError, OverflowError) as error:
        problem = f"the classes cannot be read ({get_first_error_line(error)})"
        raise WorkloadError(f"{source}: {problem}") from error
    if unknown := sorted(set(numbers) - set(names)):
        raise WorkloadError(
            f"{path}: {_TRUTH} names class {unknown[0]}, which is not in the table of classes"
        )
    if not numbers:
        raise WorkloadError(f"{path}: {_TRUTH} is empty")
    return ImagenetDevKit(tuple(names[number] for number in numbers), tuple(sorted(names.values())))


def _parse_class_folders(meta: bytes | None) -> dict[int, str]:
    """Class number -> folder, of the classes that have none below them (the rest of WordNet's tree
    is in it, too)."""
    if meta is None:
        raise MatError(f"{_META} is missing; set a table of classes with `synsets`")
    names: dict[int, str] = {}
    for row in read_matlab_structs(meta, "synsets"):
        number, name = row.get("ILSVRC2012_ID"), row.get("WNID")
        if (
            isinstance(number, (int, float))
            and isinstance(name, str)
            and not row.get("num_children")
        ):
            names[int(number)] = _validate_wordnet_id(name)
    return names


def _read_class_folder_lines(path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match line.split():
            case [number, name, *_]:
                names[int(number)] = _validate_wordnet_id(name)
            case [_]:
                raise ValueError(f"{path}: '{line.strip()}' is not 'ID WNID'")
    return names


def _validate_wordnet_id(name: str) -> str:
    """Return the name, which goes into a path only if it looks like one of WordNet's."""
    if not _CLASS.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a class such as n01440764")
    return name


def sort_archive_into_classes(
    archive: Path, kit: ImagenetDevKit, out: Path, tick: Tick = lambda done, total: None
) -> SortedImages:
    """Write each image to ``out``/CLASS/NAME; what is there already, and as long, is left. Stopped,
    it goes on later.

    Only the number in a member's name is used, so no member can write anywhere else. Raises
    WorkloadError.
    """
    result = SortedImages(total=len(kit.folders))
    for name in kit.classes:
        (out / name).mkdir(parents=True, exist_ok=True)
    sorted_numbers: set[int] = set()
    try:
        with tarfile.open(archive, "r|*", tarinfo=BoundedTarInfo) as members:
            for member in iterate_members_bounded(members):
                number = _parse_validation_image_number(member, len(kit.folders))
                if number is None or number in sorted_numbers:
                    if not member.isdir():
                        result.ignored.append(member.name)
                    continue
                sorted_numbers.add(number)
                content = members.extractfile(member)
                path = out / kit.folders[number - 1] / f"ILSVRC2012_val_{number:08d}.JPEG"
                if content is not None:
                    _write_image_unless_present(content, member.size, path, result)
                tick(result.image_count, result.total)
    except _TAR_ERRORS as error:
        reason = f"after {result.image_count} images ({_describe_error(error)})"
        raise WorkloadError(
            f"{archive} is truncated or damaged {reason}. perfctl keeps them. Repeat the command "
            "with the complete archive"
        ) from error
    if not result.image_count:
        raise WorkloadError(
            f"{archive} contains no ILSVRC2012_val_*.JPEG. Use the archive ILSVRC2012_img_val.tar"
        )
    (out / CLASS_LIST).write_text("".join(f"{name}\n" for name in kit.classes), encoding="utf-8")
    facts = {
        "images": result.image_count,
        "of": result.total,
        "classes": len(kit.classes),
        "archive": archive.name,
    }
    (out / DONE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return result


def _parse_validation_image_number(member: tarfile.TarInfo, max_number: int) -> int | None:
    """Return number of a validation image; None for anything else."""
    match = _IMAGE.fullmatch(member.name)
    if match is None or not member.isfile() or member.size > _LARGEST_IMAGE:
        return None
    number = int(match[1])
    return number if 1 <= number <= max_number else None


def _write_image_unless_present(
    content: IO[bytes], size: int, path: Path, result: SortedImages
) -> None:
    if path.is_file() and path.stat().st_size == size:
        result.already += 1
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        if part.stat().st_size != size:
            raise EOFError(f"{path.name} is shorter than the archive states")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    result.written += 1


def find_misplaced_images(out: Path, kit: ImagenetDevKit) -> Iterator[Path]:
    """Yield images below ``out`` that are not where the development kit puts them: left by
    something else."""
    for path in out.glob("*/*.JPEG"):
        match = _IMAGE.fullmatch(path.name)
        number = int(match[1]) if match else 0
        if not 1 <= number <= len(kit.folders) or kit.folders[number - 1] != path.parent.name:
            yield path


def _describe_error(error: BaseException) -> str:
    return getattr(error, "strerror", None) or get_first_error_line(error)
