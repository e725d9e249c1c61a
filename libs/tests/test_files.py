from __future__ import annotations

import pytest

from libs import files


def test_a_file_is_replaced_with_its_mode(tmp_path):
    path = tmp_path / "it"
    path.write_text("old, and longer")
    files.replace(path, b"new", mode=0o600, lasts=True)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_replaced_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "it").mkdir()
    with pytest.raises(OSError, match="it"):
        files.replace(tmp_path / "it", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
