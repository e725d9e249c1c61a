"""Commands against a service that answers what the test says: what they ask, print, and exit with."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from agentctl.coordination.v1 import coordination_service_pb2 as pb
from agentctl.coordination.v1 import work_pb2
from libs.errors import DeniedError, ExhaustedError, InvalidError, NotFoundError, UnavailableError
from libs.pki import Authority
from libs.testing.ca import DOMAIN, authority, identity

ITEM = work_pb2.Item(
    id="01a228a7-9415-793d-b423-426969c1b8f3",
    queue="demo/q",
    state=work_pb2.WORK_STATE_SUCCEEDED,
    attempt=1,
    max_attempts=5,
    holder="spiffe://mesh.test/ns/demo/agent/q/pod/q-1/u",
    labels={"file": "a.txt"},
    result=b"fine",
    result_content_type="text/plain",
)
QUEUE = work_pb2.Queue(name="demo/q", ready_count=3)


def accept(request):
    """Everything is accepted."""
    accepted = pb.SUBMIT_STATUS_ACCEPTED
    return pb.SubmitResponse(
        verdicts=[pb.SubmitVerdict(status=accepted, item_id=item.id) for item in request.items]
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidError(violations={"queue": "namespace/name"}), 1),
        (ExhaustedError("too many"), 1),
        (NotFoundError("no queue demo/q"), 3),
        (DeniedError("no"), 4),
        (UnavailableError("store down"), 5),
    ],
)
async def test_each_kind_of_error_has_its_exit_code_and_one_line(agentctl, scripted, error, code):
    scripted.answers["PauseQueue"] = [error]
    result = await agentctl("queues", "pause", "demo/q")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ")
    assert str(error) in result.stderr
    assert result.stderr.count("\n") == 1


async def test_nobody_at_home_is_5_and_names_the_mend(agentctl):
    result = await agentctl("queues", "list", "--address", "127.0.0.1:1")
    assert result.exit_code == 5
    assert "nobody answers at 127.0.0.1:1" in result.stderr
    assert "agentctl up" in result.stderr


async def test_somebody_who_answers_that_it_cannot_is_not_called_nobody(agentctl, scripted):
    scripted.answers["Submit"] = scripted.answers["PauseQueue"] = [UnavailableError("the store is down")]
    for arguments in (("queues", "pause", "demo/q"), ("work", "submit", "demo/q", "-")):
        result = await agentctl(*arguments, stdin=b"x")
        assert result.exit_code == 5
        assert "answers UNAVAILABLE: the store is down" in result.stderr
        assert "is it up" not in result.stderr


async def test_a_certificate_that_nobody_believes_is_4_and_says_why(agentctl, tmp_path):
    past = datetime.now(UTC) - timedelta(days=1)
    expired = identity(authority(), tmp_path, "/user/ann", lifetime=timedelta(hours=1), now=past)
    stranger = Authority.create(tmp_path / "other-pki", DOMAIN)
    foreign, mixed, unpinned = (identity(stranger, tmp_path, "/user/ann") for _ in range(3))
    for file in ("ca.crt", "control-plane.crt", "workloads.crt", "users.crt"):
        shutil.copy(expired.folder / file, mixed.folder)
    shutil.copy(expired.root, unpinned.root)
    unpaired = identity(authority(), tmp_path, "/user/ann")
    shutil.copy(expired.key, unpaired.key)
    reasons = {
        expired.folder: f"expired at {past + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}",
        mixed.folder: "not signed by the users intermediate",
        unpaired.folder: "not a whole certificate folder",
        foreign.folder: "is not believed",
        unpinned.folder: "does not believe your certificate",
    }
    for folder, reason in reasons.items():
        result = await agentctl("queues", "list", "--tls-dir", str(folder))
        assert (result.exit_code, result.stderr.count("\n")) == (4, 1)
        assert reason in result.stderr
        assert "TSI_" not in result.stderr


async def test_no_certificate_is_4_and_names_the_mend(agentctl, tmp_path):
    result = await agentctl("queues", "list", "--tls-dir", str(tmp_path))
    assert result.exit_code == 4
    assert "`agentctl login`" in result.stderr


async def test_submit_says_what_became_of_each_item(agentctl, scripted):
    full = pb.SubmitVerdict(status=pb.SUBMIT_STATUS_FULL, depth=7, cap=7)
    duplicate = pb.SubmitVerdict(status=pb.SUBMIT_STATUS_DUPLICATE, item_id=ITEM.id)

    def answer(request):
        accepted = pb.SubmitVerdict(status=pb.SUBMIT_STATUS_ACCEPTED, item_id=request.items[0].id)
        return pb.SubmitResponse(verdicts=[accepted, duplicate, full])

    scripted.answers["Submit"] = [answer]
    result = await agentctl(
        "work", "submit", "demo/q", "-", "--group", "g", "--label", "a=b", "-o", "json", stdin=b"1\n2\n3\n"
    )
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["counts"] == {"accepted": 1, "duplicate": 1, "full": 1}
    assert [each["verdict"] for each in found["items"]] == ["accepted", "duplicate", "full"]
    assert found["items"][1]["item_id"] == ITEM.id
    assert "7 unsettled items" in result.stderr
    [request] = scripted.requests["Submit"]
    assert [(item.payload, item.group, dict(item.labels)) for item in request.items] == [
        (each, "g", {"a": "b"}) for each in (b"1", b"2", b"3")
    ]


async def test_submit_of_a_bad_line_submits_nothing(agentctl, scripted):
    scripted.answers["Submit"] = [accept]
    lines = b'{"payload": "x"}\n{"payload": "x", "colour": 1}\n'
    result = await agentctl("work", "submit", "demo/q", "--jsonl", "-", stdin=lines)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: stdin:2: colour: no such field")
    assert scripted.requests["Submit"] == []


async def test_submit_of_an_id_that_stands_twice_submits_nothing(agentctl, scripted):
    lines = b"".join(b'{"payload": "x", "id": "%s"}\n' % ITEM.id.encode() for _ in range(2))
    result = await agentctl("work", "submit", "demo/q", "--jsonl", "-", stdin=b"\n" + lines)
    assert result.exit_code == 1
    assert result.stderr == f"error: stdin:3: id: {ITEM.id} is that of line 2 already\n"
    assert scripted.requests["Submit"] == []


async def test_a_bad_name_of_a_queue_is_a_usage_error(agentctl, scripted):
    for arguments in (
        ("work", "submit", "Demo", "-"),
        ("queues", "pause", "demo"),
        ("dead", "list", "a/b/c"),
    ):
        result = await agentctl(*arguments, stdin=b"x")
        assert result.exit_code == 2
        assert "is not a queue" in result.stderr
    assert scripted.requests == {}


async def test_submit_and_wait_prints_results_and_fails_if_one_did(agentctl, scripted):
    def settled(request):
        ends = (work_pb2.WORK_STATE_SUCCEEDED, work_pb2.WORK_STATE_DEAD)
        items = [work_pb2.Item(id=id_, state=end) for id_, end in zip(request.item_ids, ends, strict=True)]
        return pb.WatchResultsResponse(results=items, cursor="c")

    scripted.answers["Submit"] = [accept]
    scripted.answers["WatchResults"] = [settled]
    result = await agentctl("work", "submit", "demo/q", "-", "--wait", "-o", "json", stdin=b"1\n2\n")
    summary, *results = [json.loads(line) for line in result.stdout.splitlines()]
    assert summary["counts"]["accepted"] == 2
    assert [each["state"] for each in results] == ["WORK_STATE_SUCCEEDED", "WORK_STATE_DEAD"]
    assert result.exit_code == 1
    assert "1 of 2 items did not succeed" in result.stderr
    [request] = scripted.requests["WatchResults"]
    assert [each["item_id"] for each in summary["items"]] == list(request.item_ids)


async def test_list_follows_pages_up_to_its_limit(agentctl, scripted):
    pages = [
        pb.ListItemsResponse(items=[ITEM] * 2, next_page_token="t"),
        pb.ListItemsResponse(items=[ITEM] * 2),
    ]
    scripted.answers["ListItems"] = pages
    result = await agentctl("work", "list", "demo/q", "--state", "dead", "--limit", "3", "-o", "json")
    assert len(json.loads(result.stdout)["items"]) == 3
    assert "raise --limit" in result.stderr
    assert [each.page_token for each in scripted.requests["ListItems"]] == ["", "t"]
    assert list(scripted.requests["ListItems"][0].states) == [work_pb2.WORK_STATE_DEAD]


async def test_get_shows_what_there_is_and_misses_the_rest(agentctl, scripted):
    scripted.answers["GetItems"] = [pb.GetItemsResponse(items=[ITEM], missing_ids=["gone"])]
    result = await agentctl("work", "get", ITEM.id, "gone")
    assert result.exit_code == 3
    assert "a.txt" in result.stdout
    assert "fine" in result.stdout
    assert "gone" in result.stderr


async def test_cancel_tells_each_verdict(agentctl, scripted):
    verdicts = [
        pb.CancelVerdict(status=pb.CANCEL_STATUS_CANCELED),
        pb.CancelVerdict(status=pb.CANCEL_STATUS_SETTLED, state=work_pb2.WORK_STATE_SUCCEEDED),
    ]
    scripted.answers["Cancel"] = [pb.CancelResponse(verdicts=verdicts)]
    result = await agentctl("work", "cancel", "a", "b", "--reason", "enough")
    assert result.exit_code == 1
    assert "canceled" in result.stdout
    assert "too late: succeeded" in result.stdout
    assert scripted.requests["Cancel"][0].reason == "enough"


async def test_configure_sends_only_what_was_named(agentctl, scripted):
    scripted.answers["ConfigureQueue"] = [pb.ConfigureQueueResponse(queue=QUEUE)]
    result = await agentctl(
        "queues", "configure", "demo/q", "--lease", "1m30s", "--max-payload", "64KiB", "--on-expiry", "dead"
    )
    assert result.exit_code == 0
    policy = scripted.requests["ConfigureQueue"][0].policy
    assert {field.name for field, _ in policy.ListFields()} == {
        "default_lease",
        "max_payload_bytes",
        "on_expiry",
    }
    assert (policy.default_lease.seconds, policy.max_payload_bytes) == (90, 65_536)
    assert (await agentctl("queues", "configure", "demo/q")).exit_code == 2


async def test_redrive_goes_on_while_there_is_more_and_ends_when_nothing_moves(agentctl, scripted):
    scripted.answers["Redrive"] = [
        pb.RedriveResponse(item_ids=["a"], duplicate_ids=["d"], more=True),
        pb.RedriveResponse(duplicate_ids=["d"], more=True),
    ]
    result = await agentctl("dead", "redrive", "demo/q", "--all")
    assert len(scripted.requests["Redrive"]) == 2
    assert result.stdout == "1 put back; 1 stay, since another item has their dedupe key\n"


async def test_purge_of_everything_must_be_asked_for(agentctl, scripted):
    scripted.answers["Purge"] = [
        pb.PurgeResponse(purged_count=1, more=True),
        pb.PurgeResponse(purged_count=1),
    ]
    assert (await agentctl("dead", "purge", "demo/q", "--yes")).exit_code == 2
    assert (await agentctl("dead", "purge", "demo/q", "--all", "--id", ITEM.id)).exit_code == 2
    assert (await agentctl("dead", "purge", "demo/q", "--all")).exit_code == 2  # nobody can be asked
    assert scripted.requests["Purge"] == []
    result = await agentctl("dead", "purge", "demo/q", "--all", "--yes")
    assert result.stdout == "2 deleted\n"
    assert all(each.all for each in scripted.requests["Purge"])


async def test_watch_of_a_group_ends_when_all_is_settled(agentctl, scripted):
    scripted.answers["GetQueues"] = [pb.GetQueuesResponse(queues=[QUEUE])]
    scripted.answers["ListItems"] = [pb.ListItemsResponse(items=[ITEM])]
    scripted.answers["WatchQueues"] = [pb.WatchQueuesResponse(queues=[QUEUE])]
    scripted.answers["WatchResults"] = [pb.WatchResultsResponse(results=[ITEM], cursor="c")]
    result = await agentctl("work", "watch", "demo/q", "--group", "g", "-o", "json")
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["total"], last["settled"], last["finished_by"]) == (1, {"succeeded": 1}, {"q-1": 1})


async def test_watch_of_a_queue_ends_when_it_is_empty(agentctl, scripted):
    empty = work_pb2.Queue(name="demo/q")
    scripted.answers["GetQueues"] = [pb.GetQueuesResponse(queues=[each]) for each in (QUEUE, empty)]
    scripted.answers["ListItems"] = [pb.ListItemsResponse()]
    scripted.answers["WatchQueues"] = [
        pb.WatchQueuesResponse(queues=[QUEUE]),
        pb.WatchQueuesResponse(queues=[empty]),
    ]
    result = await agentctl("work", "watch", "demo/q")
    assert result.exit_code == 0
    assert "0 ready" in result.stdout


async def test_watch_of_an_unknown_queue_is_3(agentctl, scripted):
    scripted.answers["GetQueues"] = [pb.GetQueuesResponse()]
    assert (await agentctl("work", "watch", "demo/q")).exit_code == 3


async def test_explain_takes_a_queue_or_an_item(agentctl, scripted):
    paused = pb.Obstacle(code="PAUSED", detail="nothing is granted")
    scripted.answers["Explain"] = [pb.ExplainResponse(queue=QUEUE, item=ITEM, obstacles=[paused])]
    assert "PAUSED" in (await agentctl("explain", "demo/q")).stdout
    assert "a.txt" in (await agentctl("explain", ITEM.id)).stdout
    assert [(each.queue, each.item_id) for each in scripted.requests["Explain"]] == [
        ("demo/q", ""),
        ("", ITEM.id),
    ]


async def test_release_of_a_worker(agentctl, scripted):
    scripted.answers["ReleaseWorker"] = [pb.ReleaseWorkerResponse(released_count=4)]
    assert (await agentctl("workers", "release", "demo", "uid")).stdout == "4 items given back\n"


async def test_nothing_that_matches_is_3_everywhere(agentctl, scripted):
    scripted.answers["ReleaseWorker"] = [pb.ReleaseWorkerResponse()]
    scripted.answers["Redrive"] = [pb.RedriveResponse()]
    scripted.answers["Purge"] = [pb.PurgeResponse()]
    released = await agentctl("workers", "release", "demo", "nope")
    assert (released.exit_code, released.stderr) == (3, "error: no pod nope of demo holds anything\n")
    for verb in ("redrive", "purge"):
        found = await agentctl("dead", verb, "demo/q", "--id", ITEM.id)
        assert (found.exit_code, found.stderr) == (3, "error: no dead letter matches\n")


async def test_a_lifetime_beyond_the_authoritys_is_refused_naming_the_longest(agentctl, tmp_path):
    assert (await agentctl("pki", "init")).exit_code == 0
    result = await agentctl("pki", "issue", "user/x", str(tmp_path / "x"), "--lifetime", "9999d")
    assert result.exit_code == 2
    assert "so the longest is 43799h" in result.stderr
    assert not (tmp_path / "x").exists()


async def test_items_and_queues_show_their_shards_where_there_are_some(agentctl, scripted):
    other = work_pb2.Item(id=ITEM.id, queue="demo/q", state=work_pb2.WORK_STATE_READY, shard=0)
    scripted.answers["ListItems"] = [pb.ListItemsResponse(items=[ITEM]), pb.ListItemsResponse(items=[other])]
    assert "SHARD" not in (await agentctl("work", "list", "demo/q")).stdout
    head, row = (await agentctl("work", "list", "demo/q")).stdout.splitlines()
    assert (head.split()[:2], row.split()[:2]) == (["ID", "SHARD"], [ITEM.id, "0"])
    scripted.answers["GetItems"] = [pb.GetItemsResponse(items=[other])]
    assert ["shard:", "0"] in [
        line.split() for line in (await agentctl("work", "get", ITEM.id)).stdout.splitlines()
    ]

    divided = work_pb2.Queue(
        name="demo/d", policy=work_pb2.QueuePolicy(shards=work_pb2.Sharding(count=3, epoch=7))
    )
    scripted.answers["GetQueues"] = [pb.GetQueuesResponse(queues=[QUEUE])]
    assert "SHARDS" not in (await agentctl("queues", "list")).stdout
    scripted.answers["GetQueues"] = [pb.GetQueuesResponse(queues=[QUEUE, divided])]
    lines = (await agentctl("queues", "list")).stdout.splitlines()
    assert lines[0].endswith("SHARDS")
    assert lines[2].endswith("3 (epoch 7)")
    scripted.answers["GetQueues"] = [pb.GetQueuesResponse(queues=[divided])]
    assert "3 (epoch 7)" in (await agentctl("queues", "show", "demo/d")).stdout.split("\n\n")[1]


async def test_a_shard_key_is_for_all_items_that_say_none(agentctl, scripted):
    scripted.answers["Submit"] = [accept]
    lines = '{"payload": "a"}\n{"payload": "b", "shard_key": "own"}\n'
    result = await agentctl("work", "submit", "demo/q", "--jsonl", "-", "--shard-key", "all", stdin=lines)
    assert result.exit_code == 0
    (request,) = scripted.requests["Submit"]
    assert [item.shard_key for item in request.items] == ["all", "own"]
