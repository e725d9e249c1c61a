-- minimum: 5
-- Gives leases back. undo: an answer with their grants never arrived, which is forgiven three times; as long as
-- another answer may have, they stay.

create function release_2(ids uuid[], tokens int8[], holders text[], undo bool, keyed uuid[])
returns setof verdict_1 language plpgsql as $$
declare
    spared int8[] := '{}';
    voided int8[];
    now_ timestamptz;
    base int8;
    locked record;
    h record;
    qs int[];
    lowest int8;
begin
    perform recover_1();
    if undo then
        -- Before rows are locked, as by claims: those that repeat a request wait for this, or this for them.
        perform pg_advisory_xact_lock(1818846563, b) from (
            select distinct (i.claim_key & 1023)::int as b from unnest(ids) u(id) join item i on i.id = any (array[u.id])
            where i.claim_key is not null order by b) s;
    end if;
    if keyed is not null then
        locked := lock_items_1(keyed);
    end if;
    now_ := clock_timestamp();
    base := nextval('ord');
    if undo then
        with told as (
            update item i set answers = i.answers - 1
            from unnest(ids, tokens, holders) with ordinality a(id, token, holder, n)
            where i.id = any (array[a.id]) and i.token = a.token and i.holder = a.holder and i.lease_until > now_
            and i.answers > 1 returning a.n
        )
        select coalesce(array_agg(n), '{}') into spared from told;
    end if;
    with hit as materialized (
        select a.n, i.id, i.token, case when i.cancel_reason is not null then 7
                when undo and i.refunds >= 3 and i.attempt >= i.max_attempts then 6 else 1 end as outcome,
            case when undo and i.refunds >= 3 then 0 else 1 end as uncounted
        from unnest(ids, tokens, holders) with ordinality a(id, token, holder, n) join item i on i.id = any (array[a.id])
        where i.token = a.token and i.holder = a.holder and i.lease_until > now_ and a.n <> all (spared)
        for update of i
    )
    select coalesce(array_agg(n), '{}') as n, array_agg(id) as ids, array_agg(token) as tokens,
        array_agg(outcome) as outcomes, array_agg(3) as losts, array_agg(1) as causes, array_agg(uncounted) as uncounted
    into h from hit;
    if undo and cardinality(h.n) > 0 then
        -- The whole request is void, whoever else of it is still leased.
        select coalesce(array_agg(distinct i.claim_key), '{}') into voided from item i
        where i.id = any (h.ids) and i.claim_key is not null;
        update item i set claim_key = null, request_args = null
        where i.claim_key = any (voided) and i.state + 0 = 4 and i.holder = any (holders);
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
        cross join lateral fate_1(a.n::int, a.id, a.token, a.holder, 'release', null) f
        where a.n <> all (h.n) and a.n <> all (spared);
    return query select * from wakes_1(qs, lowest);
end $$;
