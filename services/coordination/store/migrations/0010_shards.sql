-- minimum: 5
-- Shards of a queue. An item that stands in one has a lane, its sharding's epoch << 12 | its index, and a priority
-- that is 16 more: those who look for items without a lane do not meet it, programs that know no shards included.
-- Where an item stands is settled when it is submitted, and again by the claim that finds it ready in another place
-- than the queue now wants it. So a change of the sharding changes no item, and need not wait for submits.

alter table queue
    add column shard_count int not null generated always as (coalesce((policy #>> '{shards,count}')::int, 0)) stored,
    add column shard_epoch int8 not null generated always as (coalesce((policy #>> '{shards,epoch}')::int8, 0)) stored;

alter table item
    add column lane int8,
    add column shard_hash int8; -- of the key that decides; null until it was asked for
create index item_lane on item (queue_id, lane, priority desc, ord) where state = 1 and lane is not null;

-- A program that knows no shards writes a policy without them.
create function keep_shards_1() returns trigger language plpgsql as $$
begin
    new.policy := new.policy || jsonb_build_object('shards', old.policy -> 'shards');
    return new;
end $$;
create trigger keep_shards before update of policy on queue for each row
    when (old.policy ? 'shards' and not new.policy ? 'shards') execute function keep_shards_1();

-- A change of another function's text, which must be there.
create function edited_1(text_ text, old text, new text) returns text language plpgsql as $$
begin
    if position(old in text_) = 0 then
        raise 'migration 10 looks in vain for "%"', old;
    end if;
    return replace(text_, old, new);
end $$;

-- Nor does it grant from a queue that has some.
do $$
declare
    f record;
begin
    for f in select pg_get_functiondef(oid) as text from pg_proc
        where pronamespace = 'coordination'::regnamespace and proname in ('claim_1', 'claim_2')
    loop
        execute edited_1(f.text, 'and not q.paused', 'and not q.paused and q.shard_count = 0');
    end loop;
end $$;

-- Adding items, second version: as before, beside it the lane of each, null for none, and its hash.
do $$
declare
    text_ text := pg_get_functiondef('submit_1'::regproc);
begin
    text_ := edited_1(text_, '.submit_1(', '.submit_2(');
    text_ := edited_1(text_, 'payloads bytea[])', 'payloads bytea[], lanes bigint[], hashes bigint[])');
    text_ := edited_1(text_, 'attributes, payload)', 'attributes, payload, lane, shard_hash)');
    text_ := edited_1(text_, 'else 1 end, u.priority, u.most', 'else 1 end,
            case when u.lane is null then u.priority else u.priority + 16 end, u.most');
    text_ := edited_1(text_, 'u.attributes, u.payload
', 'u.attributes, u.payload,
            u.lane, u.hash
');
    text_ := edited_1(text_, 'attributes_, payloads) with', 'attributes_, payloads, lanes, hashes) with');
    text_ := edited_1(text_, 'attributes, payload, n)', 'attributes, payload, lane, hash, n)');
    execute text_;
end $$;

drop function edited_1;

-- FNV-1a with 64 bits: in halves, since int8 does not wrap. The prime is 2^40 + 435.
create function fnv_1(key bytea) returns int8 language plpgsql immutable as $$
declare
    high int8 := 3421674724;
    low int8 := 2216829733;
    product int8;
begin
    for n in 0 .. length(key) - 1 loop
        low := low # get_byte(key, n);
        product := low * 435;
        high := (high * 435 + (product >> 32) + (low << 8)) & 4294967295;
        low := product & 4294967295;
    end loop;
    return high << 32 | low;
end $$;

-- Of a hash as if it had no sign.
create function shard_1(hash int8, shards int) returns int8 language sql immutable as $$
    select ((hash >> 1 & 9223372036854775807) % shards * 2 + (hash & 1)) % shards
$$;

-- Puts at most so many ready items that do not stand where the queue wants them there; how many.
create function settle_lanes_1(wanted int, shards int, epoch_ int8, most int) returns int language plpgsql as $$
declare
    moved int;
begin
    with misplaced as materialized (
        select l.id from (
            select i.id from item i where i.queue_id = wanted and i.lane < epoch_ << 12 and i.state = 1
            order by i.lane, i.priority desc, i.ord limit most for update skip locked) l
        union all
        select r.id from generate_series(0, 9) b(priority) cross join lateral (
            select i.id from item i where i.queue_id = wanted and i.priority = b.priority and i.state = 1
            order by i.ord limit most for update skip locked) r
        where shards > 0
        limit most
    ), hashed as materialized (
        select i.id, case when shards > 0 then coalesce(i.shard_hash, fnv_1(convert_to(
            coalesce(convert_from(i.attributes, 'UTF8')::jsonb ->> 's', i.dedupe_key, i.id::text), 'UTF8'))) end as hash
        from misplaced m join item i on i.id = any (array[m.id])
    )
    update item i set lane = epoch_ << 12 | shard_1(h.hash, shards), shard_hash = coalesce(h.hash, i.shard_hash),
        priority = (i.priority & 15) + case when shards > 0 then 16 else 0 end
    from hashed h where i.id = any (array[h.id]);
    get diagnostics moved = row_count;
    return moved;
end $$;

-- Granting, third version: of a queue as often as there are lanes asked for. `lanes` and `counts` say of each what
-- lane (null: none) and how many shards the orders take the queue to have; both null: none anywhere. More rows
-- without id: attempt -5: the queue has others, max_attempts of them with the epoch in token; -6: so many items
-- (max_attempts) were put where the queue wants them, and -7: perhaps not all of them, so nothing is granted yet.
create function claim_3(
    queues int[], firsts int[], lasts int[], lows int8[], slots int[],
    holders text[], leases int8[], budgets int[], keys int8[], args int8[],
    singles int[], single_queues int[], single_keys text[], lanes int8[], counts int[]
) returns setof granted_1 language plpgsql as $$
#variable_conflict use_column
declare
    nobody granted_1;
    now_ timestamptz;
    replayed int[] := '{}';
    g granted_1;
    w record;
    lane_ int8;
    moved int;
    looked int[] := '{}';
    moving int[] := '{}';
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
        select q.* into w from queue q where q.id = queues[qn];
        continue when not found;
        nobody := null;
        nobody.slot := qn;
        lane_ := lanes[qn];
        if w.shard_count <> coalesce(counts[qn], 0) or lane_ >> 12 <> w.shard_epoch or lane_ is not null and w.shard_count = 0
        then
            nobody.attempt := -5;
            nobody.max_attempts := w.shard_count;
            nobody.token := w.shard_epoch;
            return next nobody;
            continue;
        end if;
        continue when w.paused;
        marks := lows[qn * 10 - 9 : qn * 10];
        if w.shard_epoch > 0 then
            if w.id <> all (looked) then
                looked := looked || w.id;
                moved := settle_lanes_1(w.id, w.shard_count, w.shard_epoch, 500);
                if moved > 0 then
                    nobody.attempt := -6;
                    nobody.max_attempts := moved;
                    return next nobody;
                    if moved = 500 then
                        moving := moving || w.id;
                    end if;
                    marks := array_fill(0::int8, array[10]);
                end if;
            end if;
            if w.id = any (moving) then
                nobody.attempt := -7;
                return next nobody;
                continue;
            end if;
        end if;
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
        if want > 0 and lane_ is not null then
            select coalesce(array_agg(p.id), '{}'), array_agg(p.size), sum(p.size) into picked, sizes, total from (
                select i.id, i.size + greatest(0, octet_length(i.attributes) - 100)
                    + coalesce(octet_length(i.failures::text), 0) as size from item i
                where i.queue_id = w.id and i.lane = lane_ and i.state = 1 and (i.expires_at is null or i.expires_at > now_)
                order by i.priority desc, i.ord limit want for update skip locked) p;
        end if;
        while want > 0 and lane_ is null loop
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
        if singles is not null and lane_ is null then
            for s in 1 .. cardinality(singles) loop
                continue when single_queues[s] <> w.id or singles[s] = any (replayed);
                select i.id into single from dedupe d join item i on i.id = any (array[d.item_id])
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
        if cut and lane_ is null then
            cut := exists (
                select from generate_series(0, 9) b(priority) cross join lateral (
                    select from item i where i.queue_id = w.id and i.priority = b.priority and i.state = 1
                    and i.ord > marks[b.priority + 1] limit 1) r
                where w.bands >> b.priority & 1 = 1);
        elsif cut then
            cut := exists (select from item i where i.queue_id = w.id and i.lane = lane_ and i.state = 1);
        end if;
        if cut then
            nobody.attempt := -2;
            return next nobody;
        end if;
    end loop;
end $$;
