"""What agents with nothing to do take: real processes, alone and many, and every call that they make.

`crew` starts agents of one mode and what they need, `command` watches them and prints the table.
"""
