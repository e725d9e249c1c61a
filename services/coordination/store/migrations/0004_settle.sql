-- minimum: 4
-- Ending leases. Verdicts as on the wire: status 1 ok, 2 lost, 3 settled; lost 1 unknown, 2 expired, 3 released,
-- 4 failed, 5 regranted, 6 max hold.

-- Adds the time in which no replica could sweep to the leases that were live when it began.
create function recover_1() returns void language plpgsql as $$
declare
    now_ timestamptz := clock_timestamp();
    before timestamptz;
begin
    select last into before from beat;
    if before is null or now_ - before <= interval '1 s' then
        return;
    end if;
    update beat set last = now_, outage_end = now_ where last = before;
    if found then
        update item set lease_until = lease_until + (now_ - greatest(before, granted_at))
        where state = 4 and lease_until > before;
    end if;
end $$;

-- Locks the ordering keys of these items, for promote_1 after them.
create function lock_items_1(ids uuid[], out qs int[], out keys text[]) language plpgsql as $$
begin
    select array_agg(i.queue_id), array_agg(i.ordering_key) into qs, keys
    from unnest(ids) u(id) join item i on i.id = u.id where i.ordering_key is not null;
    if qs is not null then
        perform lock_keys_1(qs, keys);
    end if;
end $$;

-- Why a lease is not its caller's to change, or the first verdict if this very change was made before.
create function fate_1(n int, wanted uuid, token_ int8, holder_ text, verb text, args text) returns verdict_1
language plpgsql as $$
declare
    i record;
    ended jsonb;
    current bool;
begin
    select state, token, holder, past, granted_at, lease_until, null::bytea as result, null::text as result_type,
        (select max_hold_ms from queue q where q.id = item.queue_id) as max_hold_ms
    into i from item where id = wanted;
    if not found then
        select state, token, holder, past, null::timestamptz as granted_at, null::timestamptz as lease_until, result,
            result_type, 0::int8 as max_hold_ms into i
        from settled where id = wanted and state <> 6 and drop_at > clock_timestamp() limit 1;
        if not found then
            return row(n, 2, 1, null, null, false, null)::verdict_1;
        end if;
    end if;
    select e into ended from jsonb_array_elements(i.past) e where (e ->> 0)::int8 = token_ and e ->> 2 = holder_;
    current := coalesce(i.token = token_ and i.holder = holder_, false);
    if ended ->> 3 = verb and ended ->> 4 is not distinct from args then
        return row(n, 1, null, (ended ->> 6)::int, (ended ->> 5)::int8, false, null)::verdict_1;
    elsif not current and ended is null then
        return row(n, 2, 1, null, null, false, null)::verdict_1;
    elsif i.state = 5 and current and verb = 'ack' and md5(i.result || convert_to(i.result_type, 'UTF8')) = args then
        return row(n, 1, null, null, null, false, null)::verdict_1;
    elsif i.state in (5, 6, 7) then
        return row(n, 3, null, i.state, null, false, null)::verdict_1;
    elsif i.token <> token_ then
        return row(n, 2, 5, null, null, false, case when i.state = 4 then i.holder end)::verdict_1;
    elsif ended is not null then
        return row(n, 2, (ended ->> 1)::int, null, null, false, null)::verdict_1;
    end if;
    -- It ran out (or may no longer be renewed), and was not swept yet.
    return row(n, 2, case when i.lease_until > clock_timestamp()
        or i.lease_until >= i.granted_at + i.max_hold_ms * interval '1 ms' then 6 else 2 end, null, null, false, null)::verdict_1;
end $$;

-- Enters items that just became dead or canceled among the results; canceled ones leave the items.
create function record_1(ids uuid[], base int8, now_ timestamptz) returns void language plpgsql as $$
begin
    insert into settled (ord, id, queue_id, state, priority, cause, attempt, max_attempts, size, token, checksum,
        submitted_at, settled_at, drop_at, submitter, holder, group_id, dedupe_key, ordering_key, cancel_reason,
        attributes, failures, past)
    select base + u.n, i.id, i.queue_id, i.state, i.priority, i.cause, i.attempt, i.max_attempts, i.size, i.token,
        i.checksum, i.submitted_at, now_, now_ + q.settled_retention_ms * interval '1 ms', i.submitter, i.holder,
        i.group_id, i.dedupe_key, i.ordering_key, i.cancel_reason, i.attributes, i.failures, i.past
    from unnest(ids) with ordinality u(id, n) join item i on i.id = u.id join queue q on q.id = i.queue_id;
    insert into counter_delta (queue_id, settled)
    select i.queue_id, count(*) from unnest(ids) u(id) join item i on i.id = u.id group by i.queue_id;
    update dedupe d set until = now_ + q.dedupe_window_ms * interval '1 ms'
    from unnest(ids) u(id) join item i on i.id = u.id join queue q on q.id = i.queue_id
    where i.state + 0 = 7 and d.queue_id = i.queue_id and d.key = i.dedupe_key and d.item_id = i.id;
    delete from item i using unnest(ids) u(id) where i.id = u.id and i.state + 0 = 7;
end $$;

-- Wakes of these queues.
create function wakes_1(qs int[], lowest int8) returns setof verdict_1 language sql stable as $$
    select 0, count(*)::int, null::int, null::int, lowest, false, q.name
    from unnest(qs) u(id) join queue q on q.id = u.id group by q.name
$$;

create function ack_1(ids uuid[], tokens int8[], holders text[], results bytea[], types text[], keyed uuid[])
returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz;
    base int8;
    locked record;
    done int[];
    qs int[];
    counts int[];
    lowest int8;
begin
    if keyed is not null then
        locked := lock_items_1(keyed);
    end if;
    now_ := clock_timestamp();
    base := nextval('ord');
    with gone as (
        delete from item i using unnest(ids, tokens, holders, results, types) with ordinality
            a(id, token, holder, result, type, n)
        where i.id = a.id and i.token = a.token and i.holder = a.holder and i.died_at is null
        returning a.n, a.result, a.type, i.state as was, i.id, i.queue_id, i.priority, i.attempt, i.max_attempts, i.size,
            i.token, i.checksum, i.submitted_at, i.submitter, i.holder, i.group_id, i.dedupe_key, i.ordering_key,
            i.cancel_reason, i.attributes, i.failures, i.past
    ), kept as (
        insert into settled (ord, id, queue_id, state, priority, attempt, max_attempts, size, token, checksum,
            submitted_at, settled_at, drop_at, submitter, holder, group_id, dedupe_key, ordering_key, cancel_reason,
            attributes, failures, past, result, result_type)
        select base + g.n, g.id, g.queue_id, 5, g.priority, g.attempt, g.max_attempts, g.size, g.token, g.checksum,
            g.submitted_at, now_, now_ + q.settled_retention_ms * interval '1 ms', g.submitter, g.holder, g.group_id,
            g.dedupe_key, g.ordering_key, g.cancel_reason, g.attributes, g.failures, g.past, g.result, g.type
        from gone g join queue q on q.id = g.queue_id
    ), freed as (
        update dedupe d set until = now_ + q.dedupe_window_ms * interval '1 ms'
        from gone g join queue q on q.id = g.queue_id
        where g.dedupe_key is not null and d.queue_id = g.queue_id and d.key = g.dedupe_key and d.item_id = g.id
    ), counted as (
        insert into counter_delta (queue_id, leased, ready, settled)
        select queue_id, -count(*) filter (where was = 4), -count(*) filter (where was = 1), count(*)
        from gone group by queue_id
        returning queue_id, settled
    )
    select (select array_agg(n) from gone), (select array_agg(queue_id) from counted),
        (select array_agg(settled) from counted) into done, qs, counts;
    if keyed is not null then
        lowest := promote_1(locked.qs, locked.keys);
    end if;
    if coalesce(cardinality(done), 0) < cardinality(ids) then
        return query select f.* from unnest(ids, tokens, holders, results, types) with ordinality
            a(id, token, holder, result, type, n)
        cross join lateral fate_1(a.n::int, a.id, a.token, a.holder, 'ack',
            md5(a.result || convert_to(a.type, 'UTF8'))) f
        where a.n <> all (coalesce(done, '{}'));
    end if;
    return query select 0, c.n, null::int, null::int, lowest, false, q.name
        from unnest(qs, counts) c(id, n) join queue q on q.id = c.id;
end $$;

create function renew_1(ids uuid[], tokens int8[], holders text[], leases int8[])
returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz;
    done int[];
    lefts int8[];
    cancels bool[];
begin
    perform recover_1();
    now_ := clock_timestamp();
    with renewed as (
        update item i set lease_until = least(
            now_ + least(greatest(coalesce(a.lease, q.default_lease_ms), q.min_lease_ms), q.max_lease_ms) * interval '1 ms',
            i.granted_at + q.max_hold_ms * interval '1 ms')
        from unnest(ids, tokens, holders, leases) with ordinality a(id, token, holder, lease, n), queue q
        where i.id = a.id and i.token = a.token and i.holder = a.holder and i.lease_until > now_
        and q.id = i.queue_id and i.granted_at + q.max_hold_ms * interval '1 ms' > now_
        returning a.n, ms_1(i.lease_until - now_) as left_ms, i.cancel_reason is not null as cancel
    )
    select coalesce(array_agg(r.n), '{}'), array_agg(r.left_ms), array_agg(r.cancel) into done, lefts, cancels from renewed r;
    return query select r.n::int, 1, null::int, null::int, r.left_ms, r.cancel, null::text
        from unnest(done, lefts, cancels) r(n, left_ms, cancel);
    if cardinality(done) < cardinality(ids) then
        return query select f.* from unnest(ids, tokens, holders) with ordinality a(id, token, holder, n)
            cross join lateral fate_1(a.n::int, a.id, a.token, a.holder, 'renew', null) f where a.n <> all (done);
    end if;
end $$;

-- Ends live leases. Where to: `outcomes` 1 ready, 2 delayed, 6 dead, 7 canceled. An entry's place in the arrays
-- is the place of its item at the end of the ready ones.
create function end_leases_1(
    ids uuid[], tokens int8[], outcomes int[], losts int[], verb text, args text[], delays int8[], errors text[],
    causes int[], uncounted int[], base int8, now_ timestamptz, out qs int[]
) language plpgsql as $$
declare
    settled_ uuid[];
begin
    with ended as (
        update item i set state = a.outcome, ord = base + a.n, lease_until = null, claim_key = null, request_args = null,
            refunds = i.refunds + (verb = 'undo')::int,
            attempt = i.attempt - a.uncounted,
            holder = case when a.outcome > 2 or verb = 'expire' then i.holder end,
            ready_at = now_ + coalesce(a.delay, 0) * interval '1 ms',
            cause = case when a.outcome = 6 then a.cause end,
            died_at = case when a.outcome = 6 then now_ end,
            drop_at = case when a.outcome = 6 then now_ + q.dead_retention_ms * interval '1 ms' end,
            expires_at = case when a.outcome <= 2 then i.expires_at end,
            failures = case when a.error is null then i.failures else remember_1(i.failures,
                jsonb_build_array(i.attempt, a.error, i.holder, ms_1(now_ - 'epoch'::timestamptz)), 10) end,
            past = remember_1(i.past, jsonb_build_array(i.token, a.lost, i.holder, verb, a.args, a.delay,
                case when a.outcome > 2 then a.outcome end), 20)
        from unnest(ids, tokens, outcomes, losts, args, delays, errors, causes, uncounted) with ordinality
            a(id, token, outcome, lost, args, delay, error, cause, uncounted, n), queue q
        where i.id = a.id and i.token = a.token and q.id = i.queue_id
        returning i.id, i.queue_id, i.state
    ), counted as (
        insert into counter_delta (queue_id, leased, ready, delayed, dead)
        select queue_id, -count(*), count(*) filter (where state = 1), count(*) filter (where state = 2),
            count(*) filter (where state = 6) from ended group by queue_id
    )
    select coalesce(array_agg(queue_id), '{}'), array_agg(id) filter (where state > 2) into qs, settled_ from ended;
    if settled_ is not null then
        perform record_1(settled_, base, now_);
    end if;
end $$;

create function fail_1(
    ids uuid[], tokens int8[], holders text[], errors text[], retryables bool[], afters int8[], keyed uuid[]
) returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz;
    base int8;
    locked record;
    h record;
    qs int[];
    lowest int8;
begin
    perform recover_1();
    if keyed is not null then
        locked := lock_items_1(keyed);
    end if;
    now_ := clock_timestamp();
    base := nextval('ord');
    with hit as materialized (
        select a.n, i.id, i.token, a.error, md5(a.error || a.retryable || coalesce(a.after, -1)) as args, a.retryable,
            case when i.cancel_reason is not null then 7
                when not a.retryable or i.attempt >= i.max_attempts then 6 end as final,
            greatest(coalesce(a.after, 0), trunc((1 - 0.2 * random()) * least((b -> 1)::float8,
                (b -> 0)::float8 * power((b -> 2)::float8, least(i.attempt - 1, 64))))::int8) as delay
        from unnest(ids, tokens, holders, errors, retryables, afters) with ordinality
            a(id, token, holder, error, retryable, after, n)
        join item i on i.id = a.id
        cross join lateral (select convert_from(i.attributes, 'UTF8')::jsonb -> 'b') backoff(b)
        where i.token = a.token and i.holder = a.holder and i.lease_until > now_
        for update of i
    )
    select coalesce(array_agg(n), '{}') as n, array_agg(id) as ids, array_agg(token) as tokens,
        array_agg(coalesce(final, (delay > 0)::int + 1)) as outcomes, array_agg(4) as losts, array_agg(args) as args,
        array_agg(case when final is null then delay end) as delays, array_agg(error) as errors,
        array_agg(case when retryable then 1 else 2 end) as causes, array_agg(0) as uncounted
    into h from hit;
    if cardinality(h.n) > 0 then
        qs := end_leases_1(h.ids, h.tokens, h.outcomes, h.losts, 'fail', h.args, h.delays, h.errors, h.causes,
            h.uncounted, base, now_);
    end if;
    lowest := base;
    if keyed is not null then
        lowest := least(base, promote_1(locked.qs, locked.keys));
    end if;
    return query select u.n::int, 1, null::int, case when u.outcome > 2 then u.outcome end, u.delay, false, null::text
        from unnest(h.n, h.outcomes, h.delays) u(n, outcome, delay);
    return query select f.* from unnest(ids, tokens, holders, errors, retryables, afters) with ordinality
            a(id, token, holder, error, retryable, after, n)
        cross join lateral fate_1(a.n::int, a.id, a.token, a.holder, 'fail',
            md5(a.error || a.retryable || coalesce(a.after, -1))) f
        where a.n <> all (h.n);
    return query select * from wakes_1(qs, lowest);
end $$;

-- Gives leases back. undo: their grants never arrived, which is forgiven three times.
create function release_1(ids uuid[], tokens int8[], holders text[], undo bool, keyed uuid[])
returns setof verdict_1 language plpgsql as $$
declare
    voided int8[];
    now_ timestamptz;
    base int8;
    locked record;
    h record;
    qs int[];
    lowest int8;
begin
    perform recover_1();
    if keyed is not null then
        locked := lock_items_1(keyed);
    end if;
    now_ := clock_timestamp();
    base := nextval('ord');
    with hit as materialized (
        select a.n, i.id, i.token, case when i.cancel_reason is not null then 7
                when undo and i.refunds >= 3 and i.attempt >= i.max_attempts then 6 else 1 end as outcome,
            case when undo and i.refunds >= 3 then 0 else 1 end as uncounted
        from unnest(ids, tokens, holders) with ordinality a(id, token, holder, n) join item i on i.id = a.id
        where i.token = a.token and i.holder = a.holder and i.lease_until > now_
        for update of i
    )
    select coalesce(array_agg(n), '{}') as n, array_agg(id) as ids, array_agg(token) as tokens,
        array_agg(outcome) as outcomes, array_agg(3) as losts, array_agg(1) as causes, array_agg(uncounted) as uncounted
    into h from hit;
    if undo and cardinality(h.n) > 0 then
        -- The whole request is void, whoever else of it is still leased; claims that repeat it wait for this.
        select coalesce(array_agg(distinct i.claim_key), '{}') into voided from item i
        where i.id = any (h.ids) and i.claim_key is not null;
        perform pg_advisory_xact_lock(1818846563, b) from (
            select distinct (k & 1023)::int as b from unnest(voided) k order by b) s;
        update item i set claim_key = null, request_args = null
        where i.claim_key = any (voided) and i.state = 4 and i.holder = any (holders);
    end if;
    if cardinality(h.n) > 0 then
        qs := end_leases_1(h.ids, h.tokens, h.outcomes, h.losts, case when undo then 'undo' else 'release' end,
            null, null, null, h.causes, h.uncounted, base, now_);
    end if;
    lowest := base;
    if keyed is not null then
        lowest := least(base, promote_1(locked.qs, locked.keys));
    end if;
    return query select u.n::int, 1, null::int, case when u.outcome > 2 then u.outcome end, null::int8, false, null::text
        from unnest(h.n, h.outcomes) u(n, outcome);
    return query select f.* from unnest(ids, tokens, holders) with ordinality a(id, token, holder, n)
        cross join lateral fate_1(a.n::int, a.id, a.token, a.holder, 'release', null) f where a.n <> all (h.n);
    return query select * from wakes_1(qs, lowest);
end $$;

create function release_worker_1(namespace text, uid text) returns setof verdict_1 language plpgsql as $$
declare
    h record;
begin
    select array_agg(i.id order by i.id) as ids, array_agg(i.token order by i.id) as tokens,
        array_agg(i.holder order by i.id) as holders into h from (
            select id, token, holder from item i where i.state = 4 and i.lease_until > clock_timestamp()
            and i.holder ~ '^spiffe://[^/]+/ns/[^/]+/agent/' and split_part(i.holder, '/', 5) = namespace
            and right(i.holder, length(uid) + 1) = '/' || uid
            order by lease_until limit 1000) i;
    if h.ids is not null then
        return query select * from release_1(h.ids, h.tokens, h.holders, false, h.ids);
    end if;
end $$;

create function sees_1(queue text, submitter text, holder text, namespace text, by_submitter text, by_holder text)
returns bool language sql immutable as $$
    select (namespace is null or starts_with(queue, namespace || '/'))
        and (by_submitter is null and by_holder is null
            or coalesce(submitter = by_submitter, false) or coalesce(holder = by_holder, false))
$$;

-- Status: 1 canceled, 2 leased, 3 settled, 4 not found.
create function cancel_1(ids uuid[], reasons text[], namespaces text[], submitters text[], by_holders text[])
returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz;
    base int8;
    locked record;
    h record;
    lowest int8;
    qs int[];
begin
    locked := lock_items_1(ids);
    now_ := clock_timestamp();
    base := nextval('ord');
    with hit as materialized (
        select a.n, i.id, i.state, i.queue_id, a.reason from unnest(ids, reasons, namespaces, submitters, by_holders)
            with ordinality a(id, reason, namespace, submitter, by_holder, n)
        join item i on i.id = a.id join queue q on q.id = i.queue_id
        where sees_1(q.name, i.submitter, case when i.state + 0 in (4, 6) then i.holder end, a.namespace, a.submitter,
            a.by_holder)
        for update of i
    ), marked as (
        update item i set cancel_reason = coalesce(i.cancel_reason, t.reason),
            state = case when t.state = 4 then 4 else 7 end, cause = null, died_at = null, drop_at = null
        from hit t where i.id = t.id returning i.id
    ), counted as (
        insert into counter_delta (queue_id, ready, delayed, blocked, dead, settled)
        select queue_id, -count(*) filter (where state = 1), -count(*) filter (where state = 2),
            -count(*) filter (where state = 3), -count(*) filter (where state = 6), -count(*) filter (where state = 6)
        from hit where state <> 4 group by queue_id
    )
    select coalesce(array_agg(n), '{}') as n, array_agg(id) as ids, array_agg(state) as states, array_agg(queue_id) as qs
    into h from hit;
    if h.ids is not null then
        delete from settled s using unnest(h.ids, h.states) u(id, state) where s.id = u.id and u.state = 6 and s.state = 6;
        perform record_1(array(select u.id from unnest(h.ids, h.states) u(id, state) where u.state <> 4), base, now_);
        qs := h.qs;
    end if;
    if locked.qs is not null then
        lowest := promote_1(locked.qs, locked.keys);
    end if;
    return query select u.n::int, case when u.state = 4 then 2 else 1 end, null::int, case when u.state = 4 then 4 else 7 end,
        null::int8, false, null::text from unnest(h.n, h.states) u(n, state);
    return query
        select a.n::int, case s.state when 7 then 1 when 5 then 3 else 4 end, null::int, s.state::int, null::int8, false,
            null::text
        from unnest(ids, namespaces, submitters, by_holders) with ordinality a(id, namespace, submitter, by_holder, n)
        left join lateral (
            select s.state from settled s join queue q on q.id = s.queue_id
            where s.id = a.id and s.state <> 6 and s.drop_at > now_
            and sees_1(q.name, s.submitter, s.holder, a.namespace, a.submitter, a.by_holder) limit 1) s on true
        where a.n <> all (h.n);
    return query select * from wakes_1(qs, lowest);
end $$;

-- Deletes dead letters; it frees their keys.
create function purge_1(ids uuid[]) returns setof verdict_1 language plpgsql as $$
declare
    locked record;
    lowest int8;
    qs int[];
begin
    locked := lock_items_1(ids);
    with gone as (
        delete from item i using unnest(ids) u(id) where i.id = u.id and i.died_at is not null
        returning i.id, i.queue_id, i.dedupe_key
    ), freed as (
        delete from dedupe d using gone g where d.queue_id = g.queue_id and d.key = g.dedupe_key and d.item_id = g.id
    ), counted as (
        insert into counter_delta (queue_id, dead) select queue_id, -count(*) from gone group by queue_id
    )
    select array_agg(queue_id) into qs from gone;
    if locked.qs is not null then
        lowest := promote_1(locked.qs, locked.keys);
    end if;
    return query select * from wakes_1(qs, lowest);
end $$;

-- Puts dead letters back, in the order of ids, `spacing` ms apart. Row n, status 2: its dedupe key is another's now.
create function redrive_1(ids uuid[], spacing float8) returns setof verdict_1 language plpgsql as $$
declare
    locked record;
    base int8;
    now_ timestamptz;
    h record;
    back uuid[];
    lowest int8;
begin
    locked := lock_items_1(ids);
    now_ := clock_timestamp();
    base := nextval('ord');
    select array_agg(i.id) as ids, array_agg(i.n) as n, array_agg(i.queue_id) as qs, array_agg(i.dedupe_key) as keys into h
    from (select i.id, u.n, i.queue_id, i.dedupe_key from unnest(ids) with ordinality u(id, n) join item i on i.id = u.id
        where i.died_at is not null order by u.n for update of i) i;
    if h.ids is null then
        return;
    end if;
    with taken as (
        insert into dedupe as d (queue_id, key, item_id)
        select u.q, u.key, u.id from unnest(h.qs, h.keys, h.ids) u(q, key, id) where u.key is not null order by u.q, u.key
        on conflict (queue_id, key) do update set item_id = excluded.item_id, until = null
        where d.until <= now_ or d.item_id = excluded.item_id
        returning d.item_id
    )
    select array_agg(u.id order by u.n) into back from unnest(h.n, h.ids, h.keys) u(n, id, key)
    where u.key is null or u.id in (select item_id from taken);
    delete from settled s using unnest(back) u(id) where s.id = u.id and s.state = 6;
    with driven as (
        update item i set state = case when i.ordering_key is not null then 3 when (u.n - 1) * spacing >= 1 then 2 else 1 end,
            ord = base + u.n, attempt = 0, refunds = 0, cause = null, died_at = null, drop_at = null, holder = null,
            ready_at = now_ + (u.n - 1) * spacing * interval '1 ms', expires_at = now_ + i.expires_in_ms * interval '1 ms'
        from unnest(back) with ordinality u(id, n) where i.id = u.id returning i.queue_id, i.state
    )
    insert into counter_delta (queue_id, dead, ready, delayed, blocked, settled)
    select queue_id, -count(*), count(*) filter (where state = 1), count(*) filter (where state = 2),
        count(*) filter (where state = 3), -count(*) from driven group by queue_id;
    lowest := base;
    if locked.qs is not null then
        lowest := least(base, promote_1(locked.qs, locked.keys));
    end if;
    return query select u.n::int, case when u.id = any (back) then 1 else 2 end, null::int, null::int, null::int8, false, u.id::text
        from unnest(h.n, h.ids) u(n, id);
    return query select * from wakes_1(h.qs, lowest);
end $$;
