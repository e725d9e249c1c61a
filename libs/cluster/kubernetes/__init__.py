"""The home that is a Kubernetes API server, through the official client's configuration and connections.

Objects go over the wire as JSON: the client's generated models are not used, so that a field that is newer
than they are survives a round trip.
"""

from __future__ import annotations

from .cluster import KubernetesCluster, connect

__all__ = ["KubernetesCluster", "connect"]
