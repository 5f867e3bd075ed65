from __future__ import annotations

import filecmp
import os
import stat

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


def test_links_are_refused(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "link").symlink_to("/")
    with pytest.raises(ValueError, match="cannot pack 'link': neither a file nor a folder"):
        datadir.pack(str(tmp_path / "t"), str(tmp_path / "p"))
