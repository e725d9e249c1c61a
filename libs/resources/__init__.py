"""The objects that people declare: Agent, AgentFleet, ModelPool, MCPServerSet, in `agentctl.dev/v1alpha1`.

The classes are the one source: the CRDs in `k8s/base/crds` are generated from them (`python -m
libs.resources`), and objects are read into them. Field names are camelCase outside, snake_case here. Every
field acts.
"""

from __future__ import annotations
