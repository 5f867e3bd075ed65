from __future__ import annotations

import os

import pytest

from pgshare import place
from pgshare.place import ROOM, cgroup_rooms, choose_kind, choose_place

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "room", "kind"),
    [
        ("auto", ROOM, "memory"),
        ("auto", ROOM - 1, "disk"),
        ("auto", 64 << 20, "disk"),
        ("always", 64 << 20, "memory"),
        ("never", 100 * GIB, "disk"),
    ],
)
def test_memory_wants_a_gibibyte_unless_told_otherwise(memory, room, kind):
    assert choose_kind(memory, room) == kind


def group(folder, limit, use, names=("memory.max", "memory.current")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{use}\n")


def rooms(tmp_path, membership):
    path = tmp_path / "membership"
    path.write_text(membership)
    return [room for room in cgroup_rooms(str(tmp_path / "cg"), str(path)) if room is not None]


def test_every_limit_of_cgroup_v2_counts(tmp_path):
    group(tmp_path / "cg", "max", 9 * GIB)
    group(tmp_path / "cg" / "a", 4 * GIB, 3 * GIB)
    group(tmp_path / "cg" / "a" / "b", 8 * GIB, GIB)
    assert sorted(rooms(tmp_path, "0::/a/b\n")) == [GIB, 7 * GIB]


def test_every_limit_of_cgroup_v1_counts(tmp_path):
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    group(tmp_path / "cg" / "memory" / "job", 2 * GIB, GIB, names)
    assert rooms(tmp_path, "7:cpu,cpuacct:/job\n4:memory:/job\n") == [GIB]


def test_inside_a_container_the_mounted_root_is_the_group(tmp_path):
    group(tmp_path / "cg", 2 * GIB, GIB)
    assert rooms(tmp_path, "0::/system.slice/docker-123.scope\n") == [GIB]


def test_use_over_the_limit_leaves_no_room_and_nonsense_none(tmp_path):
    group(tmp_path / "cg", GIB, 2 * GIB)
    assert rooms(tmp_path, "0::/\nnonsense\n") == [0]
    assert cgroup_rooms("/nowhere", "/nowhere") == []


def test_the_least_room_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "MEMORY", ("/dev/shm",))
    monkeypatch.setattr(place, "_available", lambda: 64 << 20)
    assert choose_place("auto", str(tmp_path), "x").kind == "disk"
    found = choose_place("always", str(tmp_path), "x")
    assert (found.kind, found.folder) == ("memory", "/dev/shm/x")


def test_a_folder_that_is_no_tmpfs_is_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "MEMORY", (str(tmp_path),))
    found = choose_place("always", str(tmp_path / "not yet"), "x")
    assert found.kind == "disk"
    assert found.folder == os.path.join(str(tmp_path / "not yet"), "d")
    assert found.free > 0
    assert str(found).startswith("disk (")
