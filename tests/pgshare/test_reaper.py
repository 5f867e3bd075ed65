from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pgshare import child, reaper
from pgshare.inventory import Inventory
from pgshare.run import write_marker

RUN = "ab12_00000001"
SLEEP = [sys.executable, "-I", "-S", "-c", "print('up', flush=True); import sys; sys.stdin.read()"]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir()
    write_marker(str(made), RUN)
    return made


def sleeper(cwd):
    process = subprocess.Popen(SLEEP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
    assert process.stdout.readline() == b"up\n"
    return process


def finish(process):
    process.kill()
    process.communicate()


def record(folder, kind, name, root="", who=None):
    inventory = Inventory(str(folder), run_id=RUN)
    (row,) = inventory.intend([(kind, str(name), str(root))])
    if who is not None:
        inventory.created({row: {"boot_id": who[0], "pid": who[1], "start_time": who[2]}})


def test_recorded_things_go_and_then_the_folder(folder, tmp_path):
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    write_marker(str(data), RUN)
    record(folder, "dir", data, data)
    process = sleeper(tmp_path)
    record(folder, "process", "postgres", data, child.identity(process.pid))
    assert reaper.recover(str(folder)) == []
    assert process.wait(20) == -child.QUIT
    process.communicate()
    assert not data.exists()
    assert not folder.exists()


def test_a_folder_without_our_marker_is_left_alone(folder, tmp_path):
    foreign, link = tmp_path / "foreign", tmp_path / "link"
    foreign.mkdir()
    (foreign / "precious").touch()
    link.symlink_to(foreign)
    for decoy in (foreign, link, "/", "/root", tmp_path):
        record(folder, "dir", decoy, decoy)
    problems = reaper.recover(str(folder))
    assert len(problems) == 5
    assert all("left alone" in problem for problem in problems)
    assert (foreign / "precious").exists()
    assert folder.exists()


def test_a_marker_of_another_run_does_not_count(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_marker(str(other), "ab12_00000002")
    record(folder, "dir", other, other)
    assert f"no .pgshare file of run {RUN} in it" in reaper.recover(str(folder))[0]
    assert other.exists()


def test_a_run_folder_that_is_not_ours_is_not_read(tmp_path):
    assert "left alone" in reaper.recover(str(tmp_path))[0]
    assert tmp_path.exists()


def test_a_reused_pid_is_not_signalled(folder, tmp_path):
    process = sleeper(tmp_path)
    boot, pid, start = child.identity(process.pid)
    record(folder, "process", "postgres", "", (boot, pid, start + 1))
    assert reaper.recover(str(folder)) == []
    assert process.poll() is None
    finish(process)


def test_what_nobody_can_tell_is_kept_and_reported(folder, tmp_path):
    process = sleeper(tmp_path)
    boot, pid, start = child.identity(process.pid)
    record(folder, "process", "postgres", "", (boot.partition("/")[0] + "/pid:[1]", pid, start))
    assert reaper.recover(str(folder)) == [f"process postgres (pid {pid}): cannot tell whether it is ours, left alone"]
    assert folder.exists()
    assert process.poll() is None
    finish(process)


def test_a_dead_servers_children_are_found_by_their_folder(folder, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_marker(str(data), RUN)
    orphan, bystander = sleeper(data), sleeper(tmp_path)
    record(folder, "dir", data, data)
    record(folder, "process", "postgres", data)  # died before its identity was recorded
    assert reaper.recover(str(folder)) == []
    assert orphan.wait(20) == -child.QUIT
    assert bystander.poll() is None
    orphan.communicate()
    finish(bystander)


def test_an_intent_without_a_thing_is_dropped(folder, tmp_path):
    record(folder, "dir", tmp_path / "never made", "")
    assert reaper.recover(str(folder)) == []
    assert not folder.exists()


def test_a_corrupt_inventory_stops_the_recovery(folder):
    (folder / "inventory.json").write_text("{")
    assert "nothing is removed by guess" in reaper.recover(str(folder))[0]
    assert folder.exists()


def test_removal_never_follows_a_link(tmp_path):
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (outside / "keep").mkdir(parents=True)
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "link").symlink_to(outside)
    (tree / "sub" / "file").touch()
    reaper.remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "keep").exists()
    reaper.remove_tree(str(tree))  # absent is success


def test_only_a_recorded_servers_segment_is_removed():
    """A System V segment that somebody else made, with nobody attached, survives."""
    import ctypes

    libc = ctypes.CDLL(None)
    segment = libc.shmget(0, 4096, 0o1000 | 0o600)
    assert segment >= 0
    try:
        assert reaper.remove_segment(segment, os.getpid() + 1) is False
        assert segment in [row[0] for row in reaper._shm_table()]
        assert reaper.remove_segment(segment, os.getpid()) is True
        assert segment not in [row[0] for row in reaper._shm_table()]
    finally:
        libc.shmctl(segment, 0, None)


def test_the_segment_of_a_server_is_read_from_its_own_pid_file(tmp_path):
    (tmp_path / "postmaster.pid").write_text("123\n/d\n1\n5432\n/s\n\n  5432001      77\nready\n")
    assert reaper.segments(str(tmp_path), ("b", 123, 1)) == [(77, 123)]
    assert reaper.segments(str(tmp_path), ("b", 124, 1)) == []
    assert reaper.segments(str(tmp_path), None) == []
    assert reaper.segments("/nowhere", ("b", 123, 1)) == []
