-- minimum: 2
-- Adding items. Verdicts: 1 accepted (not returned), 2 duplicate, 3 full, 4 id conflict.

create type submitted_1 as (n int, status int, state int, depth int8, cap int8, who text);

create function depth_1(queue int) returns int8
language sql stable as $$
    select coalesce(sum(ready + delayed + blocked + leased), 0)::int8 from (
        select ready, delayed, blocked, leased from counter where queue_id = queue
        union all select ready, delayed, blocked, leased from counter_delta where queue_id = queue) c
$$;

-- What is known under an id: its queue, key and payload, to compare a repeat with.
create function known_1(wanted uuid, out queue_id int, out dedupe_key text, out size int, out checksum int8)
language plpgsql stable as $$
begin
    select i.queue_id, i.dedupe_key, i.size, i.checksum into queue_id, dedupe_key, size, checksum
    from item i where i.id = wanted;
    if not found then
        select s.queue_id, s.dedupe_key, s.size, s.checksum into queue_id, dedupe_key, size, checksum
        from settled s where s.id = wanted and s.state <> 6 and s.drop_at > clock_timestamp() limit 1;
    end if;
end $$;

-- Takes dedupe keys for new items and looks for room: the numbers of those to leave out, and their verdicts.
create function turn_away_1(
    queues int[], qs int[], ids uuid[], dedupes text[], now_ timestamptz, out away int[], out verdicts submitted_1[]
) language plpgsql as $$
declare
    known int[];
    won int[];
    excess int[];
    w record;
begin
    select coalesce(array_agg(u.n), '{}') into known from unnest(ids) with ordinality u(id, n)
    where exists (select from item i where i.id = u.id)
    or exists (select from settled s where s.id = u.id and s.state <> 6 and s.drop_at > now_);
    away := '{}';
    verdicts := '{}';
    if dedupes is not null then
        with takers as (
            select u.n, u.q, u.key, u.id from unnest(qs, dedupes, ids) with ordinality u(q, key, id, n)
            where u.key is not null and u.n <> all (known)
        ), taken as (
            insert into dedupe as d (queue_id, key, item_id)
            select t.q, t.key, t.id from takers t order by t.q, t.key
            on conflict (queue_id, key) do update set item_id = excluded.item_id, until = null
            where d.until <= now_ or d.item_id = excluded.item_id
            returning d.item_id
        )
        select array_agg(u.n) into away from takers u where u.id not in (select item_id from taken);
        away := coalesce(away, '{}');
        select coalesce(array_agg((u.n, 2, coalesce(i.state, s.state, 5), null, null, d.item_id::text)::submitted_1), '{}')
        into verdicts from unnest(away) a(n) join unnest(qs, dedupes) with ordinality u(q, key, n) on u.n = a.n
        join dedupe d on d.queue_id = u.q and d.key = u.key
        left join item i on i.id = d.item_id
        left join lateral (select s.state from settled s where s.id = d.item_id and s.state <> 6 limit 1) s on true;
    end if;
    for w in select q.id, q.max_backlog as cap, depth_1(q.id) as depth from queue q where q.id = any (queues) loop
        select array_agg(n) into excess from (
            select u.n, row_number() over (order by u.n) as nth from unnest(qs) with ordinality u(q, n)
            where u.q = w.id and u.n <> all (known) and u.n <> all (away)) u
        where w.depth + nth > w.cap;
        continue when excess is null;
        if dedupes is not null then
            delete from dedupe d using unnest(excess) e(n)
            where d.queue_id = w.id and d.key = dedupes[e.n] and d.item_id = ids[e.n];
        end if;
        away := away || excess;
        verdicts := verdicts || array(
            select (e.n, 3, null, greatest(w.depth, w.cap), w.cap, null)::submitted_1 from unnest(excess) e(n));
    end loop;
end $$;

create function submit_1(
    queues int[], masks int[],
    qs int[], ids uuid[], priorities int2[], delays int8[], lifetimes int8[], most int[], sizes int[],
    checksums int8[], submitters text[], groups text[], dedupes text[], orderings text[],
    attributes_ bytea[], payloads bytea[]
) returns setof submitted_1 language plpgsql as $$
#variable_conflict use_column
declare
    now_ timestamptz;
    base int8;
    turned record;
    away int[] := '{}';
    verdicts submitted_1[] := '{}';
    added int;
    lowest int8;
    late uuid[];
begin
    if (select count(*) from queue where id = any (queues)) < cardinality(queues) then
        raise 'unknown queue' using errcode = '55000';
    end if;
    if orderings is not null then
        perform lock_keys_1(qs, orderings);
    end if;
    now_ := clock_timestamp();
    base := nextval('ord');
    if dedupes is not null or exists (
        select from queue q where q.id = any (queues) and depth_1(q.id) + cardinality(ids) > q.max_backlog)
    then
        turned := turn_away_1(queues, qs, ids, dedupes, now_);
        away := turned.away;
        verdicts := turned.verdicts;
    end if;
    with added as (
        insert into item (id, queue_id, state, priority, max_attempts, size, seq, ord, checksum, expires_in_ms, submitted_at,
            ready_at, expires_at, submitter, group_id, dedupe_key, ordering_key, attributes, payload)
        select u.id, u.q, case when u.ordering is not null then 3 when u.delay > 0 then 2 else 1 end, u.priority, u.most,
            u.size, base + u.n, base + u.n, u.checksum, u.lifetime, now_, now_ + u.delay * interval '1 ms',
            now_ + u.lifetime * interval '1 ms', u.submitter, u.grp, u.dedupe, u.ordering, u.attributes, u.payload
        from unnest(qs, ids, priorities, delays, lifetimes, most, sizes, checksums, submitters, groups, dedupes, orderings,
            attributes_, payloads) with ordinality
            u(q, id, priority, delay, lifetime, most, size, checksum, submitter, grp, dedupe, ordering, attributes, payload, n)
        where u.n <> all (away)
        on conflict (id) do nothing
        returning queue_id, state
    ), counted as (
        insert into counter_delta (queue_id, ready, delayed, blocked, submitted)
        select queue_id, count(*) filter (where state = 1), count(*) filter (where state = 2),
            count(*) filter (where state = 3), count(*) from added group by queue_id
        returning submitted
    )
    select coalesce(sum(submitted), 0) into added from counted;
    -- An id that was settled while we waited for its row is known, not new: look after the insert.
    select array_agg(u.id) into late from unnest(ids) u(id)
    where exists (select from settled s where s.id = u.id and s.state <> 6 and s.drop_at > now_);
    if late is not null then
        with undone as (
            delete from item i using unnest(ids) with ordinality u(id, n)
            where i.id = u.id and i.id = any (late) and i.ord = base + u.n returning i.queue_id, i.state
        )
        insert into counter_delta (queue_id, ready, delayed, blocked, submitted)
        select queue_id, -count(*) filter (where state = 1), -count(*) filter (where state = 2),
            -count(*) filter (where state = 3), -count(*) from undone group by queue_id;
    end if;
    if late is not null or added + cardinality(away) < cardinality(ids) then
        verdicts := verdicts || array(
            select (u.n, case when k.queue_id is null then 0 when k.queue_id = u.q and k.size = u.size
                and k.checksum = u.checksum and k.dedupe_key is not distinct from u.dedupe then 1 else 4 end,
                null, null, null, null)::submitted_1
            from unnest(qs, ids, sizes, checksums, dedupes) with ordinality u(q, id, size, checksum, dedupe, n)
            cross join lateral known_1(u.id) k
            where u.n <> all (away) and not exists (select from item i where i.id = u.id and i.ord = base + u.n));
        if exists (select from unnest(verdicts) v where v.status = 0) then
            raise 'an item went while it was submitted again' using errcode = '40001';
        end if;
        verdicts := array(select v from unnest(verdicts) v where v.status <> 1);
    end if;
    lowest := base;
    if orderings is not null then
        lowest := least(base, promote_1(qs, orderings));
    end if;
    update queue q set bands = q.bands | m.mask from unnest(queues, masks) m(id, mask)
    where q.id = m.id and q.bands & m.mask <> m.mask;
    return query select v.* from unnest(verdicts) v;
    return query select 0, added, null::int, lowest, null::int8, null::text;
end $$;
