"""A data folder in one file: packed once after initdb, unpacked per run in about the time of creating its files.

Layout: magic, length of the index, the index (one line per entry), then the contents, each at a multiple of 4096 bytes so that a
file system with reflinks shares the blocks. The file ends with the magic again: a pack cut short is never used.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"pgshare-pack-2\n\0"
BLOCK = 4096
# Free space and visibility maps are hints that the server makes anew where they are missing: a quarter of all files.
HINTS = ("_fsm", "_vm")


def pack(folder: str, out: str) -> None:
    """Write every folder and regular file of ``folder`` into the new file ``out`` (0600)."""
    entries = list(_walk(folder, ""))
    offset = 0
    lines = []
    for path, mode, size, is_folder in entries:
        if "\n" in path or "\t" in path:
            raise ValueError(f"cannot pack {path!r}: blank in its name")
        lines.append(f"{'d' if is_folder else 'f'}\t{mode:o}\t{size}\t{offset}\t{path}")
        offset += _up(size)
    index = "\n".join(lines).encode()
    start = _up(len(MAGIC) + 8 + len(index))
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, MAGIC + len(index).to_bytes(8, "big") + index)
        for line in lines:
            kind, _, length, place, path = line.split("\t")
            if kind == "f" and int(length):
                _copy_in(os.path.join(folder, path), fd, start + int(place))
        os.pwrite(fd, MAGIC, start + offset)
        os.fsync(fd)
    finally:
        os.close(fd)


def _up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _walk(top: str, below: str) -> Iterator[tuple[str, int, int, bool]]:
    for name in sorted(os.listdir(os.path.join(top, below))):
        path = os.path.join(below, name)
        seen = os.lstat(os.path.join(top, path))
        mode = stat.S_IMODE(seen.st_mode)
        if stat.S_ISDIR(seen.st_mode):
            yield path, mode, 0, True
            yield from _walk(top, path)
        elif stat.S_ISREG(seen.st_mode) and name.endswith(HINTS) and name.partition("_")[0].isdigit():
            continue
        elif stat.S_ISREG(seen.st_mode):
            yield path, mode, seen.st_size, False
        else:
            raise ValueError(f"cannot pack {path!r}: neither a file nor a folder")


def _copy_in(path: str, out: int, offset: int) -> None:
    with open(path, "rb") as file:
        while True:
            data = file.read(1 << 20)
            if not data:
                return
            os.pwrite(out, data, offset)
            offset += len(data)


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

    OSError (ENOSPC and others) propagates; ValueError for what is no whole pack.
    """
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
