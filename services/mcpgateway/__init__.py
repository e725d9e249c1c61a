"""mcpgateway: agents reach tools with no secret on the pod.

Agents call it, by MCP over HTTPS and by gRPC; who calls is the certificate. It owns nothing but caches: which
servers an agent may use is what its Agent or AgentFleet names, credentials are in Secrets. It refuses servers
of other namespaces, tools that are not allowed, and to go where a server set must not lead it.
"""
