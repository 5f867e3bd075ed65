from __future__ import annotations

import pytest

from pgshare.errors import SettingError
from pgshare.settings import OPTIONS, read_table, resolve_settings, settings_from_env


def resolve(flags=None, env=None, table=None):
    return resolve_settings(flags=flags or {}, env=env or {}, table=table or {})


SAMPLES = {
    "text": ("from-flag", "from-env", "from-table"),
    "switch": (True, "0", True),
    "seconds": ("1.5", "2", 3),
    "list": ("a,b", "c", ["d"]),
}


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.in_table], ids=lambda option: option.name)
def test_every_option_takes_flag_over_variable_over_table(option):
    samples = SAMPLES.get(option.kind, tuple(option.choices[:3]))
    flag, variable, key = samples
    everything = resolve({option.name: flag}, {option.variable: variable}, {option.name: key})
    assert everything.sources[option.name] == option.flag
    without_flag = resolve({}, {option.variable: variable}, {option.name: key})
    assert without_flag.sources[option.name] == option.variable
    only_table = resolve({}, {option.variable: "  "}, {option.name: key})
    assert only_table.sources[option.name] == f"[tool.pgshare] {option.name}"
    values = [getattr(found, option.name) for found in (everything, without_flag, only_table)]
    expected = {
        "text": ["from-flag", "from-env", "from-table"],
        "switch": [True, False, True],
        "seconds": [1.5, 2.0, 3.0],
        "list": [("a", "b"), ("c",), ("d",)],
    }.get(option.kind, list(samples))
    assert values == expected
    assert option.name not in resolve().sources


def test_a_blank_variable_is_unset():
    assert resolve(env={"PGSHARE_DSN": "  ", "PGSHARE_REQUIRE": ""}).dsn is None


def test_the_wait_is_longer_in_ci_unless_it_is_set():
    assert resolve().wait == 3
    assert resolve(env={"CI": "true"}).wait == 30
    assert resolve(env={"CI": " "}).wait == 3
    assert resolve(env={"CI": "1", "PGSHARE_WAIT": "5"}).wait == 5


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"PGSHARE_REQUIRE": "maybe"}, "PGSHARE_REQUIRE must be 1 or 0, got 'maybe'"),
        ({"PGSHARE_WAIT": "soon"}, "PGSHARE_WAIT must be a number of seconds, 0 or more, got 'soon'"),
        ({"PGSHARE_WAIT": "-1"}, "PGSHARE_WAIT must be a number of seconds, 0 or more, got '-1'"),
        ({"PGSHARE_KEEP": "some"}, "PGSHARE_KEEP must be one of never, failed, always, got 'some'"),
        ({"PGSHARE_DNS": "x"}, "the environment has an unknown variable PGSHARE_DNS; did you mean PGSHARE_DSN?"),
    ],
)
def test_a_bad_variable_is_named_with_the_way_out(env, message):
    with pytest.raises(SettingError) as caught:
        resolve(env=env)
    assert str(caught.value) == message


def test_a_bad_table_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"\[tool.pgshare\] has an unknown key 'requir'; did you mean require\?"):
        resolve(table={"requir": True})
    with pytest.raises(SettingError, match=r"\[tool.pgshare\] wait must be a number of seconds"):
        resolve(table={"wait": True})
    (tmp_path / "pyproject.toml").write_text("[tool.pgshare\n")
    with pytest.raises(SettingError, match="pyproject.toml cannot be read"):
        read_table(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool]\npgshare = 3\n")
    with pytest.raises(SettingError, match="must be a table"):
        read_table(tmp_path)


def test_the_table_is_read_where_there_is_one(tmp_path):
    assert read_table(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text('[tool.pgshare]\nkeep = "failed"\n')
    assert read_table(tmp_path) == {"keep": "failed"}


def test_a_setting_is_named_as_it_was_written():
    assert resolve(flags={"dsn": "x"}).named("dsn") == "--pg-dsn"
    assert resolve(env={"PGSHARE_DSN": "x"}).named("dsn") == "PGSHARE_DSN"
    assert resolve().named("dsn") == "PGSHARE_DSN"


def test_the_dsn_is_not_in_the_repr():
    assert "secret" not in repr(settings_from_env({"PGSHARE_DSN": "host=x password=secret"}))


@pytest.mark.parametrize("place", ["flags", "env", "table"])
def test_blank_is_unset_wherever_it_is_written(place):
    blank = {"PGSHARE_DSN": " ", "PGSHARE_WAIT": ""} if place == "env" else {"dsn": " ", "wait": ""}
    found = resolve(**{place: blank})
    assert (found.dsn, found.wait, found.sources) == (None, 3, {})


def test_a_blank_flag_does_not_hide_the_variable():
    # pytest --pg-dsn "$DSN" in a job where DSN is not set
    found = resolve(flags={"dsn": ""}, env={"PGSHARE_DSN": "host=x"})
    assert (found.dsn, found.named("dsn")) == ("host=x", "PGSHARE_DSN")


def test_a_false_value_is_not_blank():
    assert resolve(flags={"wait": 0}, env={"PGSHARE_WAIT": "5"}).wait == 0
    assert resolve(flags={"tcp": False}, env={"PGSHARE_TCP": "1"}).tcp is False
    assert resolve(table={"wait": 0}).wait == 0


@pytest.mark.parametrize(
    "name",
    ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_5432_TCP", "PORT_5432_TCP_ADDR", "PORT_5432_TCP_PROTO"],
)
def test_what_kubernetes_sets_for_a_service_of_our_name_is_not_ours(name):
    assert resolve(env={f"PGSHARE_{name}": "tcp://172.17.0.3:5432"}) == resolve()


def test_an_unknown_variable_that_is_blank_is_unset():
    assert resolve(env={"PGSHARE_DNS": " "}) == resolve()


def test_a_dsn_of_the_wrong_type_is_not_shown():
    with pytest.raises(SettingError) as caught:
        resolve(table={"dsn": ["postgresql://u:secret@h"]})
    assert str(caught.value) == "[tool.pgshare] dsn must be text, got a list"


def test_a_setting_of_the_machine_has_no_place_in_the_projects_file():
    with pytest.raises(SettingError) as caught:
        resolve(table={"state_dir": "/x"})
    assert str(caught.value) == "[tool.pgshare] cannot set 'state_dir', which differs by machine; set PGSHARE_STATE_DIR"
