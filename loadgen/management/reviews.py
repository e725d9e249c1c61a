"""Reviews of the corpus, each verdict compared with what it has to be."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.admission.v1.admission_service_pb2 import ReviewRequest, ReviewResponse
from libs.documents import struct_of

from .corpus import Case, Verdict
from .sample import Call

if TYPE_CHECKING:
    from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceAsyncStub

_PATH = "/validate?timeout=5s"
_SECONDS = 5.0


def by_grpc(stub: AdmissionServiceAsyncStub, cases: Sequence[Case]) -> Call:
    """Review, over the one connection of the stub."""
    requests = [ReviewRequest(object=struct_of(case.thing)) for case in cases]

    async def call(number: int) -> str:
        index = number % len(cases)
        return cases[index].complaint(_said(await stub.Review(requests[index])))

    return call


@dataclass(frozen=True)
class Webhook:
    """Where an admission webhook is, and by whom its certificate has to be signed, for which name."""

    address: str
    authorities: Path
    """A PEM file."""
    server_name: str


@asynccontextmanager
async def by_webhook(webhook: Webhook, cases: Sequence[Case], connections: int) -> AsyncIterator[Call]:
    """AdmissionReview v1 as an API server posts it: TLS, HTTP/1.1, connections that are kept."""
    import aiohttp

    bodies = [case.body for case in cases]
    url = f"https://{webhook.address}{_PATH}"
    tls = ssl.create_default_context(cafile=str(webhook.authorities))
    connector = aiohttp.TCPConnector(limit=connections, ssl=tls)
    total = aiohttp.ClientTimeout(total=_SECONDS)
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=total, headers=headers) as http:

        async def call(number: int) -> str:
            index = number % len(cases)
            case = cases[index]
            try:
                async with http.post(
                    url, data=bodies[index], server_hostname=webhook.server_name
                ) as response:
                    if response.status != 200:
                        return f"{case.name}: HTTP {response.status}"
                    return reviewed(case, await response.json())
            except (aiohttp.ClientError, TimeoutError) as error:
                return f"{case.name}: {type(error).__name__} {error}"

        yield call


def reviewed(case: Case, answer: dict[str, Any]) -> str:
    """What is wrong with an answered AdmissionReview; its audit annotations name the rules that found."""
    response = answer.get("response") or {}
    if (answer.get("kind"), response.get("uid")) != ("AdmissionReview", case.name):
        return f"{case.name}: this is no answer to it: {answer}"
    notes = response.get("auditAnnotations") or {}
    denials, warnings = (
        frozenset(filter(None, notes.get(name, "").split(","))) for name in ("denied-by", "warned-by")
    )
    if bool(warnings) != bool(response.get("warnings")):
        return (
            f"{case.name}: {len(response.get('warnings') or ())} warnings, and rules that warned: {warnings}"
        )
    return case.complaint(Verdict(response.get("allowed") is True, denials, warnings))


def _said(answer: ReviewResponse) -> Verdict:
    return Verdict(
        answer.allowed,
        frozenset(each.rule for each in answer.denials),
        frozenset(each.rule for each in answer.warnings),
    )
