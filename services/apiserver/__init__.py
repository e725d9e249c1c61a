"""Management of agents that run: the verbs drain, lame-duck, cancel, pause and resume, and their status.

People call it by gRPC (`ManagementService`) or by kubectl, as the aggregated API `management.agentctl.dev`;
the code behind both is the same. It asks Kubernetes who may (a SubjectAccessReview for every call), finds the
pods by labels and owners, and calls each agent's `AgentService`. It owns nothing and keeps nothing: every
replica can answer.
"""
