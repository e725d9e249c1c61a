-- minimum: 3
-- Granting. One row a grant; beside them rows without id. attempt -1: the order's request id was used with other
-- arguments; -2: the queue (of number slot) has more; -3: budgets left items of it ready among those granted.

create type granted_1 as (
    slot int, id text, token int8, attempt int, max_attempts int, left_ms int8, priority int2, ord int8,
    payload bytea, attributes bytea, group_id text, ordering_key text, failures text, size int, queue text
);

-- Whoever pauses a queue takes this lock exclusively, so that no grant commits after it.
create function lock_pause_1(queues int[]) returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(1818846562, q) from (select q from unnest(queues) q order by q) s;
end $$;

-- Orders are numbered from 1 and stand together by queue; `slots` says to which order the n-th item of a
-- queue goes, `firsts` and `lasts` which slots are a queue's. `lows`: ten a queue, by priority: nothing ready
-- is expected up to there. `singles`: orders for the item that holds a dedupe key.
create function claim_1(
    queues int[], firsts int[], lasts int[], lows int8[], slots int[],
    holders text[], leases int8[], budgets int[], keys int8[], args int8[],
    singles int[], single_queues int[], single_keys text[]
) returns setof granted_1 language plpgsql as $$
#variable_conflict use_column
declare
    now_ timestamptz;
    replayed int[] := '{}';
    g granted_1;
    w record;
    want int;
    mine int[];
    picked uuid[];
    sizes int[];
    total int8;
    cut boolean;
    holes boolean;
    fewest int;
    count_ int;
begin
    perform lock_pause_1(queues);
    if keys is not null then
        perform pg_advisory_xact_lock(1818846563, b) from (
            select distinct (k & 1023)::int as b from unnest(keys) k where k is not null order by b) s;
        now_ := clock_timestamp();
        -- One statement, so one look: what it finds live is what is answered.
        for g in
            select u.n, case when i.request_args = args[u.n] then i.id::text end, i.token,
                case when i.request_args = args[u.n] then i.attempt else -1 end, i.max_attempts,
                ms_1(i.lease_until - now_), i.priority, 0::int8, i.payload, i.attributes, i.group_id, i.ordering_key,
                i.failures::text, i.size, q.name
            from unnest(keys, holders) with ordinality u(key, holder, n) join item i on i.claim_key = u.key
            join queue q on q.id = i.queue_id
            where i.claim_key is not null and i.state = 4 and i.holder = u.holder and i.lease_until > now_
            order by i.token
        loop
            replayed := replayed || g.slot;
            return next g;
        end loop;
    end if;
    for qn in 1 .. cardinality(queues) loop
        select q.* into w from queue q where q.id = queues[qn] and not q.paused;
        continue when not found;
        picked := '{}';
        mine := slots[firsts[qn] : lasts[qn]];
        if cardinality(replayed) > 0 then
            mine := array(select s.slot from unnest(mine) with ordinality s(slot, n)
                where s.slot <> all (replayed) order by s.n);
        end if;
        want := cardinality(mine);
        cut := false;
        holes := false;
        now_ := clock_timestamp();
        if want > 0 then
            select coalesce(array_agg(p.id), '{}'), array_agg(p.size), sum(p.size) into picked, sizes, total from (
                select r.id, r.size from generate_series(9, 0, -1) b(priority) cross join lateral (
                    -- What an answer carries beside the payload counts too, where it is more than a little.
                    select i.id, i.size + greatest(0, octet_length(i.attributes) - 100)
                        + coalesce(octet_length(i.failures::text), 0) as size from item i
                    where i.queue_id = w.id and i.priority = b.priority and i.state = 1
                    and i.ord > lows[(qn - 1) * 10 + b.priority + 1]
                    and (i.expires_at is null or i.expires_at > now_)
                    order by i.ord limit want for update skip locked) r
                where w.bands >> b.priority & 1 = 1
                limit want) p;
            cut := cardinality(picked) = want;
            mine := mine[1 : cardinality(picked)];
            select min(budgets[s]) into fewest from unnest(mine) s;
            if total > fewest then
                -- An order takes items until its budget is spent; what it leaves stays ready.
                select array_agg(f.id order by f.n), array_agg(f.slot order by f.n) into picked, mine from (
                    select u.*, sum(u.size) over (partition by u.slot order by u.n) as running,
                        row_number() over (partition by u.slot order by u.n) as nth
                    from unnest(picked, sizes, mine) with ordinality u(id, size, slot, n)) f
                where f.nth = 1 or f.running <= budgets[f.slot];
                holes := cardinality(picked) < cardinality(sizes);
                cut := cut or holes;
            end if;
        end if;
        if singles is not null then
            for s in 1 .. cardinality(singles) loop
                continue when single_queues[s] <> w.id or singles[s] = any (replayed);
                select picked || i.id, mine || singles[s] into picked, mine
                from dedupe d join item i on i.id = d.item_id
                where d.queue_id = w.id and d.key = single_keys[s]
                and i.state + 0 = 1 and (i.expires_at is null or i.expires_at > now_)
                for update of i skip locked;
                picked := coalesce(picked, '{}');
            end loop;
        end if;
        continue when cardinality(picked) = 0;
        now_ := clock_timestamp();
        return query
        update item i set state = 4, token = nextval('token') + (i.ordering_key is not null)::int,
            attempt = i.attempt + 1, holder = holders[u.slot], granted_at = now_,
            lease_until = now_ + least(coalesce(leases[u.slot], w.default_lease_ms), w.max_hold_ms) * interval '1 ms',
            claim_key = keys[u.slot], request_args = args[u.slot]
        from unnest(picked, mine) u(id, slot) where i.id = u.id
        returning u.slot, i.id::text, i.token, i.attempt, i.max_attempts, ms_1(i.lease_until - now_), i.priority, i.ord,
            i.payload, i.attributes, i.group_id, i.ordering_key, i.failures::text, i.size, w.name;
        get diagnostics count_ = row_count;
        insert into counter_delta (queue_id, ready, leased, granted) values (w.id, -count_, count_, count_);
        if holes then
            return query select qn, null::text, null::int8, -3, null::int, null::int8, null::int2, null::int8,
                null::bytea, null::bytea, null::text, null::text, null::text, null::int, null::text;
        end if;
        if cut and exists (
            select from generate_series(0, 9) b(priority) cross join lateral (
                select from item i where i.queue_id = w.id and i.priority = b.priority and i.state = 1
                and i.ord > lows[(qn - 1) * 10 + b.priority + 1] limit 1) r
            where w.bands >> b.priority & 1 = 1)
        then
            return query select qn, null::text, null::int8, -2, null::int, null::int8, null::int2, null::int8,
                null::bytea, null::bytea, null::text, null::text, null::text, null::int, null::text;
        end if;
    end loop;
end $$;
