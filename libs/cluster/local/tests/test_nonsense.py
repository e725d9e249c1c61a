"""Whatever somebody sends: it is stored, or refused with a reason that is theirs; never a bug of ours."""

from __future__ import annotations

import asyncio
import copy
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.cluster.kinds import KINDS, NETWORK_POLICY, SECRET, SERVICE, STATEFUL_SET
from libs.cluster.local import open_local
from libs.errors import MeshError

from .things import agent, config_map, deployment, job, pod, reference, template, thing

OWNED = config_map("owned", labels={"tier": "x"}, annotations={"a": "b"}, finalizers=["a.dev/one"])
OWNED["metadata"]["ownerReferences"] = [
    reference({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "uid": "y"}})
]
SENSE = [
    OWNED,
    agent(),
    pod(),
    deployment(),
    job(),
    thing(SECRET, "key", stringData={"a": "b"}, data={"c": "ZA=="}),
    thing(SERVICE, "web", spec={"ports": [{"port": 80}], "selector": {"app": "web"}}),
    thing(NETWORK_POLICY, "deny", spec={"podSelector": {}, "ingress": [{"ports": [{"port": 1}]}]}),
    thing(
        STATEFUL_SET,
        "shards",
        spec={
            "selector": {"matchLabels": {"app": "s"}},
            "template": template(app="s"),
            "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
        },
    ),
]
JSON = st.recursive(
    st.sampled_from([2**70, "\ud800"])
    | st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "a", ""]), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value, path=()):
    """Every place in a document."""
    if path:
        yield path
    for key, item in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(item, (*path, key))


@st.composite
def broken(draw):
    """A document with something else in one of its places."""
    said = copy.deepcopy(draw(st.sampled_from(SENSE)))
    path = draw(st.sampled_from(list(places(said))))
    holder = said
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = draw(JSON)
    return said


async def attempts(said):
    with tempfile.TemporaryDirectory() as folder:
        async with open_local(Path(folder)) as cluster:
            for whole in SENSE:
                await cluster.apply(whole, "before")
            for attempt in (
                cluster.create(said),
                cluster.apply(said, "me"),
                cluster.apply(said, "me", subresource="status"),
                cluster.replace(said),
            ):
                with suppress(MeshError):
                    await attempt
            # and what was stored is no trap for those who come after
            for kind in KINDS:
                await cluster.list(kind)
            for whole in SENSE:
                with suppress(MeshError):
                    await cluster.apply(whole, "before")


@settings(max_examples=100)
@given(broken())
def test_nonsense_is_no_bug(said):
    asyncio.run(attempts(said))
