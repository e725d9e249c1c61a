"""Measures a coordination service from outside, as a client like any other, and checks what it measures.

`sweep` runs a ladder of steps, closed loops or open ones: logical clients in generator processes submit,
claim and ack items. A cycle counts only when its three verdicts were right and the item was one of ours;
after each step the books of all processes, the server's counters and a sample of its results must agree.
"""
