"""Who may do what in the local home. It is one trust domain: who starts it is its administrator.

| ServiceAccount                    | may                                                                  |
|-----------------------------------|----------------------------------------------------------------------|
| agentctl-system/administrator     | everything: the account of the person who started the home           |
| any other, with a token of no pod | in its own namespace, which is not agentctl-system: be a producer or |
|                                   | a user; get Secrets and impersonate ServiceAccounts, as by the role  |
|                                   | `edit` of Kubernetes; drain, lame-duck, cancel, pause and resume     |
|                                   | Agents and AgentFleets, and get their status                         |
| any, with a token of a pod        | nothing here: a pod's identity comes from its workload               |

So nobody but the administrator overrides a gate of admission. Nobody gets a token of no pod but from this
process (`issue_token`), so the table decides what the administrator hands out, not what a stranger can take.
"""

from __future__ import annotations

from libs.cluster import Access, Bearer

SYSTEM = "agentctl-system"
ADMINISTRATOR = "administrator"
_MANAGED = ("agents", "agentfleets")
_VERBS = ("drain", "lame-duck", "cancel", "pause", "resume")
_IDENTITY, _MANAGEMENT = "identity.agentctl.dev", "management.agentctl.dev"
_OWN = frozenset(
    {
        ("request", _IDENTITY, "producers", ""),
        ("request", _IDENTITY, "users", ""),
        ("get", "", "secrets", ""),
        ("impersonate", "", "serviceaccounts", ""),
        *(("create", _MANAGEMENT, resource, verb) for resource in _MANAGED for verb in _VERBS),
        *(("get", _MANAGEMENT, resource, "status") for resource in _MANAGED),
    }
)
"""Verb, group, resource and subresource of what an account may do in its own namespace."""


def allowed(bearer: Bearer, access: Access) -> bool:
    """The table above."""
    namespace, account = bearer.service_account
    if not account or bearer.pod:
        return False
    if namespace == SYSTEM:
        return account == ADMINISTRATOR
    wanted = (access.verb, access.group, access.resource, access.subresource)
    return wanted in _OWN and access.namespace == namespace
