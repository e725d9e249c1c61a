"""What holds whatever is done in whichever order: histories of writes and deletions, drawn at random."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.cluster.kinds import CONFIG_MAP, NAMESPACE, SECRET, SERVICE_ACCOUNT, kind_of
from libs.cluster.local import open_local
from libs.cluster.local.gc import FOREGROUND
from libs.errors import MeshError, NotFoundError

from .things import reference, thing

WATCHED = (CONFIG_MAP, SECRET, NAMESPACE, SERVICE_ACCOUNT)
HERE = [(CONFIG_MAP, "default", "a"), (CONFIG_MAP, "default", "b"), (SECRET, "default", "c")]
THERE = [(CONFIG_MAP, "other", "a")]
spots = st.sampled_from(HERE + THERE)
writes = st.fixed_dictionaries(
    {
        "do": st.sampled_from(["apply", "apply", "create", "replace"]),
        "spot": spots,
        "finalizers": st.lists(st.just("a.dev/x"), max_size=1),
        "owners": st.lists(st.sampled_from(HERE), max_size=2, unique=True),
        "blocks": st.booleans(),
        "labels": st.dictionaries(st.just("l"), st.sampled_from("12"), max_size=1),
        "manager": st.sampled_from(["one", "two"]),
    }
)
deletions = st.fixed_dictionaries(
    {
        "do": st.just("delete"),
        "spot": spots,
        "propagation": st.sampled_from(["Background", "Foreground", "Orphan"]),
    }
)
of_namespaces = st.fixed_dictionaries({"do": st.sampled_from(["make", "unmake"])})
histories = st.lists(writes | writes | deletions | of_namespaces, min_size=10, max_size=30)


async def act(cluster, step):
    if step["do"] == "make":
        return await cluster.create(thing(NAMESPACE, "other"))
    if step["do"] == "unmake":
        return await cluster.delete(NAMESPACE, "", "other")
    kind, namespace, name = step["spot"]
    if step["do"] == "delete":
        return await cluster.delete(kind, namespace, name, propagation=step["propagation"])
    said = thing(kind, name, namespace, labels=step["labels"], finalizers=step["finalizers"])
    owners = []
    for spot in step["owners"] if namespace == "default" else ():
        with suppress(NotFoundError):
            owners.append(reference(await cluster.get(*spot), blocks=step["blocks"]))
    said["metadata"]["ownerReferences"] = owners
    if step["do"] == "create":
        return await cluster.create(said)
    if step["do"] == "apply":
        return await cluster.apply(said, step["manager"])
    live = await cluster.get(kind, namespace, name)
    return await cluster.replace(said | {"metadata": live["metadata"] | said["metadata"]})


async def everything(cluster):
    return [item for kind in WATCHED for item in (await cluster.list(kind)).items]


async def replayed(cluster, labels, since):
    """What somebody knows who has watched all along."""
    known = {}
    for kind in WATCHED:
        end = (await cluster.list(kind)).revision
        async with aclosing(cluster.watch(kind, labels=labels, since=since)) as changes:
            with anyio.move_on_after(0):  # it has read the log when it waits for the first time
                async for change in changes:
                    uid = change.object["metadata"]["uid"]
                    assert (change.type == "ADDED") == (uid not in known)
                    known[uid] = change.object
                    if change.type == "DELETED":
                        del known[uid]
                    assert int(change.object["metadata"]["resourceVersion"]) <= int(end)
    return sorted(known)


async def run(history):
    with tempfile.TemporaryDirectory() as folder:
        async with open_local(Path(folder)) as cluster:
            for step in history:
                with suppress(MeshError):
                    await act(cluster, step)
                await check(cluster)
            for labels in ("", "l=1"):
                listed = [
                    item for kind in WATCHED for item in (await cluster.list(kind, labels=labels)).items
                ]
                assert await replayed(cluster, labels, "1") == sorted(
                    item["metadata"]["uid"] for item in listed
                )


async def check(cluster):
    there = {item["metadata"]["uid"]: item for item in await everything(cluster)}
    namespaces = {item["metadata"]["name"]: item for item in there.values() if item["kind"] == "Namespace"}
    for item in there.values():
        metadata = item["metadata"]
        marked, finalizers = "deletionTimestamp" in metadata, metadata.get("finalizers", [])
        owners = [owner["uid"] for owner in metadata.get("ownerReferences", ())]
        if item["kind"] == "Namespace":
            inside = [
                other for other in there.values() if other["metadata"].get("namespace") == metadata["name"]
            ]
            assert inside  # a namespace that is empty would be gone, or has its account
        else:
            assert metadata["namespace"] in namespaces
            assert marked == (marked and bool(finalizers))
            if owners and not marked:
                assert any(owner in there for owner in owners)
        if FOREGROUND in finalizers:
            waits_for = [
                other
                for other in there.values()
                for owner in other["metadata"].get("ownerReferences", ())
                if owner["uid"] == metadata["uid"] and owner["blockOwnerDeletion"]
            ]
            assert waits_for
            # in a ring, too, somebody else's finalizer is what it waits for in the end
            assert any(
                set(other["metadata"].get("finalizers", ())) - {FOREGROUND} for other in there.values()
            )
            assert all("deletionTimestamp" in other["metadata"] for other in waits_for)
    for name, namespace in namespaces.items():
        if "deletionTimestamp" in namespace["metadata"]:
            inside = [item for item in there.values() if item["metadata"].get("namespace") == name]
            assert all("deletionTimestamp" in item["metadata"] for item in inside)
    assert all(kind_of(item["apiVersion"], item["kind"]) in WATCHED for item in there.values())


@settings(max_examples=100)
@given(histories)
def test_no_history_breaks_the_rules(history):
    asyncio.run(run(history))
