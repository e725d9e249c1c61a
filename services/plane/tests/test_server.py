"""ResourceService over mTLS, in front of a real local cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from google.protobuf.struct_pb2 import Struct, Value

from agentctl.admission.v1 import admission_service_pb2 as review
from agentctl.resource.v1 import resource_service_pb2 as pb
from agentctl.resource.v1 import resource_service_pb2_grpc as pb_grpc
from libs.cluster.kinds import CONFIG_MAP, MODEL_POOL, POD
from libs.cluster.local import LocalCluster, open_local
from libs.documents import document_of, struct_of
from libs.errors import DeniedError, InvalidError, MeshError, NotFoundError, UnavailableError
from libs.mesh import PLANE
from libs.rpc.client import dial
from libs.rpc.server import serving
from libs.testing.ca import authority, identity

from ..server import Resources
from ..usage import Usage


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with open_local(tmp_path / "objects") as opened:
        for name in ("demo", "other"):
            await opened.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield opened


@pytest.fixture
async def stub_of(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    """Stubs by SPIFFE path of the caller."""
    servicer = Resources(cluster, Usage(cluster))
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(
            serving(
                PLANE,
                identity(authority(), tmp_path, "/cp/plane"),
                lambda server: pb_grpc.add_ResourceServiceServicer_to_server(servicer, server),
            )
        )

        async def stub(path: str = "/user/ann") -> object:
            channel = await stack.enter_async_context(
                dial(PLANE, up.address, identity(authority(), tmp_path, path))
            )
            return pb_grpc.ResourceServiceStub(channel)

        yield stub


def config(name: str, namespace: str = "demo", **data: str) -> Struct:
    metadata = {"name": name, "namespace": namespace, "labels": {"of": "test"}}
    return struct_of({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


async def test_apply_creates_configures_and_leaves_alone(stub_of):
    stub = await stub_of()
    first = await stub.Apply(pb.ApplyRequest(object=config("c", a="1", b="2")))
    assert (first.created, first.changed) == (True, True)
    again = await stub.Apply(pb.ApplyRequest(object=config("c", a="1", b="2")))
    assert (again.created, again.changed) == (False, False)
    changed = await stub.Apply(pb.ApplyRequest(object=config("c", a="3")))
    assert (changed.created, changed.changed) == (False, True)
    found = await stub.Get(pb.GetRequest(kind="cm", namespace="demo", name="c"))
    assert document_of(found.object)["data"] == {"a": "3"}


async def test_a_dry_run_changes_nothing(stub_of):
    stub = await stub_of()
    said = await stub.Apply(pb.ApplyRequest(object=config("c", a="1"), dry_run=True))
    assert said.created
    with pytest.raises(NotFoundError):
        await stub.Get(pb.GetRequest(kind="ConfigMap", namespace="demo", name="c"))


async def test_lists_come_in_pages_and_by_label(stub_of):
    stub = await stub_of()
    for number in range(7):
        await stub.Apply(pb.ApplyRequest(object=config(f"c{number}")))
    names, token = [], ""
    while True:
        page = await stub.List(
            pb.ListRequest(
                kind="configmaps", namespace="demo", label_selector="of=test", page_size=3, page_token=token
            )
        )
        names += [document_of(each)["metadata"]["name"] for each in page.objects]
        token = page.next_page_token
        if not token:
            break
    assert names == [f"c{number}" for number in range(7)]


async def test_a_watch_goes_on_from_a_list(stub_of):
    stub = await stub_of()
    listed = await stub.List(pb.ListRequest(kind="ConfigMap", namespace="demo"))
    await stub.Apply(pb.ApplyRequest(object=config("c", a="1")))
    await stub.Apply(pb.ApplyRequest(object=config("elsewhere", namespace="other")))
    await stub.Delete(pb.DeleteRequest(kind="ConfigMap", namespace="demo", name="c"))
    seen = []
    watch = stub.Watch(pb.WatchRequest(kind="ConfigMap", namespace="demo", revision=listed.revision))
    async with asyncio.timeout(10):
        async for change in watch:
            if change.type != pb.CHANGE_TYPE_BOOKMARK:
                seen.append((change.type, document_of(change.object)["metadata"]["name"]))
            if len(seen) == 2:
                break
    assert seen == [(pb.CHANGE_TYPE_ADDED, "c"), (pb.CHANGE_TYPE_DELETED, "c")]


@pytest.mark.parametrize(
    ("thing", "field"),
    [
        ({"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "demo"}}, "apiVersion"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "demo"}}, "metadata.name"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}, "metadata.namespace"),
        ({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "demo"}}, "kind"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": "c"}, "metadata.name"),
    ],
)
async def test_a_malformed_object_names_the_field(stub_of, thing, field):
    stub = await stub_of()
    with pytest.raises(InvalidError) as raised:
        await stub.Apply(pb.ApplyRequest(object=struct_of(thing)))
    assert field in raised.value.violations


async def test_people_do_not_write_what_the_plane_makes(stub_of, cluster):
    stub = await stub_of()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "demo"}}
    pod["spec"] = {"containers": [{"name": "c", "image": "i"}]}
    with pytest.raises(DeniedError, match="Pod objects are made by the plane"):
        await stub.Apply(pb.ApplyRequest(object=struct_of(pod)))
    await cluster.create(pod)
    with pytest.raises(DeniedError):
        await stub.Delete(pb.DeleteRequest(kind="pod", namespace="demo", name="p"))
    assert await cluster.get(POD, "demo", "p")
    with pytest.raises(InvalidError, match="agentctl-"):
        await stub.Apply(pb.ApplyRequest(object=config("c"), field_manager="agentctl-operator"))


async def test_a_user_of_one_namespace_sees_no_other(stub_of):
    ann, bob = await stub_of("/user/ann"), await stub_of("/ns/other/user/bob")
    await ann.Apply(pb.ApplyRequest(object=config("c", a="1")))
    await ann.Apply(pb.ApplyRequest(object=config("mine", namespace="other")))
    with pytest.raises(NotFoundError):
        await bob.Get(pb.GetRequest(kind="ConfigMap", namespace="demo", name="c"))
    with pytest.raises(NotFoundError):
        await bob.Apply(pb.ApplyRequest(object=config("c", a="2")))
    with pytest.raises(NotFoundError):
        await bob.Delete(pb.DeleteRequest(kind="ConfigMap", namespace="demo", name="c"))
    with pytest.raises(NotFoundError):
        await bob.CreateToken(
            pb.CreateTokenRequest(namespace="demo", service_account="default", audience="x")
        )
    with pytest.raises(NotFoundError):
        async for _ in bob.GetLogs(pb.GetLogsRequest(namespace="demo", pod="p")):
            pass
    with pytest.raises(NotFoundError):
        await bob.Apply(
            pb.ApplyRequest(
                object=struct_of({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}})
            )
        )
    seen = await bob.List(pb.ListRequest(kind="ConfigMap", label_selector="of=test"))
    assert [document_of(each)["metadata"]["name"] for each in seen.objects] == ["mine"]


async def test_whole_numbers_stay_whole(cluster, stub_of):
    stub = await stub_of()
    await cluster.create(
        {
            "apiVersion": CONFIG_MAP.api_version,
            "kind": "ConfigMap",
            "metadata": {"name": "n", "namespace": "demo", "annotations": {}, "generation": 7},
        }
    )
    found = document_of((await stub.Get(pb.GetRequest(kind="cm", namespace="demo", name="n"))).object)
    assert all(not isinstance(value, float) for value in found["metadata"].values())


async def test_a_token_is_for_a_service_account(cluster, stub_of):
    stub = await stub_of()
    request = pb.CreateTokenRequest(namespace="demo", service_account="default", audience="somebody")
    token = (await stub.CreateToken(request)).token
    bearer = await cluster.review_token(token, "somebody")
    assert (bearer.service_account, bearer.pod) == (("demo", "default"), "")
    request.lifetime.FromSeconds(5)
    with pytest.raises(InvalidError, match="10 minutes to 24 hours"):
        await stub.CreateToken(request)


class Admission:
    """A stub of AdmissionService that says what it is told."""

    def __init__(self) -> None:
        self.answer: review.ReviewResponse | MeshError = review.ReviewResponse(allowed=True)
        self.asked: list[review.ReviewRequest] = []
        self.underway = self.most_at_once = 0

    async def Review(self, request: review.ReviewRequest) -> review.ReviewResponse:
        self.asked.append(request)
        self.underway += 1
        self.most_at_once = max(self.most_at_once, self.underway)
        for _ in range(100):
            await asyncio.sleep(0)  # others may go on
        self.underway -= 1
        if isinstance(self.answer, MeshError):
            raise self.answer
        return self.answer


@pytest.fixture
def admission() -> Admission:
    return Admission()


@pytest.fixture
async def reviewed(cluster: LocalCluster, admission: Admission, tmp_path: Path) -> AsyncIterator[object]:
    """A stub of `demo.ci`, a user of demo, where admission is asked."""
    servicer = Resources(cluster, Usage(cluster), admission)
    async with (
        serving(
            PLANE,
            identity(authority(), tmp_path, "/cp/plane"),
            lambda server: pb_grpc.add_ResourceServiceServicer_to_server(servicer, server),
        ) as up,
        dial(PLANE, up.address, identity(authority(), tmp_path, "/ns/demo/user/demo.ci")) as channel,
    ):
        yield pb_grpc.ResourceServiceStub(channel)


def pool(**spec: object) -> Struct:
    metadata = {"name": "large", "namespace": "demo"}
    thing = {"apiVersion": "agentctl.dev/v1alpha1", "kind": "ModelPool", "metadata": metadata}
    return struct_of({**thing, "spec": {"models": ["m"], **spec}})


def finding(rule: str, field: str = "spec.endpoint", value: str = "") -> review.Finding:
    return review.Finding(rule=rule, field=field, value=value, message="it is wrong", mend="mend it")


async def test_what_people_declare_is_reviewed_as_the_caller_and_as_it_would_be(reviewed, admission):
    await reviewed.Apply(pb.ApplyRequest(object=pool()))
    await reviewed.Apply(pb.ApplyRequest(object=pool(endpoint="https://a/"), dry_run=True))
    await reviewed.Apply(pb.ApplyRequest(object=config("c", a="1")))  # nothing that admission is about
    first, second = admission.asked
    assert (first.author.username, first.dry_run) == ("system:serviceaccount:demo:ci", False)
    assert "system:serviceaccounts:demo" in first.author.groups
    assert not first.HasField("old_object")
    assert second.dry_run
    before, wanted = (document_of(each)["spec"] for each in (second.old_object, second.object))
    assert "endpoint" not in before
    assert wanted == {**before, "endpoint": "https://a/"}


async def test_a_denial_names_each_field_and_changes_nothing(reviewed, admission):
    admission.answer = review.ReviewResponse(
        denials=[finding("a-rule"), finding("b-rule"), finding("c-rule", "spec.models", "m")]
    )
    with pytest.raises(InvalidError) as caught:
        await reviewed.Apply(pb.ApplyRequest(object=pool()))
    assert caught.value.violations == {
        "spec.endpoint": "it is wrong; mend it; it is wrong; mend it",
        "spec.models": "it is wrong; mend it",
    }
    assert "\n* spec.models 'm': it is wrong; mend it (c-rule)" in str(caught.value)
    with pytest.raises(NotFoundError):
        await reviewed.Get(pb.GetRequest(kind="ModelPool", namespace="demo", name="large"))


async def test_what_only_others_may_declare_is_denied(reviewed, admission):
    admission.answer = review.ReviewResponse(denials=[finding("secret-not-yours")])
    with pytest.raises(DeniedError, match="secret-not-yours"):
        await reviewed.Apply(pb.ApplyRequest(object=pool()))


async def test_nothing_is_let_through_while_admission_is_away(reviewed, admission, cluster):
    admission.answer = UnavailableError("it is down")
    with pytest.raises(UnavailableError):
        await reviewed.Apply(pb.ApplyRequest(object=pool()))
    assert (await cluster.list(MODEL_POOL, "demo")).items == []


async def test_warnings_and_what_is_filled_in_come_back(reviewed, admission):
    value = struct_of({"app.kubernetes.io/part-of": "agentctl"})
    patch = review.PatchOperation(op="add", path="/metadata/labels", value=Value(struct_value=value))
    admission.answer = review.ReviewResponse(allowed=True, warnings=[finding("a-rule")], patch=[patch])
    said = await reviewed.Apply(pb.ApplyRequest(object=pool()))
    assert list(said.warnings) == ["spec.endpoint: it is wrong; mend it (a-rule)"]
    assert document_of(said.object)["metadata"]["labels"] == {"app.kubernetes.io/part-of": "agentctl"}
    again = await reviewed.Apply(pb.ApplyRequest(object=pool()))
    assert not again.changed


async def test_of_two_who_apply_at_once_each_is_reviewed_after_the_other(reviewed, admission):
    answers = await asyncio.gather(
        *(reviewed.Apply(pb.ApplyRequest(object=pool(endpoint=f"https://{n}/"))) for n in range(8))
    )
    assert sum(each.created for each in answers) == 1
    olds = [document_of(each.old_object)["spec"].get("endpoint", "") for each in admission.asked[1:]]
    news = [document_of(each.object)["spec"]["endpoint"] for each in admission.asked[:-1]]
    assert olds == news


@pytest.mark.parametrize(("agents", "fleets"), [("scout", "scout"), ("scout-coordinator", "scout")])
async def test_agents_and_fleets_whose_pods_might_share_a_name_are_reviewed_one_after_the_other(
    reviewed, admission, agents, fleets
):
    spec = {"instruction": "Look.", "model": {"pool": "large"}}
    things = [
        struct_of(
            {
                "apiVersion": "agentctl.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": name, "namespace": "demo"},
                "spec": said,
            }
        )
        for kind, name, said in (
            ("Agent", agents, {"mode": "once", **spec}),
            ("AgentFleet", fleets, {"template": spec}),
        )
    ]
    await asyncio.gather(*(reviewed.Apply(pb.ApplyRequest(object=each, dry_run=True)) for each in things * 4))
    assert (len(admission.asked), admission.most_at_once) == (8, 1)
