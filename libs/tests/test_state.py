"""The state folder: whose it is, and what it says."""

from __future__ import annotations

import json
import os

import pytest

from libs.state import State, StateError, write_json


def test_it_is_its_owners_alone(tmp_path):
    state = State(tmp_path / "deep" / "state")
    state.prepare()
    expected = 0o711 if os.geteuid() == 0 else 0o700
    assert state.folder.stat().st_mode & 0o777 == expected
    for folder in (state.logs, state.objects, state.folder / "identities"):
        assert folder.stat().st_mode & 0o777 == 0o700
    state.prepare()  # again is fine


@pytest.mark.parametrize("name", ["", "logs", "objects", "identities", "pki"])
def test_one_that_others_may_enter_is_refused(tmp_path, name):
    state = State(tmp_path / "state")
    state.prepare()
    state.pki.mkdir(mode=0o700)
    open_folder = state.folder / name
    open_folder.chmod(0o777)
    with pytest.raises(StateError, match=rf"{open_folder}: open to others \(mode 777\).*chmod 700"):
        state.prepare()


def test_what_runs_is_what_was_written(tmp_path):
    state = State(tmp_path)
    assert state.running() == {}
    write_json(state.endpoints, {"plane": "127.0.0.1:1"})
    assert state.running() == {"plane": "127.0.0.1:1"}
    assert [path.name for path in tmp_path.iterdir()] == ["endpoints.json"]
    for text in ("{", json.dumps(["a"])):
        state.endpoints.write_text(text)
        with pytest.raises(StateError, match=r"endpoints\.json: not what `agentctl up` writes"):
            state.running()
