"""Agents that run a program of the test's own: ready at once, without a certificate, and slow to end."""

from __future__ import annotations

from typing import Any

_PROGRAM = """
import http.server, os, signal, threading
signal.signal(signal.SIGTERM, lambda *_: threading.Timer(1, os._exit, (0,)).start())
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("", 9090), Answer).serve_forever()
"""


def agent(namespace: str, name: str, instruction: str, **spec: Any) -> dict[str, Any]:
    """An Agent with a process of its own: of mode loop, unless the spec says otherwise."""
    mode = {} if "mode" in spec else {"mode": "loop", "loop": {"interval": "1h"}}
    return _thing("Agent", namespace, name, {**mode, **_part(instruction), **spec})


def fleet(namespace: str, name: str, instruction: str, size: int, **part: Any) -> dict[str, Any]:
    """An AgentFleet of that many workers."""
    return _thing(
        "AgentFleet",
        namespace,
        name,
        {"template": {**_part(instruction), **part}, "scaling": {"minReplicas": size, "maxReplicas": 10}},
    )


def _part(instruction: str) -> dict[str, Any]:
    container = {
        "name": "agent",
        "command": ["python", "-c", _PROGRAM],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    return {
        "image": "agentctl:dev",
        "instruction": instruction,
        "podTemplate": {"spec": {"containers": [container]}},
    }


def _thing(kind: str, namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "agentctl.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
