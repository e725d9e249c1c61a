"""What can be wrong with a server of tools, as those who use the toolbox see it."""

from __future__ import annotations

from libs.errors import NotFoundError, UnavailableError


class ServerAwayError(UnavailableError):
    """A server cannot be reached, or does not speak MCP. Another try, later, may do better."""


class SubscriptionError(NotFoundError):
    """No server gives this resource, or none that tells of its changes."""
