-- minimum: 5
-- A look that says when the next one is due, so that nobody has to look while nothing happens.

-- Housekeeping as before; whether there was any.
create function tidy_2() returns bool language plpgsql as $$
declare
    busy bool;
begin
    if not pg_try_advisory_xact_lock(1818846564, 2) then
        return false;
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
    busy := found;
    delete from dedupe where (queue_id, key) in (
        select queue_id, key from dedupe where until is not null and until <= clock_timestamp() limit 1000 for update skip locked);
    busy := busy or found;
    delete from settled_rest where ctid = any (array(
        select ctid from settled_rest where drop_at <= clock_timestamp() limit 1000));
    return busy or found;
end $$;

-- Beside the wakes one row -1: status 1 if this look is written, so that its commit proves that the store can; ms
-- until something is due, null if that is further `ahead`. No such row: another replica is looking.
-- The search is bounded because leases that were settled leave dead entries at the ends that they never reached.
create function sweep_2(lo timestamptz, most int, ahead interval) returns setof verdict_1 language plpgsql as $$
declare
    now_ timestamptz := clock_timestamp();
    written bool;
begin
    if not pg_try_advisory_xact_lock(1818846564, 1) then
        return;
    end if;
    perform recover_1();
    insert into beat (last) values (clock_timestamp()) on conflict (one) do update set last = excluded.last
        where beat.last < excluded.last - interval '200 ms';
    written := found;
    -- Not `exists`, which may walk another index. Most looks find nothing, and this is a third of what the functions take.
    if (select true from item i where i.state = 4 and i.lease_until > lo and i.lease_until <= now_
        order by i.lease_until limit 1)
    then
        return query select * from expire_leases_1(lo, most);
    end if;
    if (select true from item i where i.state = 2 and i.ready_at > lo and i.ready_at <= now_ order by i.ready_at limit 1) then
        return query select * from ready_delayed_1(lo, most);
    end if;
    if (select true from item i where i.expires_at > lo and i.expires_at <= now_ and i.expires_at is not null
        and i.lease_until is null order by i.expires_at limit 1)
    then
        return query select * from expire_items_1(lo, most);
    end if;
    if (select true from item i where i.state = 6 and i.drop_at <= now_ order by i.drop_at limit 1) then
        return query select * from drop_dead_1(most);
    end if;
    now_ := clock_timestamp();
    return query select -1, written::int, null::int, null::int,
        ceil(extract(epoch from min(d.at) - now_) * 1000)::int8, false, null::text
    from (
        (select i.lease_until as at from item i where i.state = 4 and i.lease_until > lo and i.lease_until <= now_ + ahead
            order by i.lease_until limit 1)
        union all (select i.ready_at from item i where i.state = 2 and i.ready_at > lo and i.ready_at <= now_ + ahead
            order by i.ready_at limit 1)
        -- A held item whose lifetime is over waits for the end of its lease.
        union all (select i.expires_at from item i where i.expires_at > now_ and i.expires_at <= now_ + ahead
            and i.expires_at is not null order by i.expires_at limit 1)
        union all (select i.drop_at from item i where i.state = 6 and i.drop_at > now_ and i.drop_at <= now_ + ahead
            order by i.drop_at limit 1)
    ) d;
end $$;
