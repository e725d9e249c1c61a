"""`agentctl validate`: what admission says of manifests, where they would be applied; nothing is changed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from . import manifests
from .objects import ContextOption, FilesOption, KubeconfigOption, NamespaceOption, settings_of
from .output import Exit, FailedError, Format, note, one_line_errors, show
from .reach import cluster_at, component_at, default_kubeconfig
from .session import FormatOption, Settings, StateDirOption, TlsDirOption
from .world import MANAGER, Object

if TYPE_CHECKING:
    from agentctl.admission.v1.admission_service_pb2 import Finding
    from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceAsyncStub
    from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceAsyncStub
    from libs.cluster import Cluster
    from libs.errors import InvalidError
    from libs.findings import Row

_DENIED_BY = re.compile(r'admission webhook "[^"]*" denied the request: (?P<said>.*)', re.DOTALL)
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # in JSON text, but not in YAML
_MISSING = {"unknown-pool": "modelpool", "unknown-server-set": "mcpserverset"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(validate)


def validate(
    ctx: typer.Context,
    files: FilesOption = None,
    namespace: NamespaceOption = "default",
    format_: FormatOption = Format.TABLE,
    state_dir: StateDirOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    tls_dir: TlsDirOption = None,
) -> None:  # fmt: skip
    """Say whether manifests would be admitted, and why not; nothing is changed.

    Asks the plane that runs here, or the cluster of a kubeconfig by a dry run. Where neither is, it runs
    `agentctl-admission validate`, which knows the rules, but no cluster: what needs one is `not-checked`.

    \b
    Exit codes: 0 all allowed, 1 something is denied, 2 usage.
    Example: agentctl validate -f examples/summarize.yaml
    """
    from libs.cluster.kinds import OURS
    from libs.findings import COLUMNS, documents, exit_code, name_of, unjudged

    with one_line_errors():
        if not files:
            raise FailedError("-f FILE is missing", Exit.USAGE)
        ours = {(kind.api_version, kind.name) for kind in OURS}
        things = manifests.read(files)
        wanted = [each for each in things if (each["apiVersion"], each["kind"]) in ours]
        others = [each for each in things if (each["apiVersion"], each["kind"]) not in ours]
        for each in wanted:
            each["metadata"].setdefault("namespace", namespace)
        settings = settings_of(ctx, state_dir, tls_dir)
        found = _judged(settings, kubeconfig, context, wanted) if wanted else []
        places = {name_of(each): place for place, each in enumerate(things)}
        rows = [*map(unjudged, others), *_together(found, wanted)]
        rows.sort(key=lambda row: places.get(row.object, 0))  # as in the files
        if format_ is Format.JSON:
            typer.echo(json.dumps(documents(rows), ensure_ascii=False, indent=2))
        else:
            show(COLUMNS, [row.cells() for row in rows])
        raise typer.Exit(exit_code(rows))


def _judged(settings: Settings, kubeconfig: Path | None, context: str, things: Sequence[Object]) -> list[Row]:
    import asyncio

    running = settings.state.running()
    if not (kubeconfig or context):
        if "admission" in running:
            return asyncio.run(_by_plane(settings, running, things))
        kubeconfig = default_kubeconfig(settings)
    if kubeconfig or context:
        return asyncio.run(_by_cluster(kubeconfig, context, things))
    return _by_rules(things)


async def _by_plane(settings: Settings, running: Mapping[str, str], things: Sequence[Object]) -> list[Row]:
    """What the AdmissionService beside the plane says."""
    from agentctl.admission.v1.admission_service_pb2_grpc import AdmissionServiceStub
    from agentctl.resource.v1.resource_service_pb2_grpc import ResourceServiceStub
    from libs.mesh import ADMISSION, PLANE

    async with (
        component_at(settings, ADMISSION, running["admission"]) as one,
        component_at(settings, PLANE, running["plane"]) as other,
    ):
        admission, resources = AdmissionServiceStub(one), ResourceServiceStub(other)
        return [row for thing in things for row in await _reviewed(admission, resources, thing)]


async def _reviewed(
    admission: AdmissionServiceAsyncStub, resources: ResourceServiceAsyncStub, thing: Object
) -> list[Row]:
    from agentctl.admission.v1.admission_service_pb2 import ReviewRequest
    from agentctl.resource.v1.resource_service_pb2 import GetRequest
    from libs.documents import struct_of
    from libs.errors import InvalidError, NotFoundError
    from libs.findings import Row, Verdict, complete, name_of, rowed

    name, metadata = name_of(thing), thing["metadata"]
    key = GetRequest(kind=thing["kind"], namespace=metadata["namespace"], name=metadata["name"])
    try:
        old = (await resources.Get(key)).object
    except NotFoundError:
        old = None  # it is to be created
    try:
        said = await admission.Review(ReviewRequest(object=struct_of(thing), old_object=old))
    except InvalidError as error:
        return _refused(name, error) if error.violations else [Row(name, "denied", message=str(error))]

    def row(verdict: Verdict, each: Finding) -> Row:
        return rowed(
            name,
            verdict,
            rule=each.rule,
            field=each.field,
            value=each.value,
            message=each.message,
            mend=each.mend,
        )

    denied = [row("denied", each) for each in said.denials]
    return complete(name, [*denied, *(row("warning", each) for each in said.warnings)])


async def _by_cluster(kubeconfig: Path | None, context: str, things: Sequence[Object]) -> list[Row]:
    """What a dry run is answered, by the API server and by the webhook that it asks."""
    warnings: list[str] = []
    async with cluster_at(kubeconfig, context, warned=warnings.append) as (cluster, _):
        return [row for thing in things for row in await _dry_run(cluster, thing, warnings)]


async def _dry_run(cluster: Cluster, thing: Object, warnings: list[str]) -> list[Row]:
    from libs.cluster import UnauthorisedError
    from libs.errors import InvalidError, NotFoundError
    from libs.findings import Row, complete, name_of, row_of

    name = name_of(thing)
    warnings.clear()
    try:
        await cluster.apply(thing, MANAGER, dry_run=True)
        denied = []
    except NotFoundError as error:  # its namespace, or our CRDs
        return [Row(name, "not-checked", message=str(error))]
    except (InvalidError, UnauthorisedError) as error:
        if match := _DENIED_BY.search(str(error)):
            lines = match["said"].strip().removeprefix("* ").split("\n* ")
            denied = [row_of(line, name, "denied") for line in lines]
        elif isinstance(error, InvalidError):
            denied = _refused(name, error)
        else:
            raise FailedError(str(error), Exit.DENIED) from error
    return complete(name, [*denied, *(row_of(each, name, "warning") for each in warnings)])


def _refused(name: str, error: InvalidError) -> list[Row]:
    from libs.findings import refusals, rowed

    found = refusals(error)
    return [
        rowed(name, "denied", rule="" if each.field == "object" else "schema", **asdict(each))
        for each in found
    ]


def _by_rules(things: Sequence[Object]) -> list[Row]:
    """What the rules say, without a cluster: by a process of the component that has them."""
    from libs.findings import Row

    note("neither a plane nor a kubeconfig: by the rules alone, and what needs a cluster is not checked")
    text = "\n---\n".join(json.dumps(each, ensure_ascii=False) for each in things)
    asked = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    words = [sys.executable, "-P", "-m", "services.admission", "validate", "-f", "-", "-o", "json"]
    done = subprocess.run(words, input=asked.encode(), stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        raise FailedError("`agentctl-admission validate` failed")
    return [Row(**each) for each in json.loads(done.stdout)]


def _together(rows: Iterable[Row], things: Sequence[Object]) -> list[Row]:
    """The rows, knowing that all of the files would be applied: what one of them brings is not missing."""
    from libs.findings import name_of

    coming = {name_of(each) for each in things}

    def judged(row: Row) -> Row:
        kind = _MISSING.get(row.rule, "")
        namespace = row.object.split("/")[1]
        if f"{kind}/{namespace}/{row.value}" not in coming:
            return row
        message = f"{row.value} comes with these files: what hangs on it is not checked"
        return replace(row, verdict="not-checked", message=message, mend="apply it first, then ask again")

    return list(map(judged, rows))
