"""Ports stay the same while they can."""

from __future__ import annotations

import socket

from ..ports import Ports


def test_the_next_start_has_the_same(tmp_path):
    first = Ports(tmp_path / "ports.json")
    had = {name: first[name] for name in ("a", "b", "coordination")}
    assert len(set(had.values())) == 3
    first.keep()
    again = Ports(tmp_path / "ports.json")
    assert {name: again[name] for name in had} == had


def test_one_that_another_has_meanwhile_is_another(tmp_path):
    first = Ports(tmp_path / "ports.json")
    had = first["a"]
    first.keep()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", had))
        taken.listen()
        assert Ports(tmp_path / "ports.json")["a"] != had


def test_a_port_that_was_asked_for_is_that_one(tmp_path):
    assert Ports(tmp_path / "ports.json", 17410)["coordination"] == 17410


def test_a_port_that_is_asked_for_is_taken_from_who_had_it(tmp_path):
    first = Ports(tmp_path / "ports.json")
    had = first["operator"]
    first.keep()
    again = Ports(tmp_path / "ports.json", had)
    assert (again["coordination"], again["operator"] != had) == (had, True)


def test_a_file_that_makes_no_sense_is_as_none(tmp_path):
    for text in ("", "[]", '{"a": "x"}', '{"a": -1}', '{"a": 99999999}'):
        (tmp_path / "ports.json").write_text(text)
        assert 0 < Ports(tmp_path / "ports.json")["a"] < 65536
