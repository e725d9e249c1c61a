"""kubectl as a person has it, for tests: every call bounded, every refusal with what kubectl said."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SYSTEM = "agentctl-system"


class RefusedError(Exception):
    """kubectl ended with an error; the message is what it said."""


class Kubectl:
    """Bound to one kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._command = ("kubectl", "--kubeconfig", str(kubeconfig))

    def __call__(self, *words: str, stdin: str | None = None, seconds: float = 60) -> str:
        """What it printed. Raises RefusedError, and TimeoutExpired after `seconds`."""
        return self.done(*words, stdin=stdin, seconds=seconds).stdout

    def done(
        self, *words: str, stdin: str | None = None, seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """The same, with what it said besides."""
        done = subprocess.run(
            [*self._command, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=ROOT,
        )
        if done.returncode:
            raise RefusedError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done

    def post(self, path: str, **body: Any) -> Any:
        """The answer of an API to this, also where it is a Status that says no with a code below 300."""
        return json.loads(self("create", "--raw", path, "-f", "-", stdin=json.dumps(body)))

    def get(self, *words: str) -> Any:
        """An object, or a list's items."""
        found = json.loads(self("get", *words, "-o", "json"))
        return found["items"] if found["kind"].endswith("List") else found

    def apply(self, *things: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": things}))

    def wait(self, condition: str, thing: str, namespace: str, seconds: int = 120) -> None:
        """Until `kubectl wait --for=condition` is content. Raises RefusedError when time is up."""
        words = ("wait", f"--for={condition}", thing, "-n", namespace, f"--timeout={seconds}s")
        self(*words, seconds=seconds + 10)

    @contextmanager
    def forwarded(self, thing: str, port: int, namespace: str) -> Iterator[str]:
        """The loopback address that leads to a port of a pod or Service while the block runs."""
        words = ("port-forward", "-n", namespace, thing, f":{port}")
        process = subprocess.Popen([*self._command, *words], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"from (127\.0\.0\.1:\d+)", said)
            if found is None:
                raise RefusedError(f"kubectl {' '.join(words)}: {said}")
            yield found[1]
        finally:
            process.kill()
            process.communicate()
