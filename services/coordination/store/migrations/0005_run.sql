-- minimum: 5
-- What happens by itself, and what happens when a connection is made.

-- Ends leases that ran out. Ids first, since ordering keys are locked before rows.
create function expire_leases_1(lo timestamptz, most int) returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz := clock_timestamp();
    calm timestamptz := (select outage_end from beat);
    base int8;
    locked record;
    h record;
    qs int[];
    lowest int8;
begin
    select array_agg(id order by id) as ids, array_agg(id order by id) filter (where ordering_key is not null) as keyed
    into h from (
        select i.id, i.ordering_key from item i where i.state = 4 and i.lease_until > lo and i.lease_until <= now_
        order by i.lease_until limit most) i;
    if h.ids is null then
        return;
    end if;
    locked := lock_items_1(h.keyed);
    now_ := clock_timestamp();
    base := nextval('ord');
    with hit as materialized (
        select i.id, i.token, i.lease_until, (i.lease_until >= i.granted_at + q.max_hold_ms * interval '1 ms')::int * 4 + 2 as lost,
            coalesce(i.granted_at < calm, false) as forgiven, i.cancel_reason, i.expires_at <= now_ as lapsed, q.on_expiry,
            i.attempt, i.max_attempts
        from unnest(h.ids) u(id) join item i on i.id = u.id join queue q on q.id = i.queue_id
        where i.lease_until <= now_ for update of i
    ), judged as (
        select *, case when cancel_reason is not null then 7 when lapsed then 6 when forgiven then 1
            when on_expiry = 2 or attempt >= max_attempts then 6 else 1 end as outcome,
            case when lapsed then 3 when on_expiry = 2 then 4 else 1 end as cause
        from hit
    )
    select array_agg(id order by lease_until) as ids, array_agg(token order by lease_until) as tokens,
        array_agg(outcome order by lease_until) as outcomes, array_agg(lost order by lease_until) as losts,
        array_agg(cause order by lease_until) as causes, array_agg(forgiven::int order by lease_until) as uncounted,
        array_agg('lease expired'::text) as errors
    into h from judged;
    if h.ids is null then
        return;
    end if;
    qs := end_leases_1(h.ids, h.tokens, h.outcomes, h.losts, 'expire', null, null, h.errors, h.causes, h.uncounted, base, now_);
    lowest := least(base, promote_1(locked.qs, locked.keys));
    return query select * from wakes_1(qs, lowest);
end $$;

create function ready_delayed_1(lo timestamptz, most int) returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz := clock_timestamp();
    base int8;
    due uuid[];
    qs int[];
begin
    select array_agg(id order by ready_at) into due from (
        select i.id, i.ready_at from item i where i.state = 2 and i.ready_at > lo and i.ready_at <= now_
        order by i.ready_at limit most for update skip locked) i;
    if due is null then
        return;
    end if;
    base := nextval('ord');
    with ready as (
        update item i set state = 1, ord = base + u.n from unnest(due) with ordinality u(id, n) where i.id = u.id
        returning i.queue_id
    ), counted as (
        insert into counter_delta (queue_id, delayed, ready) select queue_id, -count(*), count(*) from ready group by queue_id
    )
    select array_agg(queue_id) into qs from ready;
    return query select * from wakes_1(qs, base);
end $$;

-- Buries unheld items whose lifetime is over; a held one is judged when its lease ends.
create function expire_items_1(lo timestamptz, most int) returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz := clock_timestamp();
    base int8;
    due uuid[];
    locked record;
    qs int[];
    lowest int8;
begin
    select array_agg(id order by id) into due from (
        select i.id from item i where i.expires_at > lo and i.expires_at <= now_ and i.expires_at is not null
        and i.lease_until is null order by i.expires_at limit most) i;
    if due is null then
        return;
    end if;
    locked := lock_items_1(due);
    now_ := clock_timestamp();
    base := nextval('ord');
    with hit as materialized (
        select i.id, i.queue_id, i.state, u.n from unnest(due) with ordinality u(id, n) join item i on i.id = u.id
        where i.expires_at <= now_ and i.lease_until is null for update of i
    ), buried as (
        update item i set state = 6, ord = base + h.n, cause = 3, died_at = now_, expires_at = null,
            drop_at = now_ + q.dead_retention_ms * interval '1 ms'
        from hit h join queue q on q.id = h.queue_id where i.id = h.id returning i.id
    ), counted as (
        insert into counter_delta (queue_id, ready, delayed, blocked, dead)
        select queue_id, -count(*) filter (where state = 1), -count(*) filter (where state = 2),
            -count(*) filter (where state = 3), count(*) from hit group by queue_id
    )
    select array_agg(id), array_agg(queue_id) into due, qs from hit;
    if due is not null then
        perform record_1(due, base, now_);
        lowest := promote_1(locked.qs, locked.keys);
        return query select * from wakes_1(qs, lowest);
    end if;
end $$;

create function drop_dead_1(most int) returns setof verdict_1 language sql as $$
    select * from purge_1(array(
        select i.id from item i where i.state = 6 and i.drop_at <= clock_timestamp() order by i.drop_at limit most))
$$;

-- One look at everything whose time has come. `lo` leaves out what an earlier look has dealt with.
-- Only one replica sweeps at a time; the others have nothing to add.
create function sweep_1(lo timestamptz, most int) returns setof verdict_1 language plpgsql as $$
begin
    if not pg_try_advisory_xact_lock(1818846564, 1) then
        return;
    end if;
    perform recover_1();
    insert into beat (last) values (clock_timestamp()) on conflict (one) do update set last = excluded.last
        where beat.last < excluded.last - interval '200 ms';
    return query select * from expire_leases_1(lo, most);
    return query select * from ready_delayed_1(lo, most);
    return query select * from expire_items_1(lo, most);
    return query select * from drop_dead_1(most);
end $$;

-- Folds what the flushes counted; forgets dedupe keys and stray results whose time is over.
create function tidy_1() returns void language plpgsql as $$
begin
    if not pg_try_advisory_xact_lock(1818846564, 2) then
        return;
    end if;
    with taken as (
        delete from counter_delta where ctid = any (array(select ctid from counter_delta limit 10000)) returning *
    )
    insert into counter as c
    select queue_id, sum(ready), sum(delayed), sum(blocked), sum(leased), sum(dead), sum(submitted), sum(granted), sum(settled)
    from taken group by queue_id order by queue_id
    on conflict (queue_id) do update set ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed,
        blocked = c.blocked + excluded.blocked, leased = c.leased + excluded.leased, dead = c.dead + excluded.dead,
        submitted = c.submitted + excluded.submitted, granted = c.granted + excluded.granted, settled = c.settled + excluded.settled;
    delete from dedupe where (queue_id, key) in (
        select queue_id, key from dedupe where until is not null and until <= clock_timestamp() limit 1000 for update skip locked);
    delete from settled_rest where ctid = any (array(
        select ctid from settled_rest where drop_at <= clock_timestamp() limit 1000));
end $$;

-- Makes the partitions of the days that results will be dropped on, and drops those of days gone by. A day
-- that already has rows in the rest stays there.
create function partition_1() returns void language plpgsql as $$
declare
    today date := (clock_timestamp() at time zone 'UTC')::date;
    day date;
    part record;
begin
    if not pg_try_advisory_xact_lock(1818846564, 3) then
        return;
    end if;
    for day in
        select distinct (clock_timestamp() at time zone 'UTC' + r.ms * interval '1 ms')::date + d from (
            select distinct settled_retention_ms from queue union select 86400000) r(ms), generate_series(0, 1) d
    loop
        continue when to_regclass(format('settled_%s', to_char(day, 'YYYYMMDD'))) is not null
            or exists (select from settled_rest where drop_at >= day::timestamp at time zone 'UTC'
                and drop_at < (day + 1)::timestamp at time zone 'UTC');
        execute format('create table settled_%s partition of settled for values from (%L) to (%L)',
            to_char(day, 'YYYYMMDD'), day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC');
    end loop;
    for part in select inhrelid::regclass::text as name from pg_inherits where inhparent = 'settled'::regclass
        and inhrelid::regclass::text ~ 'settled_\d{8}$'
    loop
        if to_date(right(part.name, 8), 'YYYYMMDD') < today then
            execute format('drop table %s', part.name);
        end if;
    end loop;
end $$;
-- The one clause that a function cannot plan: partitions exist before the first result.
select partition_1();

-- The queue of this name, made with this policy if it is new; null when its namespace has its most.
create function make_queue_1(wanted text, rules jsonb, most int, out id int, out made bool) language plpgsql as $$
declare
    space text := split_part(wanted, '/', 1);
begin
    perform pg_advisory_xact_lock(1818846565, hashtext(space));
    select q.id, false into id, made from queue q where q.name = wanted;
    if not found and (select count(*) from queue q where q.name >= space || '/' and q.name < space || '0') < most then
        insert into queue (name, policy) values (wanted, rules) returning queue.id, true into id, made;
    end if;
end $$;

-- Lets keys go on whose dead head no longer halts them.
create function unhalt_1(queue int) returns int8 language plpgsql as $$
declare
    keys text[] := array(select distinct i.ordering_key from item i
        where i.queue_id = queue and i.state = 6 and i.ordering_key is not null);
begin
    perform lock_keys_1(array_fill(queue, array[cardinality(keys)]), keys);
    return promote_1(array_fill(queue, array[cardinality(keys)]), keys);
end $$;

-- After this no grant commits until the pause ends.
create function pause_1(wanted int, pause bool) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1818846562, wanted);
    update queue set paused = pause where id = wanted;
end $$;

-- Called on every connection before its first grant: another timeline or another cluster begins a new epoch.
create function epoch_1() returns int8 language plpgsql as $$
declare
    cluster int8 := (select system_identifier from pg_control_system());
    line int8 := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8;
    known record;
begin
    insert into meta (epoch, system_identifier, timeline) values (1, cluster, line) on conflict do nothing;
    if found then
        perform setval('token', greatest((select last_value from token), 1::int8 << 42));
    end if;
    select * into known from meta;
    if (known.system_identifier, known.timeline) is distinct from (cluster, line) then
        select * into known from meta for update;
        if (known.system_identifier, known.timeline) is distinct from (cluster, line) then
            update meta set epoch = epoch + 1, system_identifier = cluster, timeline = line;
            -- Even, so that the low bit stays free.
            perform setval('token', greatest((select last_value from token) + 2, (known.epoch + 1) << 42) & ~1::int8);
        end if;
    end if;
    return (select epoch from meta);
end $$;

-- The truth beside the counters, by counting. Slow; for tests and repairs.
create function audit_1() returns table (queue_id int, counted int8[], actual int8[]) language sql stable as $$
    with c as (
        select queue_id, array[sum(ready), sum(delayed), sum(blocked), sum(leased), sum(dead)]::int8[] as counted
        from (select * from counter union all select * from counter_delta) d group by queue_id
    ), t as (
        select queue_id, array[count(*) filter (where state = 1), count(*) filter (where state = 2),
            count(*) filter (where state = 3), count(*) filter (where state = 4), count(*) filter (where state = 6)] as actual
        from item group by queue_id
    )
    select coalesce(c.queue_id, t.queue_id), coalesce(c.counted, '{0,0,0,0,0}'), coalesce(t.actual, '{0,0,0,0,0}')
    from c full join t using (queue_id)
    where coalesce(c.counted, '{0,0,0,0,0}') <> coalesce(t.actual, '{0,0,0,0,0}')
$$;
