from __future__ import annotations

import errno
import filecmp
import os
import stat
import subprocess
import sys

import pytest

from pgshare import datadir


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "tree"
    (top / "base" / "1").mkdir(parents=True)
    (top / "empty").mkdir(mode=0o700)
    (top / "base" / "1" / "big").write_bytes(os.urandom(3 * 4096 + 17))
    (top / "base" / "1" / "none").touch()
    (top / "snow ☃").write_text("x")
    (top / "secret").write_text("y")
    (top / "secret").chmod(0o600)
    return top


def unpacked(pack, dest):
    dest.mkdir()
    fd = os.open(pack, os.O_RDONLY)
    try:
        datadir.unpack(fd, str(dest))
    finally:
        os.close(fd)
    return dest


def same(left, right):
    compared = filecmp.dircmp(left, right)
    assert not compared.left_only
    assert not compared.right_only
    assert not filecmp.cmpfiles(left, right, compared.common_files, shallow=False)[1]
    for name in compared.common_dirs:
        same(left / name, right / name)


def test_everything_comes_back_byte_for_byte_with_its_mode(tree, tmp_path):
    pack = str(tmp_path / "p")
    datadir.pack(str(tree), pack)
    assert stat.S_IMODE(os.stat(pack).st_mode) == 0o600
    copy = unpacked(pack, tmp_path / "copy")
    same(tree, copy)
    assert stat.S_IMODE((copy / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((copy / "empty").stat().st_mode) == 0o700


@pytest.mark.parametrize("missing", [("copy_file_range",), ("copy_file_range", "sendfile")])
def test_every_way_of_copying_gives_the_same(tree, tmp_path, monkeypatch, missing):
    pack = str(tmp_path / "p")
    datadir.pack(str(tree), pack)
    for name in missing:
        monkeypatch.delattr(os, name, raising=False)
    same(tree, unpacked(pack, tmp_path / "copy"))


def test_contents_are_aligned_for_reflinks(tree, tmp_path):
    pack = str(tmp_path / "p")
    datadir.pack(str(tree), pack)
    content = (tree / "base" / "1" / "big").read_bytes()
    with open(pack, "rb") as file:
        assert file.read().find(content) % 4096 == 0


def test_a_pack_cut_short_or_foreign_is_never_whole(tree, tmp_path):
    pack = tmp_path / "p"
    datadir.pack(str(tree), str(pack))
    assert datadir.is_whole(str(pack))
    whole = pack.read_bytes()
    for broken in (b"", whole[:100], whole[:-1], b"x" + whole, whole[:5000]):
        pack.write_bytes(broken)
        assert not datadir.is_whole(str(pack))
    assert not datadir.is_whole(str(tmp_path / "absent"))
    pack.write_bytes(b"not a pack at all")
    with pytest.raises(ValueError, match="not a packed data folder"):
        unpacked(str(pack), tmp_path / "copy")
    pack.write_bytes(whole[:4200])
    with pytest.raises(ValueError, match="cut short"):
        unpacked(str(pack), tmp_path / "copy2")


@pytest.mark.parametrize("target", ["/", "/etc/passwd"])
def test_links_are_refused(tmp_path, target):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "link").symlink_to(target)
    with pytest.raises(ValueError, match="cannot pack 'link': neither a file nor a folder"):
        datadir.pack(str(tmp_path / "t"), str(tmp_path / "p"))


def test_a_file_with_a_second_name_is_refused(tmp_path):
    """The server's user owns the folder that root packs: it must not smuggle another's file in."""
    (tmp_path / "t").mkdir()
    (tmp_path / "secret").write_text("s")
    os.link(tmp_path / "secret", tmp_path / "t" / "innocent")
    with pytest.raises(ValueError, match="cannot pack 'innocent': it has another name elsewhere"):
        datadir.pack(str(tmp_path / "t"), str(tmp_path / "p"))


@pytest.mark.parametrize("when", ["file", "folder"])
def test_what_turns_into_a_link_after_the_look_is_not_followed(tree, tmp_path, monkeypatch, when):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("not for the server")
    real = os.open

    def late(path, flags, *args, **options):
        if when == "file" and path == "secret" and not os.path.islink(tree / "secret"):
            (tree / "secret").unlink()
            (tree / "secret").symlink_to(tmp_path / "elsewhere" / "secret")
        if when == "folder" and path == "base" and not os.path.islink(tree / "base"):
            (tree / "base").rename(tmp_path / "moved")
            (tree / "base").symlink_to(tmp_path / "elsewhere")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        datadir.pack(str(tree), str(tmp_path / "p"))


def test_a_write_that_is_cut_short_is_an_error_and_never_a_hole(tree, tmp_path):
    """A full disk takes the part of a write that still fits and reports no error."""
    code = (
        "import resource, signal, sys; from pgshare import datadir\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10000, resource.RLIM_INFINITY))\n"
        "datadir.pack(sys.argv[1], sys.argv[2])\n"
    )
    pack = str(tmp_path / "p")
    done = subprocess.run([sys.executable, "-c", code, str(tree), pack], capture_output=True, text=True, check=False)
    assert "File too large" in done.stderr
    assert not datadir.is_whole(pack)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
@pytest.mark.parametrize("missing", [(), ("copy_file_range",), ("copy_file_range", "sendfile")], ids=["clone", "send", "read"])
def test_no_room_to_unpack_names_path_needed_and_free_bytes(tree, tmp_path, monkeypatch, missing):
    (tree / "huge").write_bytes(b"x" * (2 << 20))
    pack, small = str(tmp_path / "p"), tmp_path / "small"
    datadir.pack(str(tree), pack)
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    for name in missing:
        monkeypatch.delattr(os, name, raising=False)
    try:
        with pytest.raises(OSError, match=r"No space left on device; \d+ bytes are needed at .*/small/d, \d+ were free") as caught:
            unpacked(pack, small / "d")
        assert caught.value.errno == errno.ENOSPC
    finally:
        subprocess.run(["umount", small], check=True)
