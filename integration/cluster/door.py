"""The identity listener of an installation, asked with tokens of our choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from libs import pki
from libs.cluster import Object
from libs.enrol import Certificate, Claim, ask
from libs.pki.certificates import new_key

from .kubectl import SYSTEM, Kubectl
from .person import AUDIENCE


@dataclass(frozen=True)
class Door:
    """The identity listener, as anybody reaches it."""

    address: str
    roots: str

    async def ask(self, token: str, key: Any = None, **claim: Any) -> Certificate:
        """Raises what IdentityService says. Without a key: with a new one."""
        return await ask(self.address, self.roots, Claim(token, pki.new_request(key or new_key()), **claim))


@contextmanager
def door(kubectl: Kubectl) -> Iterator[Door]:
    """Open while the block runs."""
    roots = kubectl.get("configmap", "agentctl-trust", "-n", SYSTEM)["data"]["ca.crt"]
    with kubectl.forwarded("service/operator", 7412, SYSTEM) as address:
        yield Door(address, roots)


def token_of(kubectl: Kubectl, pod: Object, audience: str = AUDIENCE) -> str:
    """One as the kubelet mounts it into the pod."""
    metadata = pod["metadata"]
    account = pod["spec"].get("serviceAccountName", "default")
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", metadata["name"])
    words = ("--bound-object-uid", metadata["uid"], "--audience", audience, "-n", metadata["namespace"])
    return kubectl("create", "token", account, *bound, *words).strip()
