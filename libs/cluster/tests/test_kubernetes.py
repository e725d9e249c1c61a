"""The Kubernetes home against a server that answers what a test says: what no real one does on demand."""

from __future__ import annotations

import base64
import json
import sys
import time
from contextlib import aclosing

import anyio
import pytest
import yaml
from aiohttp import web

from libs.cluster import Access, Bearer, ExpiredError, Log, UnauthorisedError
from libs.cluster.kinds import CONFIG_MAP, NAMESPACE
from libs.cluster.kubernetes import connect
from libs.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
)
from libs.settings import SettingsError

from .proxy import proxy

CONFIG_MAPS = "/api/v1/namespaces/n/configmaps"


class Script:
    """A server whose next answers are given; it notes what it was asked."""

    def __init__(self):
        self.asked = []
        self.answers = []

    async def handle(self, request):
        self.asked.append((request.method, request.path, dict(request.query), dict(request.headers)))
        self.body = await request.read()
        answer = self.answers.pop(0)
        return await answer(request) if callable(answer) else answer

    def says(self, http=200, /, **document):
        self.answers.append(web.json_response(document, status=http))

    def streams(self, *pieces):
        async def answer(request):
            response = web.StreamResponse()
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
            return response

        self.answers.append(answer)


@pytest.fixture
async def script():
    return Script()


@pytest.fixture
async def port(script):
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", script.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.fixture
def kubeconfig(tmp_path):
    def write(port, **user):
        path = tmp_path / "kubeconfig"
        document = {
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    return write


@pytest.fixture
async def cluster(port, kubeconfig):
    async with connect(kubeconfig(port, token="first")) as cluster:
        yield cluster


def config(name="a", **metadata):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": name, **metadata}}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidError),
        (401, UnauthorisedError),
        (403, UnauthorisedError),
        (404, NotFoundError),
        (405, InvalidError),
        (409, ConflictError),
        (410, ExpiredError),
        (413, InvalidError),
        (422, InvalidError),
        (429, UnavailableError),
        (500, UnavailableError),
        (503, UnavailableError),
        (504, UnavailableError),
    ],
)
async def test_each_status_is_an_error_of_ours_with_its_words(cluster, script, status, error):
    for _ in range(1 + (status == 401)):  # which is tried again with credentials that are loaded again
        script.says(status, kind="Status", message="in its own words")
    with pytest.raises(error, match="in its own words") as raised:
        await cluster.get(CONFIG_MAP, "n", "a")
    assert type(raised.value) is error


async def test_causes_are_the_violations(cluster, script):
    causes = [
        {"field": "spec.mode", "message": "bad", "reason": "FieldValueInvalid"},
        {"field": "spec.mode", "message": "very bad"},
        {"field": "spec.loop", "message": "missing"},
    ]
    script.says(422, kind="Status", message="invalid", details={"causes": causes})
    with pytest.raises(InvalidError) as raised:
        await cluster.create(config())
    assert raised.value.violations == {"spec.mode": "bad; very bad", "spec.loop": "missing"}


async def test_namespace_that_goes_away_is_no_question_of_rights(cluster, script):
    causes = [{"reason": "NamespaceTerminating", "message": "namespace n is being terminated"}]
    script.says(403, kind="Status", reason="Forbidden", message="no", details={"causes": causes})
    with pytest.raises(PreconditionError):
        await cluster.create(config())


async def test_answer_that_is_no_json_is_unavailable(cluster, script):
    script.answers.append(web.Response(text="<html>a proxy's page</html>"))
    with pytest.raises(UnavailableError):
        await cluster.get(CONFIG_MAP, "n", "a")
    script.answers.append(web.Response(status=502, text="<html>bad gateway</html>"))
    with pytest.raises(UnavailableError, match="bad gateway"):
        await cluster.get(CONFIG_MAP, "n", "a")


async def test_apply_is_a_forced_server_side_apply(cluster, script):
    script.says(**config())
    await cluster.apply(config(), "us", subresource="status", dry_run=True)
    [(method, path, query, headers)] = script.asked
    assert (method, path) == ("PATCH", f"{CONFIG_MAPS}/a/status")
    assert query == {"fieldManager": "us", "force": "true", "dryRun": "All"}
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert headers["Authorization"] == "Bearer first"
    assert json.loads(script.body) == config()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2Fb"])
async def test_name_that_would_lead_elsewhere_asks_nothing(cluster, script, name):
    with pytest.raises(InvalidError):
        await cluster.delete(CONFIG_MAP, "n", name)
    with pytest.raises(InvalidError):
        await cluster.delete(CONFIG_MAP, name, "a")
    assert not script.asked


def page(*names, further="", revision="7"):
    metadata = {"resourceVersion": revision} | ({"continue": further} if further else {})
    return {"metadata": metadata, "items": [{"metadata": {"name": name}} for name in names]}


async def test_list_goes_through_its_pages(cluster, script):
    script.says(**page("a", "b", further="next"))
    script.says(**page("c"))
    listing = await cluster.list(CONFIG_MAP, "n", "x=y")
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b", "c"]
    assert listing.revision == "7"
    assert all(item["kind"] == "ConfigMap" for item in listing.items)
    assert [query for _, _, query, _ in script.asked] == [
        {"labelSelector": "x=y", "limit": "500"},
        {"labelSelector": "x=y", "limit": "500", "continue": "next"},
    ]


async def test_a_name_is_a_field_selector_which_a_right_to_one_name_allows(cluster, script):
    script.says(**page("a"))
    await cluster.list(CONFIG_MAP, "n", name="a")
    script.streams()
    async with aclosing(cluster.watch(CONFIG_MAP, "n", name="a")) as watched:
        assert [change async for change in watched] == []
    assert [query["fieldSelector"] for _, _, query, _ in script.asked] == ["metadata.name=a"] * 2


async def test_list_that_expires_between_pages_is_asked_for_in_one(cluster, script):
    script.says(**page("a", further="next"))
    script.says(410, kind="Status", reason="Expired", message="too old")
    script.says(**page("b", "c", revision="9"))
    listing = await cluster.list(CONFIG_MAP, "n")
    assert [item["metadata"]["name"] for item in listing.items] == ["b", "c"]
    assert listing.revision == "9"
    assert script.asked[-1][2] == {}


def line(type, **thing):
    return json.dumps({"type": type, "object": thing}).encode() + b"\n"


async def watched(cluster):
    async with aclosing(cluster.watch(CONFIG_MAP, "n", since="7")) as changes:
        return [(change.type, change.object["metadata"].get("name")) async for change in changes]


async def test_lines_of_a_watch_may_be_cut_anywhere(cluster, script):
    huge = config("huge") | {"data": {"k": "x" * 2**23}}
    text = (
        line("ADDED", **config("a"))
        + line("MODIFIED", **huge)
        + line("BOOKMARK", metadata={"resourceVersion": "9"})
    )
    script.streams(*(text[start : start + 999_983] for start in range(0, len(text), 999_983)))
    script.streams(text[:50], text[50:51], text[51:60], text[60:-1], text[-1:])
    for _ in range(2):
        assert await watched(cluster) == [("ADDED", "a"), ("MODIFIED", "huge"), ("BOOKMARK", None)]
    query = script.asked[0][2]
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7"}


async def test_end_of_a_watch_is_no_error_and_half_a_line_no_change(cluster, script):
    script.streams(line("ADDED", **config("a")), line("ADDED", **config("b"))[:-9])
    assert await watched(cluster) == [("ADDED", "a")]


async def test_expired_watch_says_so_by_status_and_by_event(cluster, script):
    script.says(410, kind="Status", reason="Expired", message="too old")
    with pytest.raises(ExpiredError, match="too old"):
        await watched(cluster)
    script.streams(
        line("ADDED", **config("a")),
        line("ERROR", kind="Status", code=410, reason="Expired", message="too old"),
    )
    with pytest.raises(ExpiredError, match="too old"):
        await watched(cluster)


async def test_broken_watch_is_unavailable(cluster, script):
    async def breaks(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", **config("a")))
        request.transport.abort()
        return response

    script.answers.append(breaks)
    with pytest.raises(UnavailableError):
        await watched(cluster)


async def test_watch_that_hears_not_even_bookmarks_is_unavailable(port, script, kubeconfig):
    async def hangs(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", **config("a")))
        await anyio.sleep_forever()

    script.answers.append(hangs)
    async with connect(kubeconfig(port), silence=0.3) as cluster:
        with anyio.fail_after(20), pytest.raises(UnavailableError):
            await watched(cluster)


async def test_nobody_there_is_unavailable(kubeconfig):
    async with proxy("127.0.0.1", 9) as gone:
        pass
    async with connect(kubeconfig(gone.port)) as cluster:
        with pytest.raises(UnavailableError):
            await cluster.version()


async def test_silence_ends_with_the_deadline(port, script, kubeconfig):
    async with (
        proxy("127.0.0.1", port) as between,
        connect(kubeconfig(between.port), deadline=2) as cluster,
    ):
        script.says(gitVersion="v1")
        assert await cluster.version() == "Kubernetes v1"
        between.stall()
        with anyio.fail_after(20), pytest.raises(UnavailableError):
            await cluster.version()
        between.flow()


async def test_refused_credentials_are_loaded_again_but_not_each_time(port, script, kubeconfig):
    """As when a token expires, and a file or an exec plugin has a new one."""
    async with connect(kubeconfig(port, token="first")) as cluster:
        kubeconfig(port, token="second")
        script.says(401, kind="Status", message="expired")
        script.says(gitVersion="v1")
        await cluster.version()
        assert [headers["Authorization"] for *_, headers in script.asked] == ["Bearer first", "Bearer second"]
        kubeconfig(port, token="third")
        script.says(401, kind="Status", message="expired")
        with pytest.raises(UnauthorisedError):
            await cluster.version()
        assert len(script.asked) == 3


async def test_exec_plugin_gives_the_token(port, script, kubeconfig):
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "of-a-plugin"},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(json.dumps(credential))})"],
        "interactiveMode": "Never",
    }
    async with connect(kubeconfig(port, exec=plugin)) as cluster:
        script.says(gitVersion="v1")
        await cluster.version()
    assert script.asked[0][3]["Authorization"] == "Bearer of-a-plugin"


async def test_configuration_that_is_none_is_a_wrong_setting(tmp_path, kubeconfig):
    broken = tmp_path / "broken"
    broken.write_text("{")
    for path, context in ((tmp_path / "missing", ""), (broken, ""), (kubeconfig(1), "other")):
        with pytest.raises(SettingsError):
            async with connect(path, context):
                pass


def token(**claims):
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)
    ]
    return ".".join((*parts, "c2ln"))


REVIEWED = {
    "authenticated": True,
    "audiences": ["us"],
    "user": {
        "username": "system:serviceaccount:n:robot",
        "uid": "u",
        "groups": ["g"],
        "extra": {
            "authentication.kubernetes.io/pod-name": ["p"],
            "authentication.kubernetes.io/pod-uid": ["pu"],
            "authentication.kubernetes.io/credential-id": ["JTI=1"],
        },
    },
}


async def test_review_tells_the_pod_of_a_token_and_its_end(cluster, script):
    script.says(201, status=REVIEWED)
    bearer = await cluster.review_token(token(exp=1234), "us")
    assert (bearer.pod, bearer.pod_uid, bearer.token_id) == ("p", "pu", "JTI=1")
    assert bearer.expires_at == 1234
    assert bearer.service_account == ("n", "robot")
    assert json.loads(script.body)["spec"] == {"token": token(exp=1234), "audiences": ["us"]}


@pytest.mark.parametrize(
    "status",
    [
        {"error": "no"},
        {"authenticated": False},
        REVIEWED | {"authenticated": False},
        REVIEWED | {"audiences": []},
        REVIEWED | {"audiences": ["them"]},
        {key: value for key, value in REVIEWED.items() if key != "audiences"},
    ],
)
async def test_review_that_does_not_name_our_audience_is_a_refusal(cluster, script, status):
    script.says(201, status=status)
    with pytest.raises(UnauthenticatedError):
        await cluster.review_token(token(), "us")


async def test_without_an_audience_the_api_server_asks_for_its_own(cluster, script):
    script.says(201, status=REVIEWED | {"audiences": ["https://kubernetes.default.svc"]})
    assert (await cluster.review_token(token(), "")).uid == "u"
    assert json.loads(script.body)["spec"] == {"token": token(), "audiences": []}
    script.says(201, status={"authenticated": False})
    with pytest.raises(UnauthenticatedError):
        await cluster.review_token(token(), "")


async def test_token_without_id_or_end_has_an_id_of_its_own(cluster, script):
    user = {"username": "u"}
    for _ in range(3):
        script.says(201, status=REVIEWED | {"user": user})
    first, again, other = [await cluster.review_token(word, "us") for word in ("a", "a", "b")]
    assert first.token_id == again.token_id != other.token_id
    assert first.expires_at > time.time() + 1e12


async def test_access_review_asks_as_the_bearer(cluster, script):
    for allowed in (True, False):
        script.says(201, status={"allowed": allowed})
        bearer = Bearer("u", ("g",), "uid", extra={"k": ("v",)})
        assert await cluster.review_access(bearer, Access("request", "a.b", "users", "n")) is allowed
    spec = json.loads(script.body)["spec"]
    assert (spec["user"], spec["groups"], spec["uid"], spec["extra"]) == ("u", ["g"], "uid", {"k": ["v"]})
    assert spec["resourceAttributes"]["group"] == "a.b"


async def test_logs_come_as_they_are(cluster, script):
    script.streams(b"one\n", b"two\n")
    log = Log("n", "p", container="agent", tail=5, previous=True)
    async with aclosing(cluster.logs(log)) as pieces:
        assert b"".join([piece async for piece in pieces]) == b"one\ntwo\n"
    [(_, path, query, _)] = script.asked
    assert path == "/api/v1/namespaces/n/pods/p/log"
    assert query == {"container": "agent", "tailLines": "5", "previous": "true"}


async def test_kinds_without_namespace_have_a_path_of_their_own(cluster, script):
    script.says(metadata={"name": "n"})
    await cluster.get(NAMESPACE, "", "n")
    assert script.asked[0][1] == "/api/v1/namespaces/n"


async def test_warnings_are_heard_whatever_the_answer_is(script, port, kubeconfig):
    for status in (200, 422):
        response = web.json_response({"message": "no"}, status=status)
        for text in ('299 - "it is \\"old\\""', '299 - "two"', "odd"):
            response.headers.add("Warning", text)
        script.answers.append(response)
    heard: list[str] = []
    async with connect(kubeconfig(port), warned=heard.append) as cluster:
        await cluster.get(CONFIG_MAP, "n", "p")
        assert heard == ['it is "old"', "two", "odd"]
        with pytest.raises(InvalidError):
            await cluster.get(CONFIG_MAP, "n", "p")
    assert len(heard) == 6
