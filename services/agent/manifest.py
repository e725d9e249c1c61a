"""What the agent says of itself, made of its settings."""

from __future__ import annotations

from importlib.metadata import version

from libs.contract.manifest import Limits, Manifest, Placement, Surfaces, ToolServer
from libs.identity import Principal

from .settings import Settings


def manifest_of(settings: Settings, me: Principal | None) -> Manifest:
    """The manifest. Without a certificate the agent's name is not known."""
    node = settings.node_name
    place = (
        Placement(me.namespace, me.name, me.pod, me.uid, node)
        if me
        else Placement(settings.pod_namespace, "", settings.pod_name, settings.pod_uid, node)
    )
    return Manifest(
        implementation="agentctl-agent",
        implementation_version=version("agentctl"),
        mode=settings.when,
        placement=place,
        model=settings.model,
        tool_servers=tuple(ToolServer(server.name, server.tags) for server in settings.servers),
        limits=Limits(
            max_steps=settings.max_steps,
            max_tokens=settings.max_tokens or 0,
            deadline=settings.deadline,
            max_depth=settings.max_depth,
            slots=settings.slots,
        ),
        surfaces=Surfaces(
            messages=bool(settings.model),
            queue=settings.queue,
            subscriptions=settings.uris,
            metrics_port=settings.metrics_port,
        ),
    )
