"""What becomes of the error of a call: its exit code, and a line that is true whoever was called."""

from __future__ import annotations

import pytest

from libs import errors
from libs.cluster import UnauthorisedError

from ..session import failed

WHERE = "127.0.0.1:7415"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFoundError("x"), 3),
        (errors.DeniedError("x"), 4),
        (errors.UnauthenticatedError("x"), 4),
        (UnauthorisedError("x"), 4),
        (errors.UnavailableError("x"), 5),
        (errors.DeadlineError("x"), 5),
        (errors.UnreachableError("CERTIFICATE_VERIFY_FAILED"), 4),
        (errors.UnreachableError("failed to connect to all addresses: Socket closed"), 4),
        (errors.UnreachableError("Ssl handshake failed"), 5),
        (errors.UnreachableError("Connection refused"), 5),
        (errors.InvalidError("x"), 1),
        (errors.InternalError("x"), 1),
    ],
    ids=lambda each: repr(each) if isinstance(each, Exception) else "",
)
def test_an_error_has_its_exit_code_and_names_no_component_that_was_not_called(error, code):
    found = failed(error, WHERE)
    assert found.code == code
    assert "coordination" not in str(found)
