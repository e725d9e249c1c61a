"""What may be declared: the rules for Agents, AgentFleets, ModelPools and MCPServerSets.

An API server asks by webhook, the local home and people by gRPC (`AdmissionService`), a pipeline by
`agentctl-admission validate`; the rules are one pure function and the verdicts the same. It owns nothing. It
refuses nothing that is being deleted, and says of each refusal what would mend it.
"""
