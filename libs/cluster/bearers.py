"""Who a caller of the mesh is to RBAC: its certificate says whose token it was given for."""

from __future__ import annotations

from libs.errors import DeniedError
from libs.identity import Kind, Principal

from . import Bearer

_PEOPLE = (Kind.USER, Kind.ADMINISTRATOR)


def bearer_of(principal: Principal) -> Bearer:
    """The ServiceAccount that a user or administrator `<namespace>.<account>` is. DeniedError for everybody
    else: no rule of RBAC is about them."""
    namespace, _, account = principal.name.partition(".")
    if principal.kind not in _PEOPLE or not namespace or not account:
        raise DeniedError(f"{principal.id} is no ServiceAccount's, so no role can be bound to it")
    return Bearer(
        f"system:serviceaccount:{namespace}:{account}",
        ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"),
    )
