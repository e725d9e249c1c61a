-- minimum: 5
-- Gives back what a pod held that died: uncounted three times an item, those included whose grants never arrived.

create function release_worker_2(namespace text, uid text) returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz;
    base int8;
    locked record;
    w record;
    h record;
    qs int[];
    lowest int8;
begin
    perform recover_1();
    select array_agg(i.id order by i.id) as ids, array_agg(i.token order by i.id) as tokens into w from (
        select id, token from item i where i.state = 4 and i.lease_until > clock_timestamp()
        and i.holder ~ '^spiffe://[^/]+/ns/[^/]+/agent/' and split_part(i.holder, '/', 5) = namespace
        and right(i.holder, length(uid) + 1) = '/' || uid
        order by lease_until limit 1000) i;
    if w.ids is null then
        return;
    end if;
    locked := lock_items_1(w.ids);
    now_ := clock_timestamp();
    base := nextval('ord');
    with hit as materialized (
        select i.id, i.token, i.refunds >= 3 as counted, i.cancel_reason is not null as canceled,
            i.attempt >= i.max_attempts as spent
        from unnest(w.ids, w.tokens) a(id, token) join item i on i.id = any (array[a.id])
        where i.token = a.token and i.lease_until > now_
        for update of i
    )
    select array_agg(id) as ids, array_agg(token) as tokens,
        array_agg(case when canceled then 7 when counted and spent then 6 else 1 end) as outcomes,
        array_agg(3) as losts, array_agg(case when counted then 'its worker ended' end) as errors,
        array_agg(1) as causes, array_agg(case when counted then 0 else 1 end) as uncounted
    into h from hit;
    if h.ids is not null then
        qs := end_leases_1(h.ids, h.tokens, h.outcomes, h.losts, 'undo', null, null, h.errors, h.causes, h.uncounted,
            base, now_);
    end if;
    lowest := least(base, promote_1(locked.qs, locked.keys));
    return query select n::int, 1, null::int, case when u.outcome > 2 then u.outcome end, null::int8, false, null::text
        from unnest(h.outcomes) with ordinality u(outcome, n);
    return query select * from wakes_1(qs, lowest);
end $$;
