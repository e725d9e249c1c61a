"""An IdentityService that certifies whoever asks, and the published bundle beside it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agentctl.identity.v1 import identity_service_pb2 as pb
from agentctl.identity.v1 import identity_service_pb2_grpc as pb_grpc
from libs.enrol import Credentials
from libs.identity import TrustClass
from libs.mesh import IDENTITY
from libs.pki import Keyring
from libs.rpc.server import serving

ID = "spiffe://mesh.test/ns/demo/agent/worker/pod/worker-1/uid"


class Issuer(pb_grpc.IdentityServiceServicer):
    """Raises what it is told to, each once; then certifies."""

    def __init__(self, authority):
        self.authority = authority
        self.lifetime = timedelta(hours=1)
        self.errors = []
        self.swapped = b""  # the request that is certified instead
        self.requests = []

    async def IssueCertificate(self, request, context):
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        path = f"spiffe://mesh.test/cp/{request.component}" if request.component else ID
        asked = self.swapped or request.certificate_request.encode()
        chain = self.authority.sign(asked, path, lifetime=self.lifetime)
        bundle = self.authority.bundle
        answer = pb.IssueCertificateResponse(
            certificate_chain=chain.decode(),
            trust_bundle=pb.TrustBundle(
                root=bundle.root,
                control_plane=bundle.pins(TrustClass.CONTROL_PLANE),
                workloads=bundle.pins(TrustClass.WORKLOADS),
                users=bundle.pins(TrustClass.USERS),
            ),
            spiffe_id=path,
        )
        now = datetime.fromtimestamp(time.time(), UTC)
        answer.expires_at.FromDatetime(now + self.lifetime)
        answer.renew_at.FromDatetime(now + self.lifetime * 2 / 3)
        return answer


def new_authority():
    now = datetime.now(UTC)
    return Keyring.begin("mesh.test", now).authority(now)


class Plane:
    """The issuer's address, and what a pod of the plane finds in its folders."""

    def __init__(self, issuer, folder: Path):
        self.issuer, self.folder, self.ahead = issuer, folder, 0.0
        self.trust = folder / "trust"
        self.trust.mkdir()
        self.token = folder / "token"
        self.token.write_text("the token\n")
        self.operator = issuer.authority.issue("spiffe://mesh.test/cp/operator", folder / "operator")
        self.publish()

    def publish(self, authority=None, denied=""):
        """As the operator and the kubelet do."""
        for name, text in ((authority or self.issuer.authority).bundle.files | {"denied": denied}).items():
            part = self.folder / "part"
            part.write_text(text)
            part.rename(self.trust / name)

    def rotate(self):
        """Everything is signed by new authorities, and the old ones are gone at once."""
        self.issuer.authority = new_authority()
        self.issuer.authority.issue("spiffe://mesh.test/cp/operator", self.operator.folder)

    def serve(self, port=0):
        return serving(
            IDENTITY,
            self.operator,
            lambda server: pb_grpc.add_IdentityServiceServicer_to_server(self.issuer, server),
            port=port,
            check_seconds=0.02,
        )

    def credentials(self, address, **changes):
        made = Credentials(
            tls_dir=self.folder / "tls", identity_address=address, token_file=self.token, trust_dir=self.trust
        )
        return replace(made, **changes)

    def clock(self):
        return time.time() + self.ahead
