"""A mesh in a test: one certificate authority, servers on loopback, and callers of every role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from libs.identity import Identity, Principal
from libs.mesh import COORDINATION, Component
from libs.pki import Authority
from libs.rpc.client import Channel, dial
from libs.rpc.server import Serving, serving

from . import ca

NAMESPACE = "demo"


def spiffe_path(role: str, namespace: str = NAMESPACE) -> str:
    """The id, without its domain, that a short role stands for:

    `cp/<component>`; `agent[/<name>[/<uid>]]`; `producer[/<name>]`; `user[/<name>]`;
    `administrator[/<name>]`.
    """
    kind, *rest = role.split("/")
    name = rest[0] if rest else {"agent": "worker", "administrator": "root"}.get(kind, "someone")
    match kind:
        case "cp":
            return f"/cp/{name}"
        case "agent":
            uid = rest[1] if len(rest) > 1 else f"uid-{name}"
            return f"/ns/{namespace}/agent/{name}/pod/{name}-0/{uid}"
        case "producer" | "user":
            return f"/ns/{namespace}/{kind}/{name}"
        case "administrator":
            return f"/user/{name}"
    raise ValueError(f"no such role: {role}")


@dataclass
class Mesh:
    """Identities by role, made once each, and the calls to serve and to dial with them."""

    folder: Path
    authority: Authority = field(default_factory=ca.authority)
    _identities: dict[str, Identity] = field(default_factory=dict)

    def identity(
        self, role: str, namespace: str = NAMESPACE, *, lifetime: timedelta = timedelta(hours=1)
    ) -> Identity:
        """The identity of a role, as `spiffe_path` reads it."""
        path = spiffe_path(role, namespace)
        if path not in self._identities:
            self._identities[path] = ca.identity(self.authority, self.folder, path, lifetime=lifetime)
        return self._identities[path]

    def principal(self, role: str, namespace: str = NAMESPACE) -> Principal:
        """Who that is, as `dial` wants it of an agent."""
        return Principal.parse(f"spiffe://{self.authority.domain}{spiffe_path(role, namespace)}")

    def serve(
        self,
        register: Callable[[Any], None],
        component: Component = COORDINATION,
        *,
        role: str = "",
        **options: Any,
    ) -> AbstractAsyncContextManager[Serving]:
        """`serving` on a free port, as that component, or as this agent; `options` are those of `serving`."""
        return serving(component, self.identity(role or component.role), register, **options)

    def dial_as(
        self,
        role: str,
        served: Serving,
        component: Component = COORDINATION,
        *,
        namespace: str = NAMESPACE,
        **options: Any,
    ) -> AbstractAsyncContextManager[Channel]:
        """`dial` in that role; `options` are those of `dial`."""
        return dial(component, served.address, self.identity(role, namespace), **options)


@contextmanager
def mesh(folder: Path) -> Iterator[Mesh]:
    """A mesh whose identities live in this folder."""
    yield Mesh(folder)
