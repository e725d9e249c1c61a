"""AUTH: every method is for whom the mesh table names, and the agent is the pod that it says."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cryptography import x509
from grpc.aio import AioRpcError

from agentctl.agent.v1 import agent_service_pb2 as pb
from libs.errors import (
    DeniedError,
    MeshError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)

from ..case import Group, demand
from ..subject import Subject, is_refused
from ..world import World

GROUP = Group("authorisation", World.standing)

_READS = {"GetManifest": pb.GetManifestRequest(), "GetStatus": pb.GetStatusRequest()}
_VERBS = {
    # whoever lets these through shows it by what becomes of it; drain comes last, since it ends the agent
    "Pause": pb.PauseRequest(),
    "Resume": pb.ResumeRequest(),
    "LameDuck": pb.LameDuckRequest(enabled=True),
    "Cancel": pb.CancelRequest(reason="conformance"),
    "SendMessage": pb.SendMessageRequest(text="conformance"),
    "GetRun": pb.GetRunRequest(run_id="conformance"),
    "ListRuns": pb.ListRunsRequest(),
    "Drain": pb.DrainRequest(),
}
_STREAMS = {"WatchRun": pb.WatchRunRequest(run_id="conformance")}
_CLASSES: dict[str, tuple[type[MeshError], ...]] = {
    # the handshake of these may fail already
    "anonymous": (UnauthenticatedError, DeniedError, UnavailableError),
    "stranger": (UnauthenticatedError, DeniedError, UnavailableError),
    "user of another namespace": (DeniedError, NotFoundError),
}
_NEVER = {
    "agent": "another agent of its namespace",
    "agent of another namespace": "an agent of another namespace",
    "subject's other pod": "another pod of the same agent",
    "subject": "the agent's own certificate",
    "producer": "a producer",
    "cp/scaler": "a component that the table does not name",
    "anonymous": "a client without a certificate",
    "stranger": "cp/apiserver of another trust domain",
}
_READERS = {"user": "a user", "administrator": "an administrator", "cp/operator": "cp/operator"}


async def _answer(agent: Subject, role: str, method: str, request: object) -> object:
    stub = await agent.as_(role)
    call = getattr(stub, method)(request, timeout=5)
    if method in ("WatchRun", "WatchEvents"):
        async for message in call:
            return message
        return None
    return await call


async def _is_shut_out(agent: Subject, role: str, methods: dict[str, object]) -> None:
    if not agent.may_change:  # if it lets us in, something happens: then only what is harmless
        methods = {method: request for method, request in methods.items() if method in _READS}
    if not methods:
        agent.needs_change()
    classes = _CLASSES.get(role, (DeniedError,))
    try:
        for method, request in methods.items():
            await is_refused(_answer(agent, role, method, request), *classes, what=f"{method} from {role}")
    finally:
        await _put_right(agent)


async def _put_right(agent: Subject) -> None:
    """What was wrongly let through must not spoil the next case."""
    with suppress(MeshError, AioRpcError):
        status = await agent.status()
        if status.paused or status.lame_duck:
            stub = await agent.steer()
            await stub.Resume(pb.ResumeRequest())
            await stub.LameDuck(pb.LameDuckRequest(enabled=False))


def _shut_out(role: str, methods: dict[str, object]) -> Callable[[Subject], Awaitable[None]]:
    return functools.partial(_is_shut_out, role=role, methods=methods)


_EVERYTHING: dict[str, object] = {**_READS, "WatchEvents": pb.WatchEventsRequest(), **_STREAMS, **_VERBS}

for _number, (_role, _words) in enumerate(_NEVER.items(), start=1):
    GROUP.case(f"AUTH-{_number:02}", f"{_words} may call nothing", seconds=30)(_shut_out(_role, _EVERYTHING))
for _number, (_role, _words) in enumerate(_READERS.items(), start=11):
    GROUP.case(f"AUTH-{_number:02}", f"{_words} may use no verb and see no run", seconds=30)(
        _shut_out(_role, {**_STREAMS, **_VERBS})
    )


@GROUP.case("AUTH-14", "a user of another namespace does not learn that the agent exists: NOT_FOUND")
async def _hides(agent: Subject) -> None:
    role = "user of another namespace"
    for method, request in _READS.items():
        await is_refused(_answer(agent, role, method, request), NotFoundError, what=f"{method} from a {role}")


@GROUP.case("AUTH-15", "a user of another namespace may use no verb", seconds=30)
async def _refuses_foreign_users(agent: Subject) -> None:
    await _is_shut_out(agent, "user of another namespace", {**_STREAMS, **_VERBS})


@GROUP.case(
    "AUTH-16", "manifest and status are read by apiserver, gateway, operator, users and administrators"
)
async def _lets_readers_in(agent: Subject) -> None:
    for role in ("cp/apiserver", "cp/gateway", *_READERS):
        for method, request in _READS.items():
            try:
                await _answer(agent, role, method, request)
            except MeshError as error:
                demand(False, f"{method} from {role} ends with {error.code.name} ({error})")


@GROUP.case("AUTH-17", "apiserver and gateway may use what the manifest offers")
async def _lets_steerers_in(agent: Subject) -> None:
    agent.needs_change()
    for role in ("cp/apiserver", "cp/gateway"):
        for method, request in (("Resume", pb.ResumeRequest()), ("ListRuns", pb.ListRunsRequest())):
            try:
                await _answer(agent, role, method, request)
            except UnimplementedError as error:
                demand(method not in agent.manifest.surfaces.verbs, f"{method} from {role}: {error}")
            except MeshError as error:
                demand(False, f"{method} from {role} ends with {error.code.name} ({error})")


@GROUP.case("AUTH-18", "it serves with its own pod's certificate, by the DNS name that follows from its id")
async def _is_itself(agent: Subject) -> None:
    names = (await agent.certificate()).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    demand(uris == [agent.server.id], f"the certificate is for {uris}, it has to be for {agent.server.id}")
    found = names.get_values_for_type(x509.DNSName)
    demand(
        found == [agent.server.dns_name], f"its DNS names are {found}, it has to be {agent.server.dns_name}"
    )
