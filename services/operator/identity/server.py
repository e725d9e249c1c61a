"""IdentityService: a token and a key in, a certificate out."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric import ec

from agentctl.identity.v1 import identity_service_pb2 as pb
from agentctl.identity.v1 import identity_service_pb2_grpc as pb_grpc
from libs.cluster import Bearer, Cluster
from libs.errors import DeniedError, InvalidError, UnauthenticatedError
from libs.identity import TrustClass
from libs.pki import TrustBundle, proven_key, thumbprint
from libs.rpc.call import Call

from . import attest
from .attest import Grant, Rules, UnattestedError
from .bindings import Bindings
from .denials import Denials
from .evidence import lineage
from .rates import Rates
from .vault import Vault

_log = logging.getLogger(__name__)

AUDIENCE = "agentctl-identity"
_MOST = 16 * 1024
_UNBELIEVED = (
    "the token is not believed: it is forged or has expired, is for another audience, "
    "or its pod or account is gone"
)


class IdentityServer(pb_grpc.IdentityServiceServicer):
    """Certifies keys. Nothing of a refused token is written down anywhere, the log included."""

    def __init__(
        self,
        cluster: Cluster,
        vault: Vault,
        bindings: Bindings,
        denials: Denials,
        rates: Rates,
        rules: Rules,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._vault = vault
        self._bindings = bindings
        self._denials = denials
        self._rates = rates
        self._rules = rules
        self._clock = clock

    async def IssueCertificate(
        self, request: pb.IssueCertificateRequest, context: object
    ) -> pb.IssueCertificateResponse:
        self._rates.take(_host(Call.of(context).origin()))
        key = _checked(request)
        bearer = await self._believed(request.token)
        grant, runs = await self._granted(request, bearer)
        authority = self._vault.authority
        spiffe_id = f"spiffe://{authority.domain}{grant.path}"
        if self._denials.denies(spiffe_id):
            raise DeniedError("this id is on the deny list")
        await self._bindings.bind(bearer, request.token, thumbprint(key), runs=runs)
        now = datetime.fromtimestamp(self._clock(), UTC)
        chain = authority.sign(
            request.certificate_request.encode(),
            spiffe_id,
            lifetime=grant.lifetime,
            dns_names=grant.dns_names,
            now=now,
        )
        _log.info("certified %s", spiffe_id)
        return _response(chain, authority.bundle, spiffe_id, now, grant.lifetime)

    async def _believed(self, token: str) -> Bearer:
        try:
            return await self._cluster.review_token(token, AUDIENCE)
        except UnauthenticatedError as error:
            _log.info("a token is not believed: %s", error)
            raise UnauthenticatedError(_UNBELIEVED) from error

    async def _granted(self, request: pb.IssueCertificateRequest, bearer: Bearer) -> tuple[Grant, str]:
        """What the bearer gets, and what its pod runs if it is an agent's."""
        match request.WhichOneof("id"):
            case None:
                return await self._agent(bearer)
            case "component":
                return attest.component(request.component, bearer, self._rules), ""
            case "administrator":
                kind, namespace = "administrator", ""
            case "producer_namespace":
                kind, namespace = "producer", request.producer_namespace
            case "user_namespace":
                kind, namespace = "user", request.user_namespace
        grant, access = attest.person(kind, namespace, bearer)
        if not await self._cluster.review_access(bearer, access):
            raise DeniedError(
                f"RBAC does not let {bearer.username} {access.verb} {access.resource}.{access.group}"
            )
        return grant, ""

    async def _agent(self, bearer: Bearer) -> tuple[Grant, str]:
        try:
            found = await lineage(self._cluster, bearer)
            grant = attest.agent(bearer, found, self._rules, datetime.fromtimestamp(self._clock(), UTC))
            runs = attest.fingerprint(found.pod["spec"])
            # while a change rolls out, the pods of the last revision stay who they are
            if not attest.as_templated(found) and await self._bindings.attested(bearer.pod_uid) != runs:
                raise UnattestedError("it is not what the workload's template says")
        except UnattestedError as error:
            _log.warning("no certificate for %s, pod %s: %s", bearer.username, bearer.pod, error.why)
            raise
        return grant, runs


def _checked(request: pb.IssueCertificateRequest) -> ec.EllipticCurvePublicKey:
    """The proven key of a request. InvalidError if anything in it cannot be."""
    problems = {}
    for field, text in (("token", request.token), ("certificate_request", request.certificate_request)):
        if not 0 < len(text) <= _MOST:
            problems[field] = f"must have 1 to {_MOST} characters"
    if request.WhichOneof("id") == "administrator" and not request.administrator:
        problems["administrator"] = "must be true, or not be set"
    if problems:
        raise InvalidError(violations=problems)
    try:
        return proven_key(request.certificate_request.encode())
    except ValueError as error:
        raise InvalidError(violations={"certificate_request": str(error)}) from error


def _response(
    chain: bytes, bundle: TrustBundle, spiffe_id: str, now: datetime, lifetime: timedelta
) -> pb.IssueCertificateResponse:
    renewal = lifetime * 2 / 3 - lifetime * random.uniform(0, 0.1)
    response = pb.IssueCertificateResponse(
        certificate_chain=chain.decode(),
        trust_bundle=pb.TrustBundle(
            root=bundle.root,
            control_plane=bundle.pins(TrustClass.CONTROL_PLANE),
            workloads=bundle.pins(TrustClass.WORKLOADS),
            users=bundle.pins(TrustClass.USERS),
        ),
        spiffe_id=spiffe_id,
    )
    response.expires_at.FromDatetime(now + lifetime)
    response.renew_at.FromDatetime(now + renewal)
    return response


def _host(origin: str) -> str:
    return origin.rpartition(":")[0]
