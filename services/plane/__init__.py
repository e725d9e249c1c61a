"""Several components in one process: the local home, and the pod of the overlay `single`.

It composes, and answers for what only the local home needs: the objects of a machine without
Kubernetes (ResourceService). It owns the state folder; each component owns what it owns elsewhere. It
refuses what an API server would refuse, and has no HTTP API for kubectl.
"""
