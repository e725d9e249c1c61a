"""The bridge: speaks AgentService for an agent that speaks agentd's contract 1.0, from the same pod.

Outside it is an agent like any other: the pod's certificate, the verbs, runs, claims from a queue, metrics.
Inside it calls the agent's `/mcp` over mTLS with certificates of its own making, and hands the agent's calls
of models and tools on, with the pod's certificate and without any secret. It owns nothing: killed, its items
go to another pod when their leases end. What the agent cannot do it does not pretend (docs/bridge.md).
"""
