"""A read-only API server with a few objects that never change: all that our gateway asks a cluster for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from libs.cluster.kinds import AGENT, MODEL_POOL, Kind

from .stub import MODEL

NAMESPACE, AGENT_NAME, _POOL = "load", "caller", "pool"
_SECONDS = 0.1  # the end waits for this


def objects(provider: str, *, budgets: bool) -> list[dict[str, Any]]:
    """An agent and its pool; with budgets two that are never used up."""
    spec: dict[str, Any] = {"models": [MODEL], "endpoint": provider}
    if budgets:
        most = 10**15
        spec["budgets"] = [{"per": "pool", "tokens": most}, {"per": "agent", "window": "24h", "tokens": most}]
    return [
        _thing(MODEL_POOL, _POOL, spec),
        _thing(AGENT, AGENT_NAME, {"model": {"pool": _POOL}}),
    ]


@contextmanager
def kubeconfig(things: Sequence[dict[str, Any]], path: Path) -> Iterator[Path]:
    """Serves the objects while the block runs; the file says where."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        """Lists, and watches that tell of nothing."""

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            plural = asked.path.rpartition("/")[2]
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            if "watch=true" in asked.query:
                over.wait()
                return
            items = [each for each in things if f"{each['kind'].lower()}s" == plural]
            self.wfile.write(json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(_SECONDS,))
    thread.start()
    try:
        where = {"server": f"http://127.0.0.1:{server.server_port}"}
        written = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "load",
            "clusters": [{"name": "load", "cluster": where}],
            "users": [{"name": "load", "user": {}}],
            "contexts": [{"name": "load", "context": {"cluster": "load", "user": "load"}}],
        }
        path.write_text(json.dumps(written))
        yield path
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _thing(kind: Kind, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"namespace": NAMESPACE, "name": name, "uid": f"{kind.plural}-{name}", "resourceVersion": "1"}
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}
