"""What the scaler counts.

| metric                              | labels | what                                                       |
|-------------------------------------|--------|------------------------------------------------------------|
| `agentctl_scaler_fresh`             |        | 1 while it knows what there is to do; 0: it answers errors |
| `agentctl_scaler_feed_breaks_total` |        | streams of coordination's that broke                       |
| `agentctl_scaler_streams`           | method | StreamIsActive and StreamMetricSpec that are open          |
| `agentctl_scaler_pushes_total`      | result | active, inactive: what was pushed, heartbeats included     |
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge

FRESH = Gauge("agentctl_scaler_fresh", "Whether it is known what there is to do.")
BREAKS = Counter("agentctl_scaler_feed_breaks_total", "Streams of coordination that broke.")
STREAMS = Gauge("agentctl_scaler_streams", "Streams to KEDA that are open.", ("method",))
PUSHES = Counter("agentctl_scaler_pushes_total", "Messages pushed to KEDA.", ("result",))
