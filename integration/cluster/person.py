"""Somebody outside the cluster with a ServiceAccount's token: gets a certificate, calls coordination."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from libs import pki
from libs.enrol import Claim, ask
from libs.identity import Identity
from libs.work import Client, connect

from .kubectl import SYSTEM, Kubectl

AUDIENCE = "agentctl-identity"


class Person:
    """A ServiceAccount of a namespace that the test owns. It may do what `bind` lets it."""

    def __init__(self, kubectl: Kubectl, namespace: str, name: str) -> None:
        self._kubectl = kubectl
        self._namespace = namespace
        self._name = name
        kubectl("create", "serviceaccount", name, "-n", namespace)

    def bind(self, role: str) -> None:
        """The ClusterRole counts for it in its namespace."""
        account = f"--serviceaccount={self._namespace}:{self._name}"
        words = ("create", "rolebinding", f"{self._name}-{role}", f"--clusterrole={role}", account)
        self._kubectl(*words, "-n", self._namespace)

    def token(self, audience: str = AUDIENCE) -> str:
        """Without an audience: for the API server."""
        words = ("create", "token", self._name, "-n", self._namespace)
        return self._kubectl(*words, *(("--audience", audience) if audience else ())).strip()

    def kubectl(self, folder: Path) -> Kubectl:
        """As this person has it: with a kubeconfig in that folder whose only credential is a token."""
        config = json.loads(self._kubectl("config", "view", "--minify", "--flatten", "-o", "json"))
        for user in config["users"]:
            user["user"] = {"token": self.token("")}
        file = folder / "kubeconfig"
        file.write_text(json.dumps(config))
        return Kubectl(file)

    async def certified(self, folder: Path, *, administrator: bool = False, token: str = "") -> Identity:
        """With a user's certificate of its namespace, in that folder. Raises what IdentityService says."""
        identity = Identity(folder)
        key = pki.own_key(identity.key)
        trust = self._kubectl.get("configmap", "agentctl-trust", "-n", SYSTEM)["data"]
        claim = Claim(
            token or self.token(),
            pki.new_request(key),
            user_namespace="" if administrator else self._namespace,
            administrator=administrator,
        )
        with self._kubectl.forwarded("service/operator", 7412, SYSTEM) as address:
            certificate = await ask(address, trust["ca.crt"], claim)
        pki.write_identity(identity, certificate.bundle, identity.key.read_bytes(), certificate.chain_pem)
        return identity

    @asynccontextmanager
    async def client(self, folder: Path) -> AsyncIterator[Client]:
        """Coordination, as a user of the namespace sees it."""
        identity = await self.certified(folder)
        with self._kubectl.forwarded("service/coordination", 7410, SYSTEM) as address:
            async with connect(address, identity) as client:
                yield client
