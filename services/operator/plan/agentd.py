"""An agent that speaks agentd-1, and the bridge beside it.

The bridge has what the reference agent would have: identity, queue, probes, ports. The agent has only its
own flags and variables (those of agentd 1.0 to 1.4, where a flag beats a variable). Its listener is for the
bridge, and its model and its tool servers are at the bridge: all on loopback, none with a secret.
"""

from __future__ import annotations

import copy

from libs.cluster import Object
from libs.resources.agent import AgentSpec, Limits
from libs.resources.pool import TRIFECTA

from . import environment
from .context import Context
from .duration import shown
from .environment import RUN, TMP, WORKFLOW, WORKFLOW_FILE, Part, listed, literal
from .template import CONTAINER, DRAIN, VOLUME_PREFIX

BRIDGE = "bridge"
"""The container's name."""
COMMAND = "agentctl-bridge"
FOLDER = f"{RUN}/bridge"
"""tls.crt and tls.key of the agent's listener, and ca.crt, which says who may call it."""

_LISTENER, _FORWARDED, _METRICS = 8443, 7431, 9091
_SCRATCH = f"{VOLUME_PREFIX}scratch"
_REQUESTS = {"cpu": "50m", "memory": "96Mi"}
_FIELDS = {
    "AGENT_HOST": "status.podIP",
    "AGENT_POD_NAME": "metadata.name",
    "AGENT_POD_UID": "metadata.uid",
    "AGENT_POD_NAMESPACE": "metadata.namespace",
    "AGENT_NODE_NAME": "spec.nodeName",
}


def beside(pod: Object, part: Part, context: Context, queue: str, drain: str) -> Object:
    """The pod, whose one container is a bridge, with the agent beside it. The bridge begins first and ends
    last, and keeps no pod alive: a native sidecar. `queue` and `drain`: of a fleet's worker, or ""."""
    spec = pod["spec"]
    (container,) = spec["containers"]
    alive = dict(container["livenessProbe"]["httpGet"])
    bridge = {
        **container,
        "name": BRIDGE,
        "env": [*container["env"], *listed({"BRIDGE_SHARED_DIR": FOLDER})],
        "restartPolicy": "Always",
        # Ready it is only with its agent, which waits for this.
        "startupProbe": {**container["startupProbe"], "httpGet": alive},
        "volumeMounts": [*container["volumeMounts"], _mount(FOLDER, f"{VOLUME_PREFIX}{BRIDGE}")],
        "resources": {"requests": dict(_REQUESTS)},
    }
    workflow = [each for each in container["volumeMounts"] if each["mountPath"] == WORKFLOW]
    agent = {
        "name": CONTAINER,
        "image": part.image,
        "args": _arguments(part, context, queue, drain),
        "env": _variables(part, context),
        "securityContext": copy.deepcopy(container["securityContext"]),
        "volumeMounts": [
            {**_mount(FOLDER, f"{VOLUME_PREFIX}{BRIDGE}"), "readOnly": True},
            *copy.deepcopy(workflow),
            _mount(TMP, _SCRATCH),
        ],
    }
    volumes = [
        *spec["volumes"],
        {"name": f"{VOLUME_PREFIX}{BRIDGE}", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": _SCRATCH, "emptyDir": {}},
    ]
    return {**pod, "spec": {**spec, "initContainers": [bridge], "containers": [agent], "volumes": volumes}}


def _mount(path: str, volume: str) -> Object:
    return {"name": volume, "mountPath": path}


def _variables(part: Part, context: Context) -> list[Object]:
    model = f"http://{context.settings.loopback}:{_FORWARDED}/v1/chat/completions"
    run_id = environment.run_id() if isinstance(part, AgentSpec) and environment.ends(part) else []
    return [
        *environment.fields(_FIELDS),
        *run_id,
        {"name": "AGENT_INTELLIGENCE", "value": model},  # 1.0 reads this one only, the contract says the next
        {"name": "INTELLIGENCE", "value": model},
        *listed({"AGENT_MODEL": environment.model_of(part, context)}),
        {"name": "AGENT_METRICS_ADDR", "value": f"{context.settings.loopback}:{_METRICS}"},
    ]


def _arguments(part: Part, context: Context, queue: str, drain: str) -> list[str]:
    at = context.settings.loopback
    words = [*_mode(part, queue), "--instruction", literal(part.instruction)]
    for server in environment.servers_of(part, context):
        words += ["--mcp", f"{server.name}=http://{at}:{_FORWARDED}/mcp/{server.name}"]
        if known := [tag for tag in server.tags if tag in TRIFECTA]:
            words += ["--mcp-tags", f"{server.name}={','.join(known)}"]
    return [
        *words,
        *_limits(part.limits or Limits()),
        *("--serve-mcp", f"https://{at}:{_LISTENER}"),
        *("--serve-cert", f"{FOLDER}/tls.crt"),
        *("--serve-key", f"{FOLDER}/tls.key"),
        *("--serve-client-ca", f"{FOLDER}/ca.crt"),
        *("--drain-timeout", shown(drain or DRAIN)),
    ]


def _mode(part: Part, queue: str) -> list[str]:
    """What it does by itself. A worker is sent its items, so it does nothing; but reactive, the one mode that
    only waits, has to be given something to wait for: without, it ends with exit code 2."""
    if not isinstance(part, AgentSpec):
        return ["--mode", "reactive", "--subscribe", f"queue://{queue}"]
    words = ["--mode", environment.mode_of(part)]
    for uri in part.subscribe:
        words += ["--subscribe", literal(uri)]
    if part.loop:
        words += ["--interval", shown(part.loop.interval)]
    if part.workflow:
        words += ["--workflow", WORKFLOW_FILE]
    return words


def _limits(limits: Limits) -> list[str]:
    told = {
        "--max-steps": limits.max_steps,
        "--max-tokens": limits.max_tokens,
        "--max-depth": limits.max_depth,
        "--deadline": shown(limits.deadline) or None,
    }
    return [word for flag, value in told.items() if value is not None for word in (flag, str(value))]
