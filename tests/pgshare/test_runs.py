from __future__ import annotations

import os
import shutil

import pytest

from pgshare import child, runs
from pgshare.run import Run


@pytest.fixture
def dead(state_dir):
    """The folder of a run of another boot."""
    run_id = "aaaa_00000001"
    folder = f"{state_dir}/runs/{run_id}"
    run = Run(id=run_id, folder=folder, sockets=folder, controller=("another-boot/pid:[1]", 99, 1))
    run.make_folders()
    return run


def write(run, text):
    with open(os.path.join(run.folder, "inventory.json"), "w", encoding="ascii") as file:
        file.write(text)


def test_looking_leaves_an_unreadable_record_where_it_is(dead, state_dir):
    write(dead, "{broken")
    before = sorted(os.listdir(dead.folder))
    (found,) = runs.find_runs(state_dir)
    assert found.state == runs.DEAD
    assert "inventory.json cannot be read" in found.holds[0]
    assert sorted(os.listdir(dead.folder)) == before


def test_an_unreadable_record_is_kept_by_every_later_recovery(dead, state_dir):
    """It names things that may still be there: removing the folder would lose them for good."""
    write(dead, "{broken")
    for _ in range(3):
        (problem,) = runs.recover_dead(state_dir)
        assert "inventory.json" in problem
    with open(os.path.join(dead.folder, "inventory.json.corrupt-1"), encoding="ascii") as file:
        assert file.read() == "{broken"
    (found,) = runs.find_runs(state_dir)
    assert found.holds == (f"{dead.folder}/inventory.json.corrupt-1 could not be read; look at it, then remove {dead.folder}",)


def test_a_run_that_ends_while_it_is_looked_at_is_no_run(dead, state_dir, monkeypatch):
    real = runs.reaper.read_marker

    def read_marker(path):
        found = real(path)
        shutil.rmtree(path)
        return found

    monkeypatch.setattr(runs.reaper, "read_marker", read_marker)
    assert runs.find_runs(state_dir) == []


def test_a_living_run_is_alive_and_one_that_was_never_signed_is_not_guessed(state_dir):
    run = Run.new(state_dir)
    run.make_folders()
    (found,) = runs.find_runs(state_dir)
    assert (found.run.id, found.state, found.holds) == (run.id, runs.ALIVE, ())
    assert found.run.controller == child.identity(os.getpid())
    os.unlink(os.path.join(run.folder, "owner"))
    (found,) = runs.find_runs(state_dir)
    assert found.state == runs.UNKNOWN
    os.utime(run.folder, (1, 1))
    (found,) = runs.find_runs(state_dir)
    assert found.state == runs.DEAD
