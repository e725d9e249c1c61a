from __future__ import annotations

import pytest

from libs.exits import Exit, Intent, intent


@pytest.mark.parametrize("code", list(Exit))
def test_every_code_has_an_intent(code):
    assert isinstance(intent(code), Intent)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, "complete"), (2, "terminal"), (4, "retriable"), (6, "retriable"), (7, "policy"), (143, "infra")],
)
def test_codes_mean_what_the_contract_says(code, expected):
    assert intent(code) == expected


def test_an_unknown_code_is_retriable():
    assert intent(99) is Intent.RETRIABLE
    assert intent(-11) is Intent.RETRIABLE
