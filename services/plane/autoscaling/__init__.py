"""What KEDA and the HPA are on a cluster: they set a Deployment's replicas by what a scaler says. It asks by
KEDA's own contract, and knows of us no more than KEDA does.

Three things are simpler than there. It is exact: the HPA leaves replicas alone while demand is within 10 % of
them, which for counted items is a mistake. It looks each second instead of every 15. And it grows at once,
whatever `behavior.scaleUp` says.
"""

from __future__ import annotations

from .autoscaler import autoscaling

__all__ = ["autoscaling"]
