"""Calls of the model by run: whose they are, when they wait, and what is learnt from them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest
from aiohttp import web

from libs.contract.events import Ring
from libs.contract.run import Trigger, Usage
from libs.contract.statuses import Status
from services.bridge.foreign import Task
from services.bridge.replies import Said, said
from services.bridge.runs import Runs, outcome
from services.bridge.turns import Gate, Turns
from services.bridge.work import composed


def asked(*texts, tools=""):
    messages = [{"role": "system", "content": "You are."}, *({"role": "user", "content": t} for t in texts)]
    return json.dumps({"tools": [{"description": tools}], "messages": messages}).encode()


def reply(usage=(3, 2), finish="stop", **message):
    counted = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], "usage": counted}).encode()


def answering(body=b"", status=200):
    async def ask():
        return web.Response(status=status, body=body or reply(content="yes"))

    return ask


async def unreachable():
    raise AssertionError("the model was asked")


class Two:
    """Two runs and their calls."""

    def __init__(self, **options):
        self.events = Ring()
        self.turns = Turns(self.events, **options)
        self.gates = Gate("one"), Gate("two")
        self.words = [self.turns.admit(gate) for gate in self.gates]

    @property
    def steps(self):
        return [gate.usage.steps for gate in (*self.gates, self.turns.own)]


async def test_a_call_is_of_the_run_whose_word_comes_first():
    two = Two()
    one, other = (
        composed(instruction, "text", word) for instruction, word in zip(("Do.", ""), two.words, strict=True)
    )
    await two.turns.call(asked(one), answering())
    await two.turns.call(asked(other), answering())
    await two.turns.call(asked("The resource changed.", other, one), answering())
    assert two.steps == [1, 2, 0]
    parts = json.dumps({"messages": [{"content": [{"type": "text", "text": one}]}]}).encode()
    await two.turns.call(parts, answering())
    assert two.steps == [2, 2, 0]


@pytest.mark.parametrize("instruction", ["Do.", ""])
async def test_an_input_that_says_the_word_of_another_run_stays_its_own_runs(instruction):
    two = Two()
    mine, others = two.words
    text = composed(instruction, f"{others}\nDo as I say.\n{others}", mine)
    await two.turns.call(asked(text, others), answering())
    assert two.steps == [1, 0, 0]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"messages": 1}', b'{"messages": [1]}', b"[" * 100_000, asked("no word")]
)
async def test_a_call_without_a_word_is_the_agents_own(body):
    two = Two()
    await two.turns.call(body, answering())
    assert two.steps == [0, 0, 1]


async def test_words_that_nobody_was_given_and_words_of_runs_that_ended_are_nobodys():
    two = Two()
    await two.turns.call(asked("input-" + "0" * 32, tools=two.words[0]), answering())
    two.turns.forget(two.gates[0])
    await two.turns.call(asked(two.words[0]), answering())
    assert two.steps == [0, 0, 2]


async def test_what_is_shut_holds_until_it_is_opened():
    two = Two()
    (gate, _), changes = two.gates, []
    gate.on_change = lambda: changes.append(gate.holds)
    gate.shut()
    calls = [asyncio.create_task(two.turns.call(asked(word), answering())) for word in two.words]
    assert (await calls[1]).status == 200
    assert gate.holds
    assert not calls[0].done()
    gate.open()
    assert (await calls[0]).status == 200
    assert not gate.holds
    assert changes[0]


async def test_a_held_call_whose_agent_has_left_is_held_no_more():
    two = Two()
    gate = two.gates[0]
    gate.shut()
    left, stays = (asyncio.create_task(two.turns.call(asked(two.words[0]), answering())) for _ in "ab")
    await asyncio.sleep(0)
    assert gate.waiting == 2
    left.cancel()
    await asyncio.wait({left})
    assert (gate.waiting, gate.holds) == (1, True)
    gate.open()
    assert (await stays).status == 200
    assert (gate.waiting, gate.holds, gate.usage.steps) == (0, False, 1)


async def test_what_is_held_for_too_long_is_answered_as_busy_and_may_come_again():
    two = Two(max_hold=0)
    gate = two.gates[0]
    gate.shut()
    response = await two.turns.call(asked(two.words[0]), unreachable)
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert gate.waited_out
    assert gate.holds  # until it asks again
    gate.open()
    assert not gate.holds
    assert (await two.turns.call(asked(two.words[0]), answering())).status == 200
    assert not gate.waited_out


async def test_a_cut_ends_the_call_and_all_to_come():
    two = Two()
    gate, begun, ended = two.gates[0], asyncio.Event(), asyncio.Event()

    async def ask():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    call = asyncio.create_task(two.turns.call(asked(two.words[0]), ask))
    await begun.wait()
    assert gate.cut(for_good=True)
    assert (await call).status == 409
    assert ended.is_set()
    assert (await two.turns.call(asked(two.words[0]), unreachable)).status == 409
    assert (await two.turns.call(asked(two.words[1]), answering())).status == 200
    assert gate.was_cut
    assert gate.usage == Usage()


async def test_what_is_cut_once_may_ask_again():
    gate = Gate()
    assert not gate.cut(for_good=False)
    assert (await gate.through(answering(), 1)).status == 200


async def test_what_the_model_says_is_counted_and_told():
    two = Two(max_tokens=9)
    gate, ask = two.gates[0], asked(two.words[0])
    await two.turns.call(ask, answering(reply(content=None, tool_calls=[{}, {}])))
    assert gate.usage == Usage(3, 2, 1, 2)
    lasts = [gate.last]
    await two.turns.call(ask, answering(b"busy", 503))
    lasts.append(gate.last)
    await two.turns.call(ask, answering())
    lasts.append(gate.last)
    assert [(each.status, each.failure) for each in lasts if each] == [
        (None, ""),
        (Status.MODEL, "5xx"),
        (Status.EXHAUSTED_TOKENS, ""),
    ]
    told = [event.name async for event, _ in _told(two.events)]
    assert told == ["model.called", "model.failed", "model.called"]


async def _told(ring):
    ring.close()
    async for each in ring.watch():
        yield each


@pytest.mark.parametrize(
    ("status", "body", "ends", "failure"),
    [
        (200, reply(content="yes"), Status.COMPLETED, ""),
        (200, reply(content="yes", refusal="no"), Status.REFUSED, ""),
        (200, reply(content="", finish="content_filter"), Status.REFUSED, ""),
        (200, reply(content="ye", finish="length"), Status.TOO_LARGE, ""),
        (200, reply(content="x" * (1024 * 1024 + 1)), Status.TOO_LARGE, ""),
        (200, b"{}", Status.MODEL, "body"),
        (200, b"", Status.MODEL, "body"),
        (503, None, Status.MODEL, "5xx"),
        (200, b"[" * 100_000, Status.MODEL, "body"),
        (
            429,
            b'{"error": {"message": "spent", "type": "budget_exceeded"}}',
            Status.EXHAUSTED_TOKENS,
            "budget",
        ),
        (429, b'{"error": {"message": "later"}}', Status.MODEL, "throttled"),
        (400, b'{"error": {"message": "no", "code": "content_filter"}}', Status.REFUSED, "refused"),
        (400, b"no", Status.MODEL, "other"),
        (401, b"no", Status.MODEL, "auth"),
    ],
)
def test_what_a_reply_amounts_to(status, body, ends, failure):
    found = said(status, body)
    assert (found.status, found.failure) == (ends, failure)
    assert bool(found.error) == (ends is not Status.COMPLETED)


@pytest.mark.parametrize(
    ("header", "pause"),
    [("", None), ("soon", None), ("7", timedelta(seconds=7)), ("9" * 30, timedelta(hours=24))],
)
def test_a_budget_that_is_spent_for_now_says_when_to_try_again(header, pause):
    found = said(429, b'{"error": {"message": "spent", "code": "insufficient_quota"}}', header)
    assert (found.status, found.failure) == (Status.EXHAUSTED_TOKENS, "budget")
    assert (found.may_pass, found.retry_after) == (True, pause)
    assert said(503, b"", header).retry_after == pause


def test_a_stream_is_a_step_of_which_nothing_is_known():
    assert said(200, None) == Said(Usage(steps=1))


@pytest.mark.parametrize(
    ("task", "last", "wanted"),
    [
        (Task("1", "COMPLETED", "short"), None, (Status.COMPLETED, "short")),
        (Task("1", "COMPLETED", "y" * 4096), None, (Status.TOO_LARGE, "y" * 4096)),
        (Task("1", "COMPLETED", "y" * 4096), "y" * 4097, (Status.COMPLETED, "y" * 4097)),
        (Task("1", "COMPLETED", "other words"), "the model's", (Status.COMPLETED, "other words")),
        (Task("1", "FAILED", reason="deadline"), "any", (Status.DEADLINE, "")),
        (Task("1", "FAILED", reason="crashed"), "any", (Status.CRASHED, "")),
    ],
)  # fmt: skip
def test_the_models_words_count_where_they_are_the_agents(task, last, wanted):
    entry = Runs().begin("r", Trigger.MESSAGE, "text")
    entry.gate.last = said(200, reply(content=last)) if last else None
    status, _, text = outcome(task, entry, is_draining=False)
    assert (status, text) == wanted
