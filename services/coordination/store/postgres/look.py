"""Reading: items, lists, results and queues. Statements that are bounded by an index and a limit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString, Protocol

from libs.errors import ExhaustedError, InvalidError

from ...work import MAX_GRANT_BYTES, Item, ItemFilter, Page, QueueStats, Results, Scope, State
from . import rows

SCAN = 2000  # rows that one filtered page looks at
_UNSETTLED = (State.READY, State.DELAYED, State.BLOCKED, State.LEASED)
_TOKEN = re.compile(r"([as])-([0-9]{1,18})-([0-9]{1,18})")
_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")

_SEES = "sees_1(q.name, i.submitter, i.holder, %(namespace)s, %(submitter)s, %(holder)s)"
_MATCHES = f"""({_SEES}
    and (%(ids)s::uuid[] is null or i.id = any (%(ids)s))
    and (%(group)s::text is null or i.group_id = %(group)s)
    and (%(cause)s::int is null or i.cause = %(cause)s)
    and (%(labels)s::jsonb is null
        or coalesce(convert_from(i.attributes, 'UTF8')::jsonb -> 'l', '{{}}') @> %(labels)s))"""

# Priorities, and those of items in shards.
_BANDS = "unnest('{0,1,2,3,4,5,6,7,8,9,16,17,18,19,20,21,22,23,24,25}'::int[])"
# The first of each state by its own index, then the first of all.
_ACTIVE = f"""
    with page as (
        select r.id, r.ord from {_BANDS} b(p) cross join lateral (
            select i.id, i.ord from item i where i.queue_id = %(queue)s and i.priority = b.p and i.state = 1
            and i.ord > %(after)s order by i.ord limit %(most)s) r where 1 = any (%(states)s)
        union all (select i.id, i.ord from item i where i.queue_id = %(queue)s and i.state in (2, 3)
            and %(states)s && '{{2,3}}' and i.state = any (%(states)s) and i.ord > %(after)s
            order by i.ord limit %(most)s)
        union all (select i.id, i.ord from item i where i.state = 4 and 4 = any (%(states)s)
            and i.queue_id = %(queue)s and i.ord > %(after)s order by i.ord limit %(most)s)
        union all (select i.id, i.ord from item i where i.queue_id = %(queue)s and i.state = 6
            and 6 = any (%(states)s) and i.ord > %(after)s order by i.ord limit %(most)s)
    )
    select {rows.UNSETTLED_COLUMNS}, {_MATCHES} from (select * from page order by ord limit %(most)s) p
    join item i on i.id = any (array[p.id]) join queue q on q.id = i.queue_id order by i.ord"""
_AMONG = f"""
    select {rows.UNSETTLED_COLUMNS}, {_MATCHES} from item i join queue q on q.id = i.queue_id
    where i.id = any (%(ids)s) and i.queue_id = %(queue)s and i.state = any (%(states)s) and i.ord > %(after)s
    order by i.ord limit %(most)s"""
_SETTLED = f"""
    select {rows.LISTED_COLUMNS}, {_MATCHES} from settled i join queue q on q.id = i.queue_id
    where i.queue_id = %(queue)s and i.state <> 6 and i.state = any (%(states)s)
    and (i.xid, i.ord) > (%(xid)s::text::xid8, %(after)s) and i.drop_at > clock_timestamp()
    order by i.xid, i.ord limit %(most)s"""
_SETTLED_AFTER = f"""from settled i join queue q on q.id = i.queue_id
    where %s and (i.xid, i.ord) > (%%(xid)s::text::xid8, %%(after)s)
    and i.drop_at > clock_timestamp() and {_SEES.replace("%", "%%")}"""
_RESULTS = f"""
    with weighed as (
        select sum(octet_length(i.result) + octet_length(i.attributes)
            + coalesce(octet_length(i.failures::text), 0)) over (order by i.xid, i.ord) as bytes
        {_SETTLED_AFTER} and i.xid < pg_snapshot_xmin(pg_current_snapshot())
        order by i.xid, i.ord limit %%(most)s)
    select {rows.SETTLED_COLUMNS} {_SETTLED_AFTER} and i.xid < pg_snapshot_xmin(pg_current_snapshot())
    order by i.xid, i.ord
    limit (select greatest(1, count(*) filter (where bytes <= %%(budget)s)) from weighed)"""
_HELD_BACK = f"select exists (select {_SETTLED_AFTER})"
_ITEMS = f"""
    select {rows.UNSETTLED_COLUMNS}, case when %(payload)s then i.payload end
    from item i join queue q on q.id = i.queue_id
    where i.id = any (%(ids)s) and {_SEES}
    union all
    select {rows.SETTLED_COLUMNS}, null from settled i join queue q on q.id = i.queue_id
    where i.id = any (%(ids)s) and i.state <> 6 and i.drop_at > clock_timestamp()
    and {_SEES}"""
_STANDING = f"""
    select i.id::text, q.name, i.state from item i join queue q on q.id = i.queue_id
    where i.id = any (%(ids)s) and {_SEES}
    union all
    select i.id::text, q.name, i.state from settled i join queue q on q.id = i.queue_id
    where i.id = any (%(ids)s) and i.state <> 6 and i.drop_at > clock_timestamp() and {_SEES}"""
_WEIGHT = f"""
    select coalesce(sum(w.bytes), 0)::int8 from (
        select case when %(payload)s then i.size else 0 end as bytes
        from item i join queue q on q.id = i.queue_id where i.id = any (%(ids)s) and {_SEES}
        union all
        select octet_length(i.result) from settled i join queue q on q.id = i.queue_id
        where i.id = any (%(ids)s) and i.state <> 6 and {_SEES}) w"""
_NUMBERS = "ready, delayed, blocked, leased, dead, submitted, granted, settled"
_QUEUES = f"""
    select q.name, q.policy::text, q.paused, c.*, oldest.ms,
        exists (select from item i where i.queue_id = q.id and i.state in (2, 3)),
        exists (select from item i where i.queue_id = q.id and i.state = 6)
    from queue q cross join lateral (
        select {", ".join(f"coalesce(sum({n}), 0)::int8" for n in _NUMBERS.split(", "))} from (
            select {_NUMBERS} from counter where queue_id = q.id
            union all select {_NUMBERS} from counter_delta where queue_id = q.id) d) c
    cross join lateral (
        select max(ms_1(clock_timestamp() - r.ready_at)) as ms
        from {_BANDS} b(p) cross join lateral (
            select i.ready_at from item i where i.queue_id = q.id and i.priority = b.p and i.state = 1
            order by i.ord limit 1) r
        where q.bands >> (b.p & 15) & 1 = 1 and (b.p < 10 or q.shard_epoch > 0)) oldest
    where %s order by q.name"""
_UNSETTLED_SCOPED = f"""
    select count(*) from (
        select from queue q join item i on i.queue_id = q.id and i.state = 1
            where q.id = %(queue)s and {_SEES}
        union all select from queue q join item i on i.queue_id = q.id and i.state in (2, 3)
            where q.id = %(queue)s and {_SEES}
        union all select from queue q join item i on i.queue_id = q.id and i.state = 4
            where q.id = %(queue)s and {_SEES}
        limit 1000) u"""
_UNSETTLED_GROUP = f"""
    select count(*) from (
        select from item i join queue q on q.id = i.queue_id where i.queue_id = %(queue)s
        and i.group_id = %(group)s
        and i.died_at is null and {_SEES} limit 1000) u"""


class Read(Protocol):
    """Runs a statement on a reading connection."""

    async def __call__(self, statement: LiteralString, params: Mapping[str, object]) -> list[Any]: ...


def _scope(scope: Scope) -> dict[str, object]:
    return {"namespace": scope.namespace, "submitter": scope.submitter, "holder": scope.holder}


async def standing(read: Read, ids: Sequence[str], scope: Scope) -> dict[str, tuple[str, State]]:
    found = await read(_STANDING, {"ids": list(ids), **_scope(scope)})
    return {id: (queue, State(state)) for id, queue, state in found}


async def items(read: Read, ids: Sequence[str], scope: Scope, *, with_payload: bool) -> list[Item]:
    asked = {"ids": list(ids), "payload": with_payload, **_scope(scope)}
    ((size,),) = await read(_WEIGHT, asked)
    if size > MAX_GRANT_BYTES:
        raise ExhaustedError(f"these items are {size} bytes, more than {MAX_GRANT_BYTES}; ask for fewer")
    found = {row[0]: rows.item(row, row[-1]) for row in await read(_ITEMS, asked)}
    return [found[id] for id in ids if id in found]


async def list_items(
    read: Read, queue: int, matching: ItemFilter, scope: Scope, *, size: int, token: str
) -> Page:
    """Settled items first, by settling, then the others by their place."""
    states = matching.states or frozenset(_UNSETTLED)
    settled = bool(states & {State.SUCCEEDED, State.CANCELED})
    phase, xid, after = _number(token, _TOKEN, "page_token") or ("s" if settled else "a", "0", "0")
    filtered = bool(matching.labels or matching.group or matching.cause or scope != Scope(scope.namespace))
    most = SCAN if filtered else size
    asked = {
        "queue": queue,
        "states": [int(state) for state in states],
        "most": most,
        "ids": list(matching.ids) or None,
        "group": matching.group,
        "cause": matching.cause and int(matching.cause),
        "labels": json.dumps(dict(matching.labels)) if matching.labels else None,
        **_scope(scope),
    }
    found: list[Item] = []
    for name in "sa"["sa".index(phase) :]:
        statement = _SETTLED if name == "s" else _AMONG if matching.ids else _ACTIVE
        page = await read(statement, {**asked, "xid": xid, "after": int(after), "most": most})
        for n, row in enumerate(page):
            if row[-1]:
                found.append(rows.item(row))
            if len(found) == size and (n + 1 < len(page) or len(page) == most or name == "s"):
                return Page(tuple(found), f"{name}-{row[-2]}-{row[-3]}")
        if len(page) == most:
            return Page(tuple(found), f"{name}-{page[-1][-2]}-{page[-1][-3]}")
        xid = after = "0"
    return Page(tuple(found))


async def results(
    read: Read,
    *,
    queue: int | None,
    group: str | None,
    ids: frozenset[str],
    scope: Scope,
    cursor: str,
    limit: int,
) -> Results:
    xid, after = _number(cursor, _CURSOR, "cursor") or ("0", "0")
    which = "i.id = any (%(ids)s)" if ids else "i.queue_id = %(queue)s"
    if group is not None:
        which += " and i.group_id = %(group)s"
    asked = {"queue": queue, "group": group, "ids": list(ids), "xid": xid, "after": int(after), "most": limit}
    page = await read(_RESULTS % (which, which), {**asked, "budget": MAX_GRANT_BYTES, **_scope(scope)})
    if page:
        return Results(tuple(rows.item(row) for row in page), f"{page[-1][-1]}-{page[-1][-2]}")
    ((held_back,),) = await read(_HELD_BACK % which, {**asked, **_scope(scope)})
    return Results((), cursor or "0-0", held_back)


async def unsettled(read: Read, *, queue: int, group: str | None, scope: Scope) -> int:
    statement = _UNSETTLED_SCOPED if group is None else _UNSETTLED_GROUP
    ((count,),) = await read(statement, {"queue": queue, "group": group, **_scope(scope)})
    return int(count)


async def queues(read: Read, names: Sequence[str] | None, namespace: str | None) -> list[QueueStats]:
    if names is not None:
        which = "q.name = any (%(names)s)"
    elif namespace is not None:
        which = "q.name >= %(start)s and q.name < %(end)s"
    else:
        which = "true"
    asked = {"names": list(names or ()), "start": f"{namespace}/", "end": f"{namespace}0"}
    return [_stats(row) for row in await read(_QUEUES % which, asked)]


def _stats(row: Any) -> QueueStats:
    (
        name, policy, paused, ready, delayed, blocked, leased, dead, submitted, granted, settled, oldest,
        waiting, buried,
    ) = row  # fmt: skip
    if waiting and delayed + blocked <= 0:  # a zero is only said after a look at the index
        delayed = 1
    return QueueStats(
        name,
        rows.policy(policy),
        paused,
        max(ready, 0 if oldest is None else 1),
        max(delayed, 0),
        max(blocked, 0),
        max(leased, 0),
        max(dead, 1 if buried else 0),
        None if oldest is None else max(0, oldest),
        submitted,
        granted,
        settled,
    )


def _number(text: str, form: re.Pattern[str], field: str) -> tuple[str, ...] | None:
    if not text:
        return None
    if not (match := form.fullmatch(text)):
        raise InvalidError(violations={field: "is not one that this store gave out"})
    return match.groups()
