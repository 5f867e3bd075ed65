"""A data folder in one file: packed once after initdb, unpacked per run in about the time of creating its files.

Layout: magic, length of the index, the index (one line per entry), then the contents, each at a multiple of 4096 bytes so that a
file system with reflinks shares the blocks. The file ends with the magic again: a pack cut short is never used.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"pgshare-pack-2\n\0"
BLOCK = 4096
# Free space and visibility maps are hints that the server makes anew where they are missing: a quarter of all files.
HINTS = ("_fsm", "_vm")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def pack(folder: str, out: str) -> None:
    """Write every folder and regular file of ``folder`` into the new file ``out`` (0600).

    ``folder`` belongs to the server's user, and we may be root: no link in it is ever followed.
    """
    top = os.open(folder, _FOLDER)
    try:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _pack(top, fd)
            os.fsync(fd)
        finally:
            os.close(fd)
    finally:
        os.close(top)


def _pack(top: int, out: int) -> None:
    entries = list(_walk(top, ""))
    offset = 0
    lines = []
    for path, mode, size, is_folder in entries:
        if "\n" in path or "\t" in path:
            raise ValueError(f"cannot pack {path!r}: blank in its name")
        lines.append(f"{'d' if is_folder else 'f'}\t{mode:o}\t{size}\t{offset}\t{path}")
        offset += _up(size)
    index = "\n".join(lines).encode()
    start = _up(len(MAGIC) + 8 + len(index))
    _write(out, MAGIC + len(index).to_bytes(8, "big") + index, 0)
    for line in lines:
        kind, _, length, place, path = line.split("\t")
        if kind == "f" and int(length):
            _copy_in(top, path, int(length), out, start + int(place))
    _write(out, MAGIC, start + offset)


def _up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _walk(folder: int, below: str) -> Iterator[tuple[str, int, int, bool]]:
    for name in sorted(os.listdir(folder)):
        path = os.path.join(below, name)
        seen = os.lstat(name, dir_fd=folder)
        mode = stat.S_IMODE(seen.st_mode)
        if stat.S_ISDIR(seen.st_mode):
            yield path, mode, 0, True
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                yield from _walk(inner, path)
            finally:
                os.close(inner)
        elif not stat.S_ISREG(seen.st_mode):
            raise ValueError(f"cannot pack {path!r}: neither a file nor a folder")
        elif seen.st_nlink > 1:
            raise ValueError(f"cannot pack {path!r}: it has another name elsewhere")
        elif not (name.endswith(HINTS) and name.partition("_")[0].isdigit()):
            yield path, mode, seen.st_size, False


def _copy_in(top: int, path: str, size: int, out: int, offset: int) -> None:
    here = top
    opened = []
    try:
        for name in path.split(os.sep)[:-1]:
            here = os.open(name, _FOLDER, dir_fd=here)
            opened.append(here)
        opened.append(os.open(os.path.basename(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here))
        while size:
            data = os.read(opened[-1], min(size, 1 << 20))
            if not data:
                raise ValueError(f"cannot pack {path!r}: it shrank meanwhile")
            _write(out, data, offset)
            offset, size = offset + len(data), size - len(data)
    finally:
        for fd in opened:
            os.close(fd)


def _write(fd: int, data: bytes, offset: int) -> None:
    """Write all of ``data``: a disk that fills up takes a part without an error, and the rest would be a hole."""
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def is_whole(path: str) -> bool:
    """Return whether ``path`` is a pack of this format, written to its end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(fd).st_size
        head = os.pread(fd, len(MAGIC), 0)
        return size > 2 * len(MAGIC) and head == MAGIC == os.pread(fd, len(MAGIC), size - len(MAGIC))
    finally:
        os.close(fd)


def unpack(fd: int, dest: str) -> None:
    """Make the packed files below the existing folder ``dest``, from an open pack.

    OSError propagates, without room it says where and how many bytes; ValueError for what is no whole pack.
    """
    before = os.statvfs(dest)
    try:
        _unpack(fd, dest)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = before.f_bavail * before.f_frsize
        raise OSError(
            exc.errno, f"{os.strerror(exc.errno)}; {os.fstat(fd).st_size} bytes are needed at {dest}, {free} were free"
        ) from exc


def _unpack(fd: int, dest: str) -> None:
    if os.pread(fd, len(MAGIC), 0) != MAGIC:
        raise ValueError("not a packed data folder")
    length = int.from_bytes(os.pread(fd, 8, len(MAGIC)), "big")
    index = os.pread(fd, length, len(MAGIC) + 8)
    if len(index) != length:
        raise ValueError("the packed data folder is cut short")
    start = _up(len(MAGIC) + 8 + length)
    copy = _Copier(fd)
    here = os.open(dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for line in index.decode().split("\n"):
            kind, mode, size, place, path = line.split("\t")
            if kind == "d":
                os.mkdir(path, int(mode, 8), dir_fd=here)
                continue
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, int(mode, 8), dir_fd=here)
            try:
                if int(size):
                    copy(made, start + int(place), int(size))
            finally:
                os.close(made)
    finally:
        os.close(here)


class _Copier:
    """Copy a range of the pack by the cheapest call that works between these two file systems."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._ways = [self._read]
        if hasattr(os, "sendfile"):
            self._ways.insert(0, self._send)
        if hasattr(os, "copy_file_range"):
            self._ways.insert(0, self._clone)

    def __call__(self, out: int, offset: int, size: int) -> None:
        """Copy ``size`` bytes from ``offset`` of the pack to the start of ``out``."""
        while size:
            try:
                done = self._ways[0](out, offset, size)
            except OSError:
                # Another file system, or one that cannot: the next way says the real error, if there is one.
                if len(self._ways) == 1:
                    raise
                del self._ways[0]
                continue
            if done == 0:
                raise ValueError("the packed data folder is cut short")
            offset, size = offset + done, size - done

    def _clone(self, out: int, offset: int, size: int) -> int:
        return os.copy_file_range(self._source, out, size, offset_src=offset)

    def _send(self, out: int, offset: int, size: int) -> int:
        return os.sendfile(out, self._source, offset, size)

    def _read(self, out: int, offset: int, size: int) -> int:
        return os.write(out, os.pread(self._source, min(size, 1 << 20), offset))
