-- minimum: 5
-- Granting, second version: a look that comes back short is checked against the counters, and an order for the
-- item of a dedupe key that finds none takes nothing away from others in its flush. One more row without id:
-- attempt -4: something was ready below the marks of queue number slot, so it was looked at from its beginning.
-- Answers are counted, a grant's and those of repeats: it goes back when none of them arrived.

alter table item add column answers int not null default 1;

create function claim_2(
    queues int[], firsts int[], lasts int[], lows int8[], slots int[],
    holders text[], leases int8[], budgets int[], keys int8[], args int8[],
    singles int[], single_queues int[], single_keys text[]
) returns setof granted_1 language plpgsql as $$
#variable_conflict use_column
declare
    nobody granted_1;
    now_ timestamptz;
    replayed int[] := '{}';
    g granted_1;
    w record;
    want int;
    mine int[];
    marks int8[];
    below int8;
    picked uuid[];
    single uuid;
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
            with again as (
                update item i set answers = i.answers + (i.request_args = args[k.n])::int
                from (
                    select r.id, u.key, u.holder, u.n from unnest(keys, holders) with ordinality u(key, holder, n)
                    cross join lateral (select id from item where claim_key = u.key and state + 0 = 4 offset 0) r) k
                where i.id = any (array[k.id]) and i.claim_key + 0 = k.key and i.state + 0 = 4 and i.holder = k.holder
                and i.lease_until > now_
                returning k.n, i.*
            )
            select i.n, case when i.request_args = args[i.n] then i.id::text end, i.token,
                case when i.request_args = args[i.n] then i.attempt else -1 end, i.max_attempts,
                ms_1(i.lease_until - now_), i.priority, 0::int8, i.payload, i.attributes, i.group_id, i.ordering_key,
                i.failures::text, i.size, q.name
            from again i join queue q on q.id = i.queue_id order by i.token
        loop
            replayed := replayed || g.slot;
            return next g;
        end loop;
    end if;
    for qn in 1 .. cardinality(queues) loop
        select q.* into w from queue q where q.id = queues[qn] and not q.paused;
        continue when not found;
        nobody.slot := qn;
        picked := '{}';
        mine := slots[firsts[qn] : lasts[qn]];
        if cardinality(replayed) > 0 then
            mine := array(select s.slot from unnest(mine) with ordinality s(slot, n)
                where s.slot <> all (replayed) order by s.n);
        end if;
        want := cardinality(mine);
        marks := lows[qn * 10 - 9 : qn * 10];
        cut := false;
        holes := false;
        now_ := clock_timestamp();
        while want > 0 loop
            -- What the counters say is ready and no place above the marks accounts for is below them: those whose
            -- places were given out earlier than they were committed, and heirs of ordering keys. In one
            -- statement with the look itself, since only one snapshot can be reckoned up.
            select coalesce(array_agg(p.id), '{}'), array_agg(p.size), sum(p.size),
                case when count(*) < want and 0 < any (marks) then (
                    select coalesce(sum(c.ready), 0) from (
                        select ready from counter where queue_id = w.id
                        union all select ready from counter_delta where queue_id = w.id) c
                ) - (
                    select count(*) from generate_series(9, 0, -1) b(priority) cross join lateral (
                        select from item i where i.queue_id = w.id and i.priority = b.priority and i.state = 1
                        and i.ord > marks[b.priority + 1]) r
                    where w.bands >> b.priority & 1 = 1
                ) end
            into picked, sizes, total, below from (
                select r.id, r.size from generate_series(9, 0, -1) b(priority) cross join lateral (
                    -- What an answer carries beside the payload counts too, where it is more than a little.
                    select i.id, i.size + greatest(0, octet_length(i.attributes) - 100)
                        + coalesce(octet_length(i.failures::text), 0) as size from item i
                    where i.queue_id = w.id and i.priority = b.priority and i.state = 1
                    and i.ord > marks[b.priority + 1]
                    and (i.expires_at is null or i.expires_at > now_)
                    order by i.ord limit want for update skip locked) r
                where w.bands >> b.priority & 1 = 1
                limit want) p;
            exit when below is null or below <= 0;
            marks := array_fill(0::int8, array[10]);
            nobody.attempt := -4;
            return next nobody;
        end loop;
        if want > 0 then
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
                select i.id into single from dedupe d join item i on i.id = d.item_id
                where d.queue_id = w.id and d.key = single_keys[s]
                and i.state + 0 = 1 and (i.expires_at is null or i.expires_at > now_) and i.id <> all (picked)
                for update of i skip locked;
                if found then
                    picked := picked || single;
                    mine := mine || singles[s];
                end if;
            end loop;
        end if;
        continue when cardinality(picked) = 0;
        now_ := clock_timestamp();
        return query
        update item i set state = 4, token = nextval('token') + (i.ordering_key is not null)::int,
            attempt = i.attempt + 1, holder = holders[u.slot], granted_at = now_,
            lease_until = now_ + least(coalesce(leases[u.slot], w.default_lease_ms), w.max_hold_ms) * interval '1 ms',
            claim_key = keys[u.slot], request_args = args[u.slot], answers = 1
        from unnest(picked, mine) u(id, slot) where i.id = any (array[u.id])
        returning u.slot, i.id::text, i.token, i.attempt, i.max_attempts, ms_1(i.lease_until - now_), i.priority, i.ord,
            i.payload, i.attributes, i.group_id, i.ordering_key, i.failures::text, i.size, w.name;
        get diagnostics count_ = row_count;
        insert into counter_delta (queue_id, ready, leased, granted) values (w.id, -count_, count_, count_);
        if holes then
            nobody.attempt := -3;
            return next nobody;
        end if;
        if cut and exists (
            select from generate_series(0, 9) b(priority) cross join lateral (
                select from item i where i.queue_id = w.id and i.priority = b.priority and i.state = 1
                and i.ord > marks[b.priority + 1] limit 1) r
            where w.bands >> b.priority & 1 = 1)
        then
            nobody.attempt := -2;
            return next nobody;
        end if;
    end loop;
end $$;
