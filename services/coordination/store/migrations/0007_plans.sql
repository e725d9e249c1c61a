-- minimum: 5
-- Entries of a flush find their rows by `= any (array[…])`, which only an index can answer, one entry after the
-- other. By a plain `=` PostgreSQL may also walk the whole index and compare each row with each entry: it plans
-- that after statistics of an empty table, and keeps to it when the table fills. Nothing else of the functions
-- changes, so they keep their names, and programs of all versions have the better plans.

do $$
declare
    f record;
begin
    for f in
        select pg_get_functiondef(p.oid) as text from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace = 'coordination'::regnamespace and l.lanname = 'plpgsql'
    loop
        f.text := regexp_replace(f.text, '\m([is])\.id = (\w+\.(?:id|item_id))\M', '\1.id = any (array[\2])', 'g');
        f.text := regexp_replace(f.text, '\md\.queue_id = (\w+\.\w+) and d\.key = (\w+\.\w+)\M',
            'd.queue_id = any (array[\1]) and d.key = any (array[\2])', 'g');
        f.text := regexp_replace(f.text, '\md\.item_id = (\w+\.\w+)\M', 'd.item_id = any (array[\1])', 'g');
        f.text := replace(f.text, 'i.claim_key = any (voided) and i.state = 4', 'i.claim_key = any (voided) and i.state + 0 = 4');
        f.text := replace(f.text, 'for values from (%L) to (%L)''',
            'for values from (%L) to (%L) with (autovacuum_analyze_threshold = 2147483647)''');
        execute f.text;
    end loop;
end $$;

-- A partial index may be walked whole wherever its condition is given: these have conditions that no other has.
drop index item_halt, item_request, item_blocked;
create index item_halt on item (queue_id, ordering_key) where ordering_key is not null and died_at is not null;
create index item_request on item (claim_key) where claim_key is not null;
create index item_blocked on item (queue_id, ordering_key, seq) where state + 0 = 3;

create or replace function promote_1(queues int[], keys text[]) returns int8
language plpgsql as $$
declare
    now_ timestamptz := clock_timestamp();
    lowest int8;
begin
    with heirs as materialized (
        select n.id from (select distinct k.q, k.k from unnest(queues, keys) k(q, k) where k.k is not null) u
        join queue on queue.id = u.q
        cross join lateral (
            select i.id from item i where i.queue_id = u.q and i.ordering_key = u.k and i.state + 0 = 3
            order by i.seq limit 1) n
        -- Not `exists`, which may become a join.
        where (
            select true from item h where h.queue_id = u.q and h.ordering_key = u.k
            and h.ordering_key is not null and h.state in (1, 2, 4) limit 1) is null
        and (queue.on_dead_head <> 1 or (
            select true from item d where d.queue_id = u.q and d.ordering_key = u.k
            and d.ordering_key is not null and d.died_at is not null limit 1) is null)
    ), promoted as (
        update item i set state = case when i.ready_at > now_ then 2 else 1 end, ready_at = greatest(i.ready_at, now_)
        from heirs h where i.id = any (array[h.id]) returning i.queue_id, i.state, i.ord
    ), counted as (
        insert into counter_delta (queue_id, blocked, delayed, ready)
        select queue_id, -count(*), count(*) filter (where state = 2), count(*) filter (where state = 1)
        from promoted group by queue_id
    )
    select min(ord) - 1 into lowest from promoted where state = 1;
    return lowest;
end $$;

-- No plan here is made from statistics, so none are gathered: that costs CPU under load, and every time all plans
-- are made again.
do $$
declare
    part regclass;
begin
    foreach part in array array['item', 'dedupe', 'counter_delta']::regclass[]
        || array(select inhrelid::regclass from pg_inherits where inhparent = 'settled'::regclass)
    loop
        execute format('alter table %s set (autovacuum_analyze_threshold = 2147483647)', part);
    end loop;
end $$;
