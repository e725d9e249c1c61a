"""The reference agent: claims work, runs one instruction on each item, hands the result back.

Nobody calls it. It claims from one queue of its namespace, asks an OpenAI-compatible endpoint, and settles:
a result, or a reason and whether another try can help. It owns nothing: killed at any moment, its items go to
another agent when their leases end. It has no privileges that another agent would not have.
"""
