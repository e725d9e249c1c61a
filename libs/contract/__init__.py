"""The agent contract: what an agent, whoever wrote it, promises to the plane. Version 1.1: 1.0 is frozen.

The tables are typed here and nowhere else (statuses and their exit codes, metrics, environment, events);
`python -m libs.contract` prints them as docs/contract.md. `Agent` is the promise in Python, and `servicer`
serves any such agent as `agentctl.agent.v1.AgentService`. The plane depends on this, never on one agent.
"""

from __future__ import annotations

VERSION = "1.1"
"""Major and minor. A reader refuses only a major that it does not know."""
