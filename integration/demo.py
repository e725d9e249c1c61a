"""`make demo`: the product in a minute. Everything is real but the model, and the provider says so.

Starts a plane with `agentctl up`, applies the fleet of `examples/summarize.yaml`, submits the documents of
`examples/`, kills an agent with `kill -9` half-way, changes the fleet under load so that its agents roll, and
checks that every document was finished exactly once all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import MeshError
from libs.identity import Identity, Principal
from libs.pki import own
from libs.work import Client, connect

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ROOT / "examples" / "documents"
MANIFEST = ROOT / "examples" / "summarize.yaml"
NAMESPACE, FLEET = "demo", "summarize"
QUEUE = f"{NAMESPACE}/{FLEET}"
GROUP = "demo"
SETTINGS = ("AGENTCTL_", "COORDINATION_", "AGENT_", "PROVIDER_", "OPENAI_")
ENVIRONMENT = {  # nobody's own plane, and nobody's paid model
    **{name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)},
    **{"PROVIDER_LATENCY": "300ms"},
}
BOUND_SECONDS = 110

console = Console(highlight=False, soft_wrap=True)


class FailedError(Exception):
    """The demo cannot go on; the message says why."""


def step(text: str) -> None:
    console.print(f"\n[bold]▸ {text}[/bold]")


def command(*words: str) -> list[str]:
    """An `agentctl` command of this environment."""
    return [sys.executable, "-m", "services.cli", *words]


async def check(*words: str) -> str:
    """Runs an `agentctl` command; its output. FailedError with its error if it fails."""
    return await output_of(*command(*words), name=f"agentctl {' '.join(words[:4])} …")


async def output_of(*words: str, name: str) -> str:
    """Runs a command to its end, which comes at once if we are cancelled; its output."""
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise FailedError(f"{name} failed: {err.decode().strip()}")
    return out.decode()


async def demo(state: Path) -> None:
    began = time.monotonic()
    documents = sorted(path for path in DOCUMENTS.glob("*.txt"))
    step("Starting a plane here: operator, coordination on PostgreSQL, a stand-in for a model")
    plane = await asyncio.create_subprocess_exec(
        *command("--state-dir", str(state), "up", *sys.argv[1:]),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us, who stop it
    )
    try:
        await show_until_ready(plane, state)
        console.print(f"  up after {time.monotonic() - began:.1f} s")
        await provision(state)
        await work_through(state, documents)
    finally:
        if plane.returncode is None:
            step("Stopping: agents first, then the components")
        code = await stop(plane)
    if code:
        raise FailedError(f"`agentctl up` ended with {code}")
    console.print(f"\n[green]Done[/green] after {time.monotonic() - began:.1f} s. Next: README.md, or")
    console.print("  .venv/bin/agentctl up              and in another terminal")
    console.print("  .venv/bin/agentctl apply -f examples/summarize.yaml")
    console.print("  .venv/bin/agentctl work submit demo/summarize examples/documents/*.txt --wait")


async def provision(state: Path) -> None:
    """One manifest becomes agents that are ready."""
    step(f"Applying {MANIFEST.relative_to(ROOT)}")
    began = time.monotonic()
    at = ("--state-dir", str(state))
    console.print("  " + (await check("apply", "-f", str(MANIFEST), *at)).strip().replace("\n", "\n  "))
    await check("wait", f"fleet/{FLEET}", "-n", NAMESPACE, *at)
    console.print(f"  its agents are ready {time.monotonic() - began:.1f} s later:")
    tree = await check("tree", f"fleet/{FLEET}", "-n", NAMESPACE, *at)
    console.print("    " + tree.strip().replace("\n", "\n    "), markup=False)


async def stop(plane: asyncio.subprocess.Process) -> int:
    """Asks it to stop, then to hurry, then kills it; its exit code."""
    for _ in range(2):
        if plane.returncode is None:
            plane.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                return await plane.wait()
    plane.kill()
    return await plane.wait()


async def show_until_ready(plane: asyncio.subprocess.Process, state: Path) -> None:
    """Passes on what `agentctl up` says until it says where to call."""
    assert plane.stdout is not None
    while not (state / "endpoints.json").exists():
        line = await plane.stdout.readline()
        if not line:
            await plane.wait()
            raise FailedError("the plane did not start")
        console.print(f"  {line.decode().rstrip()}", style="dim", markup=False)


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
        read = time.monotonic()
    report(items, documents, lost, seconds, read)
    await look_with_grpcurl(tls, address)


@dataclass(frozen=True)
class Lost:
    """What a killed agent held, and when it was killed (monotonic)."""

    holder: str
    ids: frozenset[str]
    at: float


async def progress(client: Client, state: Path, total: int) -> Lost | None:
    """Shows the queue until all is settled. At a third it kills an agent, at two thirds it changes the fleet;
    what the killed agent held."""
    lost: Lost | None = None
    rolled = False
    columns = (TextColumn("  {task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("summarising", total=total)
        watch = client.parked_stub.WatchQueues(pb.WatchQueuesRequest(queues=[QUEUE]), timeout=BOUND_SECONDS)
        async for update in watch:
            for queue in update.queues:
                rate = f"{queue.settled_per_second:.0f} a second, {queue.leased_count} in hand"
                bar.update(task, completed=queue.settled_total, description=rate)
                if not lost and queue.settled_total * 3 >= total:
                    lost = await kill_one(client, state, bar.console)
                if not rolled and queue.settled_total * 3 >= 2 * total:
                    rolled = True
                    await roll(state, bar.console)
                if queue.settled_total >= total:
                    return lost
    return lost


async def kill_one(client: Client, state: Path, out: Console) -> Lost | None:
    """`kill -9` of the agent that holds the most."""
    request = pb.ListItemsRequest(queue=QUEUE, states=[work_pb2.WORK_STATE_LEASED])
    found = await check("get", "pods", "-n", NAMESPACE, "-o", "json", "--state-dir", str(state))
    pids = {each["metadata"]["name"]: pid for each in json.loads(found)["items"] if (pid := pid_of(each))}
    held = {item.id: item.holder for item in (await client.stub.ListItems(request)).items}
    victims = Counter(holder for holder in held.values() if pod(holder) in pids)
    if not victims:
        return None
    victim, count = victims.most_common()[0]
    os.kill(pids[pod(victim)], signal.SIGKILL)
    who = f"agent {pod(victim)} (pid {pids[pod(victim)]})"
    out.print(f"  [red]kill -9[/red] of {who}, which holds {count} documents")
    ids = frozenset(id for id, holder in held.items() if holder == victim)
    return Lost(victim, ids, time.monotonic())


def pid_of(pod: dict[str, Any]) -> int:
    """The process of a pod's agent; 0 if none runs."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    ids = [each["containerID"] for each in statuses if "running" in each.get("state", {})]
    return int(ids[0].removeprefix("process://")) if ids else 0


async def roll(state: Path, out: Console) -> None:
    """A changed manifest: new agents take over from old ones, which finish what they hold."""
    changed = state / "changed.yaml"
    changed.write_text(MANIFEST.read_text().replace("three sentences", "one sentence"))
    said = await check("apply", "-f", str(changed), "--state-dir", str(state))
    out.print(f"  [yellow]changed[/yellow] under load: {said.strip().splitlines()[-1]}; its agents roll")


def report(
    items: Sequence[work_pb2.Item],
    documents: Sequence[Path],
    lost: Lost | None,
    seconds: float,
    read: float,
) -> None:
    """Checks what came of the run, and shows it. FailedError if it is wrong, or proves nothing."""
    step("What became of them")
    names = Counter(item.labels["file"] for item in items)
    wrong = [item for item in items if item.state != work_pb2.WORK_STATE_SUCCEEDED]
    if wrong or names != Counter(path.name for path in documents):
        raise FailedError(
            f"{len(items)} results for {len(documents)} documents, {len(wrong)} of them not succeeded"
        )
    saved = [item for item in items if lost and item.id in lost.ids and settled(item, read) > lost.at]
    if not lost or not saved:
        raise FailedError("no work of a killed agent was done again: this run proves nothing")
    table = Table("agent", "documents", "taken over", box=None, header_style="dim")
    taken = Counter(pod(item.holder) for item in saved)
    for name, count in sorted(Counter(pod(item.holder) for item in items).items()):
        table.add_row(name, str(count), str(taken[name] or ""))
    console.print(table)
    console.print(
        f"  {len(items)} documents, each finished exactly once, {len(items) / seconds:.0f} a second."
    )
    first = saved[0]
    again = " itself, started again," if first.holder == lost.holder else ""
    took = settled(first, read) - lost.at
    console.print(
        f"  {pod(lost.holder)} was killed holding {first.labels['file']}; "
        f"{pod(first.holder)}{again} finished it {took:.1f} s later."
    )
    for item in items[:3]:
        console.print(f"\n  [bold]{item.labels['file']}[/bold]")
        console.print(f"  {item.result.decode()[:300]}", markup=False)


def settled(item: work_pb2.Item, read: float) -> float:
    """When it was settled (monotonic), by when it was read. After a kill it was not by the killed."""
    return read - item.settled_ago.ToTimedelta().total_seconds()


def pod(holder: str) -> str:
    return Principal.parse(holder).pod


async def look_with_grpcurl(tls: Path, address: str) -> None:
    step("Looking at it with grpcurl and a client certificate")
    authority = "coordination.cp." + own(Identity(tls)).domain
    files = ("-cacert", f"{tls}/ca.crt", "-cert", f"{tls}/tls.crt", "-key", f"{tls}/tls.key")
    arguments = (*files, "-authority", authority, address, "list")
    console.print("  " + shlex.join(["grpcurl", *arguments]), soft_wrap=True, markup=False)
    grpcurl = shutil.which("grpcurl", path=str(Path(sys.executable).parent))
    if grpcurl is None:
        console.print("  (grpcurl is not installed here)")
        return
    out = await output_of(grpcurl, *arguments, name="grpcurl")
    console.print("    " + out.strip().replace("\n", "\n    "))


async def bounded(state: Path) -> int:
    """The demo, within its time; its exit code. The first SIGINT, SIGTERM or SIGHUP ends it in order."""
    running = asyncio.ensure_future(demo(state))
    received: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        if not received:  # the stop that is under way is bounded: let it end
            running.cancel()
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            await running
    except asyncio.CancelledError:
        console.print("\nInterrupted: everything is stopped.")
        return 128 + received[0]
    except TimeoutError:
        raise FailedError(f"not done after {BOUND_SECONDS} s") from None
    return 0


def main() -> int | str:
    """Runs the demo in a folder of its own, which stays if it fails; an exit code, or what went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="agentctl-demo-"))
    folder.chmod(0o711)  # a PostgreSQL that root starts runs as another user, who has to get in
    try:
        code = asyncio.run(bounded(folder))
    except (FailedError, MeshError, OSError) as error:
        return f"error: {error}\nWhat it left, logs too, is in {folder}"
    shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
