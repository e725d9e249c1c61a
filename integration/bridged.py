"""A pod of two: `agentctl-bridge` and the stand-in of agentd, with one environment, that of the contract.

    .venv/bin/agentctl conformance --command ".venv/bin/python -m integration.bridged"

As in a pod, the agent begins once the bridge is alive, is told first to end, and its exit code is the pod's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from libs.exits import Exit
from libs.testing.ports import free_port

_ALIVE_SECONDS = 15.0
_FLAGS = {
    "AGENT_INSTRUCTION": "--instruction",
    "AGENT_MAX_STEPS": "--max-steps",
    "AGENT_MAX_TOKENS": "--max-tokens",
    "AGENT_MAX_DEPTH": "--max-depth",
    "AGENT_DEADLINE": "--deadline",
    "AGENT_DRAIN_TIMEOUT": "--drain-timeout",
    "AGENT_RUN_ID": "--run-id",
    "AGENT_LOOP_INTERVAL": "--interval",
}
_TOGETHER = ("setpriv", "--pdeathsig", "KILL", "--")  # a pod that is killed leaves nobody behind


def main() -> int:
    """Both, to the agent's end; its exit code, or the bridge's if there was no agent."""
    if sys.argv[1:]:
        return Exit.USAGE
    given = os.environ
    with tempfile.TemporaryDirectory(prefix="bridged-") as folder:
        own = {
            "BRIDGE_SHARED_DIR": f"{folder}/shared",
            "BRIDGE_PRIVATE_DIR": f"{folder}/private",
            "BRIDGE_AGENT_PORT": str(free_port()),
            "BRIDGE_AGENT_METRICS_PORT": str(free_port()),
            "BRIDGE_FORWARD_PORT": str(free_port()),
        }
        bridge = _started("services.bridge", environment={**given, **own})
        if not _is_alive(bridge, int(given["AGENT_METRICS_PORT"])):
            return bridge.wait()
        agent = _started("libs.testing.agentd", *_words(given, own), environment=_variables(given, own))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: agent.send_signal(received))
        code = agent.wait()
        bridge.terminate()
        bridge.wait()
        return code


def _started(module: str, *words: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*_TOGETHER, sys.executable, "-m", module, *words], env=dict(environment))


def _is_alive(bridge: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + _ALIVE_SECONDS
    while bridge.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=1):
                return True
        except OSError:
            time.sleep(0.02)
    bridge.kill()
    return False


def _variables(given: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The agent has no identity and no key."""
    kept = {name: value for name, value in given.items() if not name.startswith(("AGENT", "OPENAI_"))}
    return kept | {
        "AGENT_INTELLIGENCE": f"http://127.0.0.1:{own['BRIDGE_FORWARD_PORT']}/v1/chat/completions",
        "AGENT_MODEL": given.get("AGENT_MODEL", ""),
        "AGENT_METRICS_ADDR": f"127.0.0.1:{own['BRIDGE_AGENT_METRICS_PORT']}",
    }


def _words(given: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    """As the operator says it to agentd."""
    mode, shared = given.get("AGENT_MODE", ""), Path(own["BRIDGE_SHARED_DIR"])
    words = ["--mode", "reactive" if mode == "claim" else mode]
    uris = json.loads(given.get("AGENT_SUBSCRIBE") or "[]")
    for uri in [f"queue://{given['AGENT_QUEUE']}"] if mode == "claim" else uris:
        words += ["--subscribe", uri]
    for variable, flag in _FLAGS.items():
        if value := given.get(variable):
            words += [flag, value]
    for server in json.loads(given.get("AGENT_MCP_SERVERS") or "[]"):
        url = f"http://127.0.0.1:{own['BRIDGE_FORWARD_PORT']}/mcp/{server['name']}"
        words += ["--mcp", f"{server['name']}={url}"]
    return [
        *words,
        *("--serve-mcp", f"https://127.0.0.1:{own['BRIDGE_AGENT_PORT']}"),
        *("--serve-cert", str(shared / "tls.crt"), "--serve-key", str(shared / "tls.key")),
        *("--serve-client-ca", str(shared / "ca.crt")),
    ]


if __name__ == "__main__":
    sys.exit(main())
