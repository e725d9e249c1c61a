"""Who may do what with which queue and item. Pure; the mesh table has already let the method through.

An agent submits to and claims from its fleet's queues: the one of its own name, and those whose policy
names it. A producer submits to the queues of its namespace and sees its own items. A user has everything
in one namespace, an administrator and the control plane everywhere. What one may not see is not found.
"""

from __future__ import annotations

from dataclasses import dataclass

from libs.errors import NotFoundError
from libs.identity import Kind, Principal

from .work import Policy, Scope


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of one caller."""

    holder: str  # who holds what is claimed: pod uid included, so two pods of one name are two holders
    submitter: str  # who submitted: an agent's pods are one
    namespace: str | None  # None: all
    agent: str | None
    scope: Scope

    @classmethod
    def of(cls, caller: Principal) -> Access:
        namespace = caller.namespace or None
        match caller.kind:
            case Kind.AGENT:
                submitter = caller.id.rsplit("/pod/", 1)[0]
                scope = Scope(namespace, submitter=submitter, holder=caller.id)
                return cls(caller.id, submitter, namespace, caller.name, scope)
            case Kind.PRODUCER:
                return cls(caller.id, caller.id, namespace, None, Scope(namespace, submitter=caller.id))
            case _:
                return cls(caller.id, caller.id, namespace, None, Scope(namespace))

    def may_use(self, queue: str, policy: Policy | None) -> bool:
        """Whether the caller may submit to, claim from and look at this queue."""
        namespace, _, name = queue.partition("/")
        if self.namespace is not None and namespace != self.namespace:
            return False
        if self.agent is None or self.agent == name:
            return True
        return policy is not None and self.agent in policy.agents

    def check(self, queue: str, policy: Policy | None) -> None:
        """Raise NotFoundError unless the caller may use the queue."""
        if not self.may_use(queue, policy):
            raise NotFoundError(f"no queue {queue}")

    def check_namespace(self, namespace: str) -> None:
        """Raise NotFoundError unless the caller may act in the namespace."""
        if self.namespace is not None and namespace != self.namespace:
            raise NotFoundError(f"no namespace {namespace}")
