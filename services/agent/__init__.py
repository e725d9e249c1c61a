"""The reference agent: does one instruction, when its mode says, with a model and tools.

It serves AgentService to the plane, and the plain port. It owns nothing: killed at any moment, items that it
held go to another agent when their leases end, and its run begins anew. It has no privileges that another
agent would not have.

The modes (`modes`) say when a run begins, the `engine` how it runs; every run passes over the `desk`, where
the verbs (`steering`) reach it.
"""
