from __future__ import annotations

import json
import os
import stat

import pytest

from pgshare.errors import InventoryError
from pgshare.inventory import KINDS, Inventory, to_json


@pytest.fixture
def inventory(tmp_path):
    return Inventory(
        str(tmp_path), run_id="ab12_00000001", owner={"pid": 7, "start_time": 1, "boot_id": "b", "host": "h", "uid": 0}
    )


def states(inventory):
    return [(row["kind"], row["name"], row["state"]) for row in inventory.rows()]


def test_a_row_goes_from_intended_to_created_to_released(inventory, tmp_path):
    ids = inventory.intend([("dir", "/a", "/a"), ("process", "postgres", "/a/data")])
    assert states(inventory) == [("dir", "/a", "intended"), ("process", "postgres", "intended")]
    inventory.created({ids[1]: {"pid": 9, "start_time": 3, "boot_id": "b"}})
    row = inventory.rows()[1]
    assert (row["state"], row["identity"]["pid"], row["run_id"], row["owner"]["pid"]) == ("created", 9, "ab12_00000001", 7)
    inventory.released(ids)
    assert {row["state"] for row in inventory.rows()} == {"released"}
    assert stat.S_IMODE(os.stat(tmp_path / "inventory.json").st_mode) == 0o600


def test_the_file_is_one_json_value_with_the_fields_in_order(inventory, tmp_path):
    inventory.intend([("dir", 'sn"ow ☃ \\ 🎉', "/a")])
    text = (tmp_path / "inventory.json").read_text("ascii")
    data = json.loads(text)
    assert text.endswith("}\n")
    assert list(data) == ["version", "rows"]
    assert list(data["rows"][0]) == [
        "id",
        "kind",
        "name",
        "engine",
        "run_id",
        "owner",
        "identity",
        "root",
        "registered_at",
        "state",
    ]
    assert data["rows"][0]["name"] == 'sn"ow ☃ \\ 🎉'
    assert text == json.dumps(data, separators=(",", ":")) + "\n"


def test_intent_is_on_disk_before_the_call_returns(inventory, monkeypatch):
    order = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, real=real, name=name: (order.append(name), real(*args))[1])
    inventory.intend([("dir", "/a", "/a")])
    assert order == ["fsync", "rename", "fsync"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":2,"rows":[]}', '{"version":1}', '{"version":1,"rows":[3]}'])
def test_an_unreadable_file_is_never_taken_for_empty(inventory, tmp_path, text):
    path = tmp_path / "inventory.json"
    path.write_text(text)
    with pytest.raises(InventoryError, match=r"has version 2|cannot be read.*nothing is removed by guess"):
        inventory.rows()
    if "2" not in text:
        assert (tmp_path / "inventory.json.corrupt-1").read_text() == text
        assert not path.exists()


def test_a_second_corrupt_file_does_not_replace_the_first(inventory, tmp_path):
    for number in (1, 2):
        (tmp_path / "inventory.json").write_text(f"broken {number}")
        with pytest.raises(InventoryError):
            inventory.rows()
    assert (tmp_path / "inventory.json.corrupt-1").read_text() == "broken 1"
    assert (tmp_path / "inventory.json.corrupt-2").read_text() == "broken 2"


def test_unknown_kinds_and_values_are_refused(inventory):
    with pytest.raises(ValueError, match="unknown kind 'planet'; known: " + ", ".join(KINDS)):
        inventory.intend([("planet", "x", "y")])
    with pytest.raises(TypeError, match="cannot record"):
        to_json({"x": 1.5})
