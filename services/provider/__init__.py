"""A stand-in for a model provider: OpenAI's chat completions, answered without any language model.

Agents call it where no real provider is configured: `agentctl up`, the demo, tests. It picks the sentences
of the last user message whose words are the most frequent, so that the same request always gets the same
answer, and says in every answer that it is no language model. Tools may be offered to it; it calls none. It
owns nothing, keeps nothing, and refuses what it cannot honour (a call of a tool, several choices) instead of
pretending. Plain HTTP: it stands for what belongs to others, outside the mesh.
"""
