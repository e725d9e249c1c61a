"""Coordination: hands each piece of work to exactly one owner.

Called by producers (Submit, results), agents (Claim, Renew, Ack, Fail, Release), people, the scaler
and the gateway. Owns queues, items, leases, results and dead letters, in one store. Refuses callers of
another namespace (their queues are not found) and anything that its store cannot promise.
"""
