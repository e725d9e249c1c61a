"""MANIFEST: what the agent says of itself is whole, true, and holds no secret."""

from __future__ import annotations

import json

import anyio
from cryptography import x509
from google.protobuf.json_format import MessageToDict, Parse, ParseError

from agentctl.agent.v1 import agent_service_pb2 as pb
from agentctl.agent.v1 import manifest_pb2
from libs import contract

from ..case import Group, SkippedError, becomes, demand
from ..subject import Subject
from ..world import SECRET, World, free_port

_MODES = ("once", "loop", "reactive", "workflow", "claim")
_VERBS = ("Drain", "LameDuck", "Cancel", "Pause", "Resume")
_MAJOR = contract.VERSION.partition(".")[0]

GROUP = Group("manifest", World.standing)


@GROUP.case(
    "MANIFEST-01", "the manifest names a program, its version, a mode, and a version whose major is ours"
)
async def _is_whole(agent: Subject) -> None:
    manifest = agent.manifest
    major = manifest.contract_version.partition(".")[0]
    demand(major == _MAJOR, f"contract_version is {manifest.contract_version!r}, ours is {contract.VERSION}")
    demand(manifest.implementation, "implementation is empty")
    demand(manifest.implementation_version, "implementation_version is empty")
    demand(manifest.mode in _MODES, f"mode is {manifest.mode!r}, it has to be one of {', '.join(_MODES)}")


@GROUP.case("MANIFEST-02", "its placement is the pod that the certificate names")
async def _is_placed(agent: Subject) -> None:
    names = (await agent.certificate()).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    demand(uris == [agent.server.id], f"the certificate is for {uris}, not for {agent.server.id}")
    said, is_ = agent.manifest.placement, agent.server
    placed = (said.namespace, said.agent, said.pod, said.pod_uid)
    demand(
        placed == (is_.namespace, is_.name, is_.pod, is_.uid),
        f"placement says {'/'.join(placed)}, it is {is_.id}",
    )


@GROUP.case("MANIFEST-03", "its surfaces are well-formed: known verbs, versions with a known major, a port")
async def _has_surfaces(agent: Subject) -> None:
    surfaces = agent.manifest.surfaces
    unknown = set(surfaces.verbs) - set(_VERBS)
    demand(
        not unknown or agent.is_newer(agent.manifest.contract_version),
        f"verbs that there are not: {', '.join(sorted(unknown))}",
    )
    versions = {
        "metrics_version": surfaces.metrics_version,
        "exit_codes_version": surfaces.exit_codes_version,
    }
    for name, version in versions.items():
        demand(not version or version.partition(".")[0] == _MAJOR, f"{name} is {version!r}")
    demand(0 <= surfaces.metrics_port < 65536, f"metrics_port is {surfaces.metrics_port}")
    demand(agent.manifest.limits.slots >= 1, f"limits.slots is {agent.manifest.limits.slots}, at least 1")


@GROUP.case("MANIFEST-04", "neither manifest nor status, metrics or log hold the model's key")
async def _holds_no_secret(agent: Subject) -> None:
    if agent.process is None:
        raise SkippedError("we do not know the key of an agent that is not ours")
    places = {
        "the manifest": str(agent.manifest),
        "the status": str(await agent.status()),
        "stdout": agent.process.stdout,
        "stderr": agent.process.stderr,
    }
    if agent.manifest.surfaces.metrics_port:
        places["/metrics"] = (await agent.plain("/metrics"))[1]
    for place, text in places.items():
        demand(SECRET not in text, f"OPENAI_API_KEY stands in {place}")


@GROUP.case("MANIFEST-05", "it does not change while the process lives")
async def _is_constant(agent: Subject) -> None:
    again = (await (await agent.look()).GetManifest(pb.GetManifestRequest())).manifest
    demand(again == agent.manifest, f"it was {_flat(agent.manifest)}, and is {_flat(again)}")


def _flat(manifest: manifest_pb2.Manifest) -> str:
    return json.dumps(MessageToDict(manifest, preserving_proto_field_name=True))


@GROUP.case("MANIFEST-06", "what --capabilities prints, if the program knows it, is what GetManifest answers")
async def _is_printed(agent: Subject) -> None:
    if agent.process is None or agent.relaunch is None:
        raise SkippedError("needs to start the agent itself: --command or --image")
    expected = manifest_pb2.Manifest()
    expected.CopyFrom(agent.manifest)
    ports = {"AGENT_PORT": free_port(), "AGENT_METRICS_PORT": free_port()}  # it may serve instead
    if expected.surfaces.metrics_port:
        expected.surfaces.metrics_port = ports["AGENT_METRICS_PORT"]
    environment = {**agent.process.environment, **{name: str(port) for name, port in ports.items()}}
    async with agent.relaunch(environment, "--capabilities") as process:

        async def is_clear() -> bool:
            return process.has_ended or await _listens(ports["AGENT_PORT"])

        await becomes(is_clear, "--capabilities neither ends nor is ignored", seconds=10)
        code = process.child.returncode
    if code is None:
        raise SkippedError("not offered: --capabilities begins to serve")
    if code == 2:
        raise SkippedError("not offered: --capabilities ends with 2")
    demand(code == 0, f"--capabilities ends with {code}{process.last_words()}")
    try:
        printed = Parse(process.stdout, manifest_pb2.Manifest(), ignore_unknown_fields=True)
    except ParseError as error:
        demand(False, f"--capabilities prints no manifest: {error}")
    demand(printed == expected, f"it prints {_flat(printed)}, GetManifest answers {_flat(expected)}")


async def _listens(port: int) -> bool:
    try:
        async with await anyio.connect_tcp("127.0.0.1", port):
            return True
    except OSError:
        return False
