"""The operator: turns Agents and AgentFleets into workloads, and pods into identities.

Informers fill a cache, every event is a key on one work queue, workers bring one object at a time to what
`plan` says. One replica leads and writes; all answer `OperatorService` and issue certificates. It owns the
workloads that it labels, the status of our kinds, and the certificate authority. It takes nothing that
somebody else made, acts on no object of the system namespace, and reads no work.
"""
