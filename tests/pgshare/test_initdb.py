from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg
import pytest

import pgshare
from pgshare import datadir, initdb
from pgshare.account import current_account
from pgshare.binaries import find_binaries, list_binaries, readable_copy
from pgshare.child import identity
from pgshare.deadline import Deadline, NotYet, poll
from pgshare.errors import ServerStartError
from pgshare.settings import Settings

MAKE = """
import os, sys
from pgshare import initdb
from pgshare.account import current_account
from pgshare.binaries import find_binaries, readable_copy
from pgshare.deadline import Deadline

cache, bin_dir, fresh = sys.argv[1], sys.argv[2], len(sys.argv) > 3
found = readable_copy(find_binaries(bin_dir, os.environ, cache), current_account(), cache)
made = initdb.ensure_template(found, current_account(), cache, fresh=fresh, deadline=Deadline.after(60))
print(made.took > 0, made.password)
"""


@pytest.fixture
def cold(state_dir):
    """An empty cache."""
    folder = os.path.join(state_dir, "cold")
    os.mkdir(folder, 0o711)
    return folder


def prepare(cache, bin_dir=None, *, fresh=False):
    account = current_account()
    found = readable_copy(find_binaries(bin_dir, os.environ, cache), account, cache)
    return initdb.ensure_template(found, account, cache, fresh=fresh, deadline=Deadline.after(60))


def make(cache, bin_dir, *more):
    return subprocess.Popen(
        [sys.executable, "-c", MAKE, cache, bin_dir, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wrapped(folder, line):
    """Programs that are the real ones, but for ``line`` of shell at the start of initdb."""
    real = find_binaries(None, os.environ, folder)
    programs = os.path.join(folder, "bin")
    os.mkdir(programs, 0o755)
    for name, first in (("postgres", ""), ("initdb", line)):
        path = os.path.join(programs, name)
        with open(path, "w") as file:
            file.write(f'#!/bin/sh\n{first.format(real=real.path("initdb"))}\nexec {real.path(name)} "$@"\n')
        os.chmod(path, 0o755)
    return programs


def test_makers_of_different_versions_do_not_clear_each_others_work_away(cold):
    folders = [found.bin_dir for found in list_binaries(os.environ, cold)]
    if len(folders) < 2:
        pytest.skip("one version is installed")
    makers = [make(cold, folder) for folder in folders]
    answers = [maker.communicate(timeout=90) for maker in makers]
    assert [answer[0][:5] for answer in answers] == ["True "] * len(folders), answers


def test_workers_that_all_ask_for_a_fresh_one_make_it_once(cold):
    bin_dir = find_binaries(None, os.environ, cold).bin_dir
    prepare(cold, bin_dir)
    makers = [make(cold, bin_dir, "fresh") for _ in range(3)]
    answers = sorted(maker.communicate(timeout=90)[0].split()[0] for maker in makers)
    assert answers.count("True") <= 2  # a slow one may have asked after the first was done


def test_a_fresh_one_keeps_the_password_that_another_run_has_just_read(cold):
    first = prepare(cold)
    before = os.stat(first.pack).st_ino
    second = prepare(cold, fresh=True)
    assert second.password == first.password
    assert os.stat(second.pack).st_ino != before


@pytest.mark.parametrize("damage", ["", "short", None])
def test_a_damaged_password_makes_both_anew(cold, damage):
    first = prepare(cold)
    if damage is None:
        os.unlink(f"{first.pack}.password")
    else:
        with open(f"{first.pack}.password", "w") as file:
            file.write(damage)
    second = prepare(cold)
    assert second.took > 0
    assert second.password != first.password
    assert prepare(cold) == second._replace(took=0.0)


def test_an_unwritable_cache_is_one_sentence(cold, monkeypatch):
    monkeypatch.setattr(datadir, "pack", lambda folder, out: os.mkdir("/proc/nothing"))
    with pytest.raises(ServerStartError, match=f"cannot prepare a data folder in {cold}: .*'/proc/nothing'"):
        prepare(cold)
    assert not [name for name in os.listdir(cold) if name.startswith("making-")]


def test_what_no_run_has_used_for_a_month_goes_when_something_new_is_made(cold):
    old, recent = ("data-15.1-aaaa-11.pack", "binaries-aaaa"), ("data-16.1-bbbb-11.pack", "binaries-bbbb")
    for pack, copy in (old, recent):
        for name in (pack, f"{pack}.password"):
            with open(os.path.join(cold, name), "w") as file:
                file.write("x")
        os.mkdir(os.path.join(cold, copy))
    for name in (old[0], *old[1:], recent[1]):
        os.utime(os.path.join(cold, name), (0, 0))
    prepare(cold)
    left = os.listdir(cold)
    assert not {old[0], f"{old[0]}.password", old[1]} & set(left)
    assert {recent[0], f"{recent[0]}.password", recent[1]} <= set(left)


def test_a_libc_without_the_usual_locale_gets_another_in_utf8(cold):
    line = 'for part in "$@"; do [ "$part" = --locale=C.UTF-8 ] && exec {real} --locale=xx_YY.UTF-8 -D /nowhere/d; done'
    for found in list_binaries(os.environ, cold):
        folder = os.path.join(cold, found.key)
        os.mkdir(folder, 0o711)
        os.environ["PATH"], path = f"{found.bin_dir}:{os.environ['PATH']}", os.environ["PATH"]
        try:
            programs = wrapped(folder, line)
        finally:
            os.environ["PATH"] = path
        with (
            pgshare.suite_postgres(settings=Settings(bin=programs, state_dir=folder)) as server,
            psycopg.connect(server.dsn) as conn,
        ):
            encoding, upper = conn.execute("select current_setting('server_encoding'), upper('é')").fetchone()
            assert encoding == "UTF8"
            assert upper == ("É" if found.major >= 17 else "é")  # the server's own C.UTF-8, or plain C


def test_a_failure_that_has_nothing_to_do_with_locales_is_not_tried_again(cold):
    programs = wrapped(cold, f'echo ran >> {cold}/ran; echo "initialized with locale C.UTF-8"; echo broken >&2; exit 3')
    os.chmod(cold, 0o777)
    with pytest.raises(ServerStartError, match="initdb ended with status 3"):
        prepare(cold, programs)
    with open(os.path.join(cold, "ran")) as file:
        assert file.read() == "ran\n"


def gone(pid):
    if identity(pid) is not None:  # a zombie whose new parent takes its time is dead
        raise NotYet(f"process {pid}")


def pid_in(path):
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError) as exc:
        raise NotYet(path) from exc


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_maker_takes_initdb_and_its_children_along(cold, number):
    os.chmod(cold, 0o777)
    programs = wrapped(cold, f"sleep 600 & echo $! > {cold}/child; wait")
    starter = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(3)); signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    maker = subprocess.Popen([sys.executable, "-c", starter + MAKE, cold, programs], stderr=subprocess.DEVNULL)
    child = poll("initdb's child", lambda: pid_in(f"{cold}/child"), Deadline.after(30))
    maker.send_signal(number)
    assert maker.wait(30) != 0
    poll("the end of initdb's child", lambda: gone(child), Deadline.after(10))
    assert not [name for name in os.listdir(cold) if name.startswith("making-")]
