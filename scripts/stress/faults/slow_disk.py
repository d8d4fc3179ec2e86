"""A folder shown again under another name, every operation late, as on a busy network file system.

    python scripts/stress/faults/slow_disk.py SOURCE MOUNT MILLISECONDS

Needs fusepy and libfuse 2, and the right to mount. It runs until it is unmounted.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any

import fuse


class Late(fuse.Operations):  # type: ignore[misc]  # fusepy has no types
    """Passes everything on to SOURCE, after the delay."""

    def __init__(self, source: str, delay_s: float) -> None:
        self._source, self._delay_s = source, delay_s

    def __call__(self, operation: str, path: str, *arguments: Any) -> Any:
        if not hasattr(self, operation):
            raise fuse.FuseOSError(errno.ENOSYS)
        time.sleep(self._delay_s)
        return getattr(self, operation)(self._source + path if path else path, *arguments)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        facts = os.lstat(path)
        names = (
            "st_atime",
            "st_ctime",
            "st_gid",
            "st_mode",
            "st_mtime",
            "st_nlink",
            "st_size",
            "st_uid",
            "st_blocks",
        )
        return {name: getattr(facts, name) for name in names}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(path)]  # noqa: PTH208

    def statfs(self, path: str) -> dict[str, int]:
        facts = os.statvfs(path)
        return {
            name: getattr(facts, name)
            for name in dir(facts)
            if name.startswith("f_") and name != "f_fsid"
        }

    def access(self, path: str, mode: int) -> None:
        if not os.access(path, mode):
            raise fuse.FuseOSError(errno.EACCES)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(path, length)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def flush(self, path: str, fh: int) -> None:
        pass

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        os.fsync(fh)

    def rename(self, path: str, new: str) -> None:
        os.rename(path, self._source + new)  # noqa: PTH104

    def utimens(self, path: str, times: tuple[float, float] | None = None) -> None:
        os.utime(path, times)

    def readlink(self, path: str) -> str:
        return os.readlink(path)  # noqa: PTH115

    def symlink(self, path: str, target: str) -> None:
        os.symlink(target, path)  # noqa: PTH211

    chmod = staticmethod(os.chmod)
    chown = staticmethod(os.chown)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    unlink = staticmethod(os.unlink)


if __name__ == "__main__":
    fuse.FUSE(
        Late(sys.argv[1], float(sys.argv[3]) / 1000), sys.argv[2], foreground=True, nothreads=False
    )
