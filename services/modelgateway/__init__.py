"""The model gateway: models for agents that hold no key.

Called by agents, users and administrators: in OpenAI's HTTP API at an HTTPS edge, and by gRPC. It owns
the usage of budgets and a record of each call. It holds the credentials of ModelPools, and sends them to the
pool's endpoints and nowhere else. Refuses pools of other namespaces, pools that the caller's Agent or
AgentFleet does not name, models that the pool does not list, and what a budget does not allow.
"""
