"""A home whose process is killed at any moment has every write that it acknowledged."""

from __future__ import annotations

import subprocess
import sys

from libs.cluster.kinds import CONFIG_MAP
from libs.cluster.local import open_local

WRITER = """
import asyncio, pathlib, sys
from libs.cluster.local import open_local
from libs.cluster.local.tests.things import config_map

async def main():
    async with open_local(pathlib.Path(sys.argv[1])) as cluster:
        for number in range(1_000_000):
            made = await cluster.apply(config_map(f"a-{number % 50}", data={"n": str(number)}), "me")
            print(number, made["metadata"]["resourceVersion"], flush=True)

asyncio.run(main())
"""
ROUNDS, WRITES = 3, 150


def written(folder, at_least):
    """What the writer said that it wrote until it was killed: {number: revision}."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout
            said = [writer.stdout.readline() for _ in range(at_least)]
        finally:
            writer.kill()  # SIGKILL
        said += writer.stdout.readlines()
    whole = [line.split() for line in said if line.endswith("\n")]
    return {int(number): int(revision) for number, revision in whole}


async def test_what_was_acknowledged_is_there_after_a_kill(folder):
    newest = 0
    for _ in range(ROUNDS):
        said = written(folder, WRITES)
        assert len(said) >= WRITES
        async with open_local(folder) as cluster:
            listing = await cluster.list(CONFIG_MAP)
        kept = {item["metadata"]["name"]: int(item["data"]["n"]) for item in listing.items}
        for number in sorted(said)[-50:]:
            # the writer may have got further than it could say, never less far
            assert kept[f"a-{number % 50}"] >= number
        revisions = list(said.values())
        assert revisions == sorted(set(revisions))
        assert revisions[0] > newest
        assert int(listing.revision) >= revisions[-1]
        newest = revisions[-1]
