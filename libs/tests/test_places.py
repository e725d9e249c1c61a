from __future__ import annotations

import pytest

from libs.errors import ExhaustedError
from libs.places import Places


def test_nobody_has_more_than_its_share_and_all_together_no_more_than_there_are():
    places = Places(3, 2)
    with places.taken("ann"), places.taken("ann"):
        with pytest.raises(ExhaustedError), places.taken("ann"):
            pass
        with places.taken("bob"), pytest.raises(ExhaustedError), places.taken("eve"):
            pass
        with places.taken("eve"):
            pass


def test_a_place_is_free_again_however_its_block_ends():
    places = Places(1, 1)
    with pytest.raises(ZeroDivisionError), places.taken("ann"):
        raise ZeroDivisionError
    with places.taken("ann"):
        pass
