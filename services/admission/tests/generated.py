"""Objects as hypothesis makes them: by the CRDs' schemas, from good manifests, and spoilt."""

from __future__ import annotations

import copy
from typing import Any

import yaml
from hypothesis import strategies as st

from libs.cluster import Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, MCP_SERVER_SET, MODEL_POOL, OURS
from libs.resources.crds import schema_for
from libs.resources.tests.good_manifests import GOOD
from services.admission.context import Facts, Policy, needs
from services.admission.reading import OVERRIDE

from .declared import agent, fleet, pool, server, server_set, template

MANIFESTS = [yaml.safe_load(text) for text in GOOD.values()]
WORDS = [
    "", "a", "b", "herd", "herd-coordinator", "large", "mail", "vault", "web", "word", "A B", "é\n",
    "\ud800", "x" * 300, "5m",
    "1h30m", "0s", "99999h", "100m", "128Mi", "1e3", "2.5Gi", "-1",
    "0 0 31 2 *", "*/5 * * * *", "@daily", "50-10 * * * *", "* * * * * *",
    "Europe/Vienna", "Etc/Nowhere", "../../x",
    "python", "ghcr.io/acme/agent:1", "ghcr.io/acme-evil/agent:latest", "a:b:c",
    "a@sha256:" + "0" * 64,
    "https://api.example.com/v1", "http://joe:pass@host/", "http://[::1", "http://h:99999/", "mail://inbox",
    "untrusted_input", "sensitive", "egress", "API_TOKEN", "sk-" + "a" * 30, "/etc/key",
]  # fmt: skip
JSON = st.recursive(
    st.sampled_from([*WORDS, None, True, 0, -1, 2**70, 1.5]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "value", "a", ""]), inner, max_size=3)
    ),
    max_leaves=4,
)
_DEEP = ("affinity", "topologySpreadConstraints", "tolerations")
"""Parts of a pod that no rule reads: mostly empty, so that the rest is generated more."""


def of_schema(schema: Object) -> st.SearchStrategy[Any]:
    """What has the form that a schema asks for; its patterns and rules may be broken."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from([0, 1, 2**30, "100m", "64Mi", "x"])
    match schema["type"]:
        case "string":
            return st.sampled_from(WORDS)
        case "boolean":
            return st.booleans()
        case "integer":
            least = schema.get("minimum", -5)
            return st.integers(least, schema.get("maximum", least + 10))
        case "array":
            return st.lists(of_schema(schema["items"]), max_size=2)
    parts = schema.get("properties")
    if parts is None:
        rest = schema.get("additionalProperties")  # none: it is free
        return st.dictionaries(st.sampled_from(WORDS), of_schema(rest) if rest else JSON, max_size=2)
    made = {name: JSON if name in _DEEP else of_schema(part) for name, part in parts.items()}
    required = {name: made.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=made)


SPECS = {kind: of_schema(schema_for(kind)["properties"]["spec"]) for kind in OURS}


@st.composite
def things(draw: st.DrawFn) -> Object:
    """Any object: a good one, one by schema, and each perhaps with garbage somewhere."""
    if draw(st.booleans()):
        thing: Object = copy.deepcopy(draw(st.sampled_from(MANIFESTS)))
        thing["metadata"]["namespace"] = "demo"
    else:
        kind = draw(st.sampled_from(OURS))
        names = st.sampled_from(["herd", "herd-coordinator", "a", "x" * 60])
        spaces = st.sampled_from(["demo", "demo", "agentctl-system"])
        thing = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {"name": draw(names), "namespace": draw(spaces)},
            "spec": draw(SPECS[kind]),
        }
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        spoil(draw, thing)
    annotated = draw(st.sampled_from([None, None, "because", " ", 5]))
    if annotated is not None and isinstance(thing.get("metadata"), dict):
        thing["metadata"]["annotations"] = {OVERRIDE: annotated}
    if draw(st.integers(0, 20)) == 0:
        thing |= {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.name}
    return thing


def spoil(draw: st.DrawFn, thing: Object) -> None:
    """Puts garbage into some place of it, or takes the place away."""
    inside: Any = thing
    for _ in range(draw(st.integers(0, 7))):
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        further = [key for key in keys if isinstance(inside[key], dict | list) and inside[key]]
        if not further:
            break
        inside = inside[draw(st.sampled_from(further))]
    keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
    if not keys:
        return
    key = draw(st.sampled_from(keys))
    if draw(st.booleans()):
        inside[key] = draw(JSON)
    else:
        del inside[key]


TAGS = st.lists(st.sampled_from(["untrusted_input", "sensitive", "egress", "other"]), unique=True)


@st.composite
def facts_for(draw: st.DrawFn, thing: Object, old: Object | None) -> Facts:
    """Some of what a review needs."""
    wanted = needs(thing, old)
    objects: dict[Any, Object] = {}
    for kind, name in wanted.objects:
        if draw(st.integers(0, 3)):
            good = {
                MODEL_POOL: pool(name, models=["large-1", "agentctl-extractive"]),
                MCP_SERVER_SET: server_set(name, server(draw(st.sampled_from(["one", "two"])), *draw(TAGS))),
                AGENT: agent(name),
                AGENT_FLEET: fleet(name, coordinator={"template": template()}),
            }[kind]
            objects[kind, name] = draw(st.sampled_from([good, good, good, {**good, "spec": draw(JSON)}]))
    allowed = draw(st.sampled_from([(), ("ghcr.io/acme/**", "localhost:5000/**"), ("python", "python:3.*")]))
    return Facts(
        Policy(allowed_images=allowed, trust_domain=draw(st.sampled_from(["", "example.com"]))),
        objects,
        frozenset(access for access in wanted.accesses if draw(st.booleans())),
        is_offline=draw(st.booleans()),
    )


@st.composite
def changes(draw: st.DrawFn) -> tuple[Object, Object | None, Facts]:
    """A new object, or one after something was done to it; the old one; and facts."""
    thing = draw(things())
    old = copy.deepcopy(draw(st.sampled_from([None, thing])))
    if old is not None:
        spoil(draw, thing)
    return thing, old, draw(facts_for(thing, old))
