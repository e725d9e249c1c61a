"""Probes: a tiny GET, or a connection, to the pod's address, as the kubelet makes them.

A local process is cheap to ask, so a container that is not up yet is asked at once and then again after a
tenth of the time that it has run (0.1 s at least, its period at most). Whether it lives is first asked after
initialDelaySeconds, a period at least. Defaults are those of
https://kubernetes.io/docs/tasks/configure-pod-container/configure-liveness-readiness-startup-probes/.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass

from libs.cluster import Object
from libs.errors import InvalidError

_FASTEST = 0.1


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe as declared, its port resolved. `path` is None for one that only connects."""

    host: str
    port: int
    path: str | None
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    failures: int = 3
    successes: int = 1

    def pause(self, age: float) -> float:
        """Seconds until a container is asked again that has run for `age` and was never up."""
        return min(self.period, max(_FASTEST, age / 10))


def probe_of(container: Object, name: str, address: str) -> Probe | None:
    """The container's `startupProbe`, `readinessProbe` or `livenessProbe`. InvalidError for a way of asking
    that there is not here."""
    declared: Object | None = container.get(name)
    if declared is None:
        return None
    http: Object = declared.get("httpGet") or {}
    target = http or declared.get("tcpSocket")
    if target is None:
        raise InvalidError(f"{name} of {container['name']}: only httpGet and tcpSocket are probed here")
    return Probe(
        host=target.get("host") or address,
        port=_port(container, target["port"]),
        path=http.get("path", "/") if http else None,
        tls=http.get("scheme") == "HTTPS",
        headers=tuple((each["name"], each["value"]) for each in target.get("httpHeaders", ())),
        delay=declared.get("initialDelaySeconds", 0),
        period=declared.get("periodSeconds", 10),
        timeout=declared.get("timeoutSeconds", 1),
        failures=declared.get("failureThreshold", 3),
        successes=declared.get("successThreshold", 1),
    )


async def ask(probe: Probe) -> bool:
    """Whether it answers: a status from 200 to 399, or that somebody listens."""
    try:
        async with asyncio.timeout(probe.timeout):
            reader, writer = await asyncio.open_connection(
                probe.host, probe.port, ssl=_unverified() if probe.tls else None
            )
            try:
                return probe.path is None or await _get(probe, reader, writer)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError, TimeoutError):
        return False


async def _get(probe: Probe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    headers = {"Host": f"{probe.host}:{probe.port}", "User-Agent": "agentctl-probe", "Connection": "close"}
    lines = [f"{name}: {value}\r\n" for name, value in {**headers, **dict(probe.headers)}.items()]
    writer.write(f"GET {probe.path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode())
    words = (await reader.readline()).split()
    return len(words) > 1 and words[1].isdigit() and 200 <= int(words[1]) < 400


def _port(container: Object, port: int | str) -> int:
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for declared in container.get("ports", ()):
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise InvalidError(f"{container['name']} has no port named {port!r}")


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # as the kubelet: it is our own child
    return context
