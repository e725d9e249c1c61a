"""`subscriptions/listen`: word that a resource changed, without what it is now; the peer reads it then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from .exits import Json
from .journal import Journal
from .rpc import INVALID_PARAMS, Request, RpcError

METHOD = "subscriptions/listen"
_OF_RUNS = ("status", "inventory", "capacity")  # these change when a run begins or ends, and in a drain


def listen(journal: Journal, request: Request) -> AsyncIterator[Json]:
    """The frames: which subscriptions are honoured, then each change, then the result. Raises RpcError."""
    wanted = request.params.get("notifications")
    uris = wanted.get("resourceSubscriptions") if isinstance(wanted, dict) else None
    if not isinstance(uris, list):
        raise RpcError(INVALID_PARAMS, "notifications.resourceSubscriptions is not a list")
    return _frames(journal, request, [uri for uri in uris if isinstance(uri, str) and _name(uri)])


async def _frames(journal: Journal, request: Request, uris: list[str]) -> AsyncIterator[Json]:
    meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": request.ident}}
    honoured = {"notifications": {"resourceSubscriptions": uris}, **meta}
    with journal.following() as events:
        yield _notification("notifications/subscriptions/acknowledged", honoured)
        while (event := await events.get()) is not None:
            of_runs = event.startswith(("subagent.", "proc."))
            for uri in uris:
                if _name(uri) == "events" or (of_runs and _name(uri) in _OF_RUNS):
                    yield _notification("notifications/resources/updated", {"uri": uri, **meta})
    yield request.answer({"resultType": "complete", **meta})


def _notification(method: str, params: Json) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def _name(uri: str) -> str | None:
    """Of a resource that can be subscribed to."""
    parts = urlsplit(uri)
    known = parts.scheme in ("agent", "agentd") and parts.netloc in ("events", *_OF_RUNS)
    return parts.netloc if known else None
