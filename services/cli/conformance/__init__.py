"""`agentctl conformance`: any agent against the contract, from the outside.

A case is one demand of the contract and what tries it (`case`); cases that share a running agent are a
group (`cases/`). A `World` starts the agent with everything it can reach: an authority, a scripted model, a
scripted tool server, coordination. Or it only looks at an agent that runs already. Nothing here knows any
agent's code.
"""
