"""A stand-in of the foreign agent program `agentd` 1.x, for tests only; it is not that program, and says so.

It has the outside of agentd 1.0.0 (or 1.4.0, by `--standin-version`): flags, exit codes, the mTLS `/mcp`
listener, resources, operator verbs, A2A, the model and MCP wires, metrics, health, report and events. Its
`agent_version` ends in `-standin`.

It keeps the quirks on purpose: pause and cancel act only between turns and only on runs that nobody waits
for, limits are looked at between turns, a 429 is exit code 4, the report's usage is zero, the metrics of the
model's calls stay zero, a finished stream is closed late (`--standin-stream-close`, 15s).

Left out, and refused or answered as absent: subagents of a run (the model is offered agentd's eleven own
tools; all but `resource.read` answer that the stand-in has none), warm sessions (`--continue`,
`subagent.send`), claim routes, standby and shards, cgroups, workflow mode, the configuration file and its
reload, A2A peers, bearer tokens on the listener (over plain http every call of it is refused),
`--health-file` and tracing export. A run is a task of the one process here, not a process of its own:
"killed" means that the task is stopped, whatever it does. Where agentd's outside is not known to us, the
choice is the one that promises a caller less.

For tests, port 0 is allowed: the events `mcp.serving` and `metrics.serving` tell the address.
It stands on the standard library and aiohttp alone, so that its folder can be mounted anywhere:
`python -m libs.testing.agentd`, `python -m agentd` or `python /path/agentd`.
"""

from __future__ import annotations
