"""One question to IdentityService, on a connection of its own: idle processes hold none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc.aio import AioRpcError

from agentctl.identity.v1 import identity_service_pb2 as pb
from agentctl.identity.v1 import identity_service_pb2_grpc as pb_grpc
from libs.identity import TrustClass
from libs.mesh import IDENTITY
from libs.pki import TrustBundle, domain_of
from libs.rpc.status import error_of

_SECONDS = 10.0
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # whoever asks tries again by himself, with a token read anew
    ("grpc.use_local_subchannel_pool", 1),  # or core would keep the connection
)


@dataclass(frozen=True)
class Claim:
    """Who asks, and for which of its ids: at most one of the last four. None of them: a pod's own."""

    token: str = field(repr=False)
    request_pem: bytes
    component: str = ""
    producer_namespace: str = ""
    user_namespace: str = ""
    administrator: bool = False


@dataclass(frozen=True)
class Certificate:
    """What came of it."""

    chain_pem: bytes
    bundle: TrustBundle
    spiffe_id: str
    expires_at: float  # unix seconds
    renew_at: float


async def ask(address: str, roots_pem: str, claim: Claim) -> Certificate:
    """A certificate. The server has to be the operator of the trust domain of these roots. MeshError as
    the server says; UnreachableError if there is none, or if it is not that one; ValueError if the roots or
    the bundle that comes cannot be."""
    domain = domain_of(roots_pem)
    credentials = grpc.ssl_channel_credentials(roots_pem.encode())
    name = ("grpc.ssl_target_name_override", f"{IDENTITY.name}.cp.{domain}")
    async with grpc.aio.secure_channel(address, credentials, [*_OPTIONS, name]) as channel:
        stub: Any = pb_grpc.IdentityServiceStub(channel)
        try:
            answer = await stub.IssueCertificate(_request(claim), timeout=_SECONDS)
        except AioRpcError as error:
            raise error_of(error) from error
    return _certificate(answer)


def _request(claim: Claim) -> pb.IssueCertificateRequest:
    request = pb.IssueCertificateRequest(token=claim.token, certificate_request=claim.request_pem.decode())
    if claim.component:
        request.component = claim.component
    elif claim.producer_namespace:
        request.producer_namespace = claim.producer_namespace
    elif claim.user_namespace:
        request.user_namespace = claim.user_namespace
    elif claim.administrator:
        request.administrator = True
    return request


def _certificate(answer: pb.IssueCertificateResponse) -> Certificate:
    bundle = answer.trust_bundle
    files = {
        "ca.crt": bundle.root,
        f"{TrustClass.CONTROL_PLANE.value}.crt": bundle.control_plane,
        f"{TrustClass.WORKLOADS.value}.crt": bundle.workloads,
        f"{TrustClass.USERS.value}.crt": bundle.users,
    }
    return Certificate(
        answer.certificate_chain.encode(),
        TrustBundle.of(files),
        answer.spiffe_id,
        answer.expires_at.seconds,
        answer.renew_at.seconds,
    )
