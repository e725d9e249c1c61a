"""The `agent://` resources: what a peer may read of the process."""

from __future__ import annotations

import json
import os
import time
from urllib.parse import parse_qs, urlsplit

from . import manifest
from .exits import Json
from .journal import LEVELS
from .rpc import INVALID_PARAMS, UNKNOWN_RESOURCE, RpcError
from .served import Served
from .supervisor import SERVED_AT_ONCE, Supervisor

_ALWAYS = ("status", "capabilities", "inventory", "intelligence", "config/effective", "capacity", "events")


class Resources:
    """Listing and reading; `agentd://` is taken for `agent://`."""

    def __init__(self, supervisor: Supervisor, served: Served) -> None:
        self._supervisor = supervisor
        self._served = served

    def listing(self) -> Json:
        """The body of resources/list."""
        names = [*_ALWAYS, f"run/{self._supervisor.options.run_id}"]
        names += [f"subagent/{run.task.handle}" for run in self._served.known]
        return {"resources": [{"uri": f"agent://{name}", "name": name} for name in names]}

    async def read(self, uri: str) -> Json:
        """The body of resources/read. Raises RpcError for a resource that is not served."""
        body = json.dumps(await self._body(uri))
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": body}]}

    def status(self) -> Json:
        """Also the answer of the `status` tool."""
        supervisor = self._supervisor
        return {
            "run_id": supervisor.options.run_id,
            "mode": supervisor.options.mode,
            "version": supervisor.options.agent_version,
            "pid": os.getpid(),
            "uptime_ms": round((time.monotonic() - supervisor.begun) * 1000),
            "inflight_spawns": len(supervisor.children),
            "total_spawns": supervisor.spawned,
        }

    def subagent(self, handle: str) -> Json:
        """One served run. Raises RpcError for one that is not remembered."""
        run = self._served.get(handle, INVALID_PARAMS)
        return {"handle": handle, "status": run.status, "paused": run.task.control.paused, "result": run.text}

    async def _body(self, uri: str) -> Json:
        parts = urlsplit(uri)
        name = f"{parts.netloc}{parts.path}"
        if parts.scheme not in ("agent", "agentd"):
            raise RpcError(UNKNOWN_RESOURCE, f"unknown resource {uri}")
        if name == "events":
            return self._events(parts.query)
        if name == "capabilities":
            return manifest.manifest(self._supervisor.options, await self._supervisor.discover())
        if name == "inventory":
            return self._supervisor.inventory()
        if name in ("status", f"run/{self._supervisor.options.run_id}"):
            return self.status()
        if name == "intelligence":
            return self._intelligence(await self._supervisor.discover())
        if name == "capacity":
            return self._capacity()
        if name == "config/effective":
            return self._config()
        if name.startswith("subagent/") and self._served.find(name.removeprefix("subagent/")):
            return self.subagent(name.removeprefix("subagent/"))
        raise RpcError(UNKNOWN_RESOURCE, f"unknown resource {uri}")

    def _events(self, query: str) -> Json:
        asked = parse_qs(query)
        after, level = asked.get("after", ["0"])[0], asked.get("level", ["debug"])[0]
        if not after.isdecimal() or level not in LEVELS:
            raise RpcError(INVALID_PARAMS, f"events: {query!r}")
        prefixes = [prefix for prefix in asked.get("event", [""])[0].split(",") if prefix]
        return self._supervisor.journal.read(int(after), level, prefixes)

    def _capacity(self) -> Json:
        active = len(self._supervisor.children)
        return {
            "instance": self._supervisor.options.instance,
            "shard": None,
            "standby": False,
            "free_slots": SERVED_AT_ONCE - len(self._served.active),
            "active_subagents": active,
            "max_total_subagents": manifest.SUBAGENTS,
            "saturation": min(1.0, active / SERVED_AT_ONCE),
            "intelligence": {"warm": False, "healthy": "unknown"},
        }

    def _intelligence(self, models: list[str]) -> Json:
        options = self._supervisor.options
        endpoints = [
            {
                "index": index,
                "transport": urlsplit(url).scheme,
                "addr": urlsplit(url).netloc.rpartition("@")[2],
                "active": index == 0,
                "state": "unknown",
            }
            for index, url in enumerate(options.endpoints)
        ]
        return {
            "endpoints": endpoints,
            "active": 0,
            "all_down": False,
            "models": models,
            "discovery": bool(models),
            "swap_policy": options.model_swap,
        }

    def _config(self) -> Json:
        options = self._supervisor.options
        return {
            "config_version": "1.0",
            "model": options.model,
            "max_tokens": options.max_tokens,
            "log_level": options.log_level,
            "model_swap": options.model_swap,
            "limits": {
                "deadline_secs": round(options.deadline),
                "max_depth": options.max_depth,
                "max_steps": options.max_steps,
            },
            "mcp_servers": [{"name": s.name, "tags": list(s.tags)} for s in options.servers],
            "subscribe": list(options.subscribe),
        }
