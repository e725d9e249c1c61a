"""Who may do what in the local home. It is one trust domain: who starts it is its administrator.

| ServiceAccount                    | may                                                                  |
|-----------------------------------|----------------------------------------------------------------------|
| agentctl-system/administrator     | everything: the account of the person who started the home           |
| any other, with a token of no pod | be a producer or a user of its own namespace, not of agentctl-system |
| any, with a token of a pod        | nothing here: a pod's identity comes from its workload               |

Nobody gets a token of no pod but from this process (`issue_token`), so the table decides what the
administrator hands out, not what a stranger can take.
"""

from __future__ import annotations

from libs.cluster import Access, Bearer

SYSTEM = "agentctl-system"
ADMINISTRATOR = "administrator"
_GROUP = "identity.agentctl.dev"
_RESOURCES = ("producers", "users")


def allowed(bearer: Bearer, access: Access) -> bool:
    """The table above."""
    namespace, account = bearer.service_account
    if not account or bearer.pod:
        return False
    if namespace == SYSTEM:
        return account == ADMINISTRATOR
    wanted = (access.verb, access.group, access.subresource) == ("request", _GROUP, "")
    return wanted and access.resource in _RESOURCES and access.namespace == namespace
