"""What a model gateway adds to a call, beside a stub of a provider that answers at once: ours and LiteLLM's.

`stub` is the provider, `cluster` the objects that ours reads, `sides` the processes that are measured,
`closed` the load, `measure` the steps, `command` prints the table.
"""
