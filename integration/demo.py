"""`make demo`: the product in a minute. Everything is real but the model, and the provider says so.

Starts a plane with `agentctl up`, submits the documents of examples/, shows live progress, kills an agent
with `kill -9` half-way, and checks that every document was finished exactly once all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.identity import Identity, Principal
from libs.pki import own
from libs.work import Client, connect

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ROOT / "examples" / "documents"
QUEUE = "demo/summarize"
GROUP = "demo"
AGENTS = 3
LEASE = "3s"
ENVIRONMENT = {"AGENT_SLOTS": "4", "AGENT_LEASE": LEASE, "PROVIDER_LATENCY": "150ms"}
BOUND_SECONDS = 110
GRPCURL = "-cacert {tls}/ca.crt -cert {tls}/tls.crt -key {tls}/tls.key -authority {authority} {address}"

console = Console(highlight=False, soft_wrap=True)


def step(text: str) -> None:
    console.print(f"\n[bold]▸ {text}[/bold]")


def command(*words: str) -> list[str]:
    """An `agentctl` command of this environment."""
    return [sys.executable, "-m", "services.cli", *words]


async def check(*words: str) -> str:
    """Runs an `agentctl` command; its output. Exits with its error if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command(*words), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        sys.exit(f"agentctl {' '.join(words[:3])} … failed: {err.decode().strip()}")
    return out.decode()


async def demo(state: Path) -> None:
    began = time.monotonic()
    documents = sorted(path for path in DOCUMENTS.glob("*.txt"))
    step(f"Starting a plane here: coordination on PostgreSQL, {AGENTS} agents, a stand-in for a model")
    plane = await asyncio.create_subprocess_exec(
        *command("--state-dir", str(state), "up", "--agents", str(AGENTS), "--queue", QUEUE, *sys.argv[1:]),
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await show_until_ready(plane, state)
        console.print(f"  up after {time.monotonic() - began:.1f} s")
        await work_through(state, documents)
    finally:
        step("Stopping: agents first, then coordination, then the provider")
        if plane.returncode is None:
            plane.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(30):
                code = await plane.wait()
        except TimeoutError:
            plane.kill()
            code = await plane.wait()
    if code:
        sys.exit(f"`agentctl up` ended with {code}")
    console.print(f"\n[green]Done[/green] after {time.monotonic() - began:.1f} s. Next: README.md, or")
    console.print("  .venv/bin/agentctl up              and in another terminal")
    console.print("  .venv/bin/agentctl work submit demo/summarize examples/documents/*.txt --wait")


async def show_until_ready(plane: asyncio.subprocess.Process, state: Path) -> None:
    """Passes on what `agentctl up` says until it says where to call."""
    assert plane.stdout is not None
    while not (state / "endpoints.json").exists():
        line = await plane.stdout.readline()
        if not line:
            sys.exit(f"the plane did not start; its logs are in {state}/logs")
        console.print(f"  [dim]{line.decode().rstrip()}[/dim]", markup=True)


async def work_through(state: Path, documents: Sequence[Path]) -> None:
    endpoints = json.loads((state / "endpoints.json").read_text())
    address, tls = endpoints["coordination"], Path(endpoints["tls_dir"])
    step(f"Submitting {len(documents)} documents to {QUEUE}")
    at = ("--state-dir", str(state))
    out = await check(*at, "work", "submit", QUEUE, "--group", GROUP, *map(str, documents))
    console.print("  " + out.strip().replace("\n", "\n  "))
    began = time.monotonic()
    async with connect(address, Identity(tls)) as client:
        lost = await progress(client, state, len(documents))
        seconds = time.monotonic() - began
        items = [item async for item in client.results(queue=QUEUE, group=GROUP)]
    report(items, documents, lost, seconds)
    await look_with_grpcurl(tls, address)


async def progress(client: Client, state: Path, total: int) -> dict[str, str]:
    """Shows the queue until all is settled, and kills an agent half-way; what it held: id → holder."""
    lost: dict[str, str] = {}
    columns = (TextColumn("  {task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("summarising", total=total)
        watch = client.parked_stub.WatchQueues(pb.WatchQueuesRequest(queues=[QUEUE]), timeout=BOUND_SECONDS)
        async for update in watch:
            for queue in update.queues:
                rate = f"{queue.settled_per_second:.0f} a second, {queue.leased_count} in hand"
                bar.update(task, completed=queue.settled_total, description=rate)
                if not lost and queue.settled_total * 2 >= total:
                    lost = await kill_one(client, state, bar.console)
                if queue.settled_total >= total:
                    return lost
    return lost


async def kill_one(client: Client, state: Path, out: Console) -> dict[str, str]:
    """`kill -9` of the agent that holds the most."""
    request = pb.ListItemsRequest(queue=QUEUE, states=[work_pb2.WORK_STATE_LEASED])
    children = json.loads((state / "children.json").read_text())
    held = {item.id: item.holder for item in (await client.stub.ListItems(request)).items}
    victims = Counter(holder for holder in held.values() if pod(holder) in children)
    if not victims:
        return {}
    victim, count = victims.most_common()[0]
    pid = children[pod(victim)]["pid"]
    os.kill(pid, signal.SIGKILL)
    out.print(f"  [red]kill -9[/red] of agent {pod(victim)} (pid {pid}), which holds {count} documents")
    return {id: holder for id, holder in held.items() if holder == victim}


def report(
    items: Sequence[work_pb2.Item], documents: Sequence[Path], lost: dict[str, str], seconds: float
) -> None:
    step("What became of them")
    names = Counter(item.labels["file"] for item in items)
    wrong = [item for item in items if item.state != work_pb2.WORK_STATE_SUCCEEDED]
    if wrong or names != Counter(path.name for path in documents):
        sys.exit(f"{len(items)} results for {len(documents)} documents, {len(wrong)} of them not succeeded")
    saved = [item for item in items if item.id in lost and item.holder != lost[item.id]]
    if not saved:
        sys.exit("no work of a killed agent was finished by another: this run proves nothing, try again")
    table = Table("agent", "documents", "taken over", box=None, header_style="dim")
    taken = Counter(pod(item.holder) for item in saved)
    for name, count in sorted(Counter(pod(item.holder) for item in items).items()):
        table.add_row(name, str(count), str(taken[name] or ""))
    console.print(table)
    console.print(
        f"  {len(items)} documents, each finished exactly once, {len(items) / seconds:.0f} a second."
    )
    first = saved[0]
    took = (first.age.ToTimedelta() - first.settled_ago.ToTimedelta()).total_seconds()
    console.print(
        f"  {pod(lost[first.id])} was killed holding {first.labels['file']}; "
        f"{pod(first.holder)} finished it, {took:.1f} s after it was submitted."
    )
    for item in items[:3]:
        console.print(f"\n  [bold]{item.labels['file']}[/bold]")
        console.print(f"  {item.result.decode()[:300]}", markup=False)


def pod(holder: str) -> str:
    return Principal.parse(holder).pod


async def look_with_grpcurl(tls: Path, address: str) -> None:
    step("Looking at it with grpcurl and a client certificate")
    authority = "coordination.cp." + own(Identity(tls)).domain
    arguments = GRPCURL.format(tls=tls, authority=authority, address=address)
    console.print(f"  grpcurl {arguments} list", soft_wrap=True, markup=False)
    grpcurl = shutil.which("grpcurl", path=str(Path(sys.executable).parent))
    if grpcurl is None:
        console.print("  (grpcurl is not installed here)")
        return
    listing = await asyncio.create_subprocess_exec(
        grpcurl, *arguments.split(), "list", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await listing.communicate()
    if listing.returncode:
        sys.exit("grpcurl failed")
    console.print("    " + out.decode().strip().replace("\n", "\n    "))


async def bounded(state: Path) -> None:
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            await demo(state)
    except TimeoutError:
        sys.exit(f"not done after {BOUND_SECONDS} s; logs are in {state}/logs")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="agentctl-demo-") as folder:
        asyncio.run(bounded(Path(folder)))
