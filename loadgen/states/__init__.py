"""States that a coordination service gets into and that must not make it slow: one module each.

A module has its sizes (FULL, QUICK) and `measure`, which starts what it needs, yields the lines of the
table as they are known, and leaves nothing behind.
"""
