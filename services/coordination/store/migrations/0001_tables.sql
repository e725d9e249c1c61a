-- minimum: 1
-- What is kept. States, causes and verdicts are the numbers of the wire.

-- A flush numbers its rows from the block that it took, up to 1024 of them.
create sequence ord increment 1024;
-- The low bit says that the item has an ordering key; the bits from 42 up are the epoch.
create sequence token increment 2;

create table meta (
    one bool primary key default true check (one),
    epoch int8 not null,
    system_identifier int8 not null,
    timeline int8 not null
);

-- When any replica last swept, and when the last outage ended.
create table beat (
    one bool primary key default true check (one),
    last timestamptz not null,
    outage_end timestamptz not null default '-infinity'
) with (fillfactor = 10);

create table queue (
    id int generated always as identity primary key,
    name text collate "C" not null unique,
    policy jsonb not null,
    paused bool not null default false,
    bands int not null default 0, -- bit p: an item of priority p was seen
    default_lease_ms int8 not null generated always as ((policy ->> 'default_lease_ms')::int8) stored,
    min_lease_ms int8 not null generated always as ((policy ->> 'min_lease_ms')::int8) stored,
    max_lease_ms int8 not null generated always as ((policy ->> 'max_lease_ms')::int8) stored,
    max_hold_ms int8 not null generated always as ((policy ->> 'max_hold_ms')::int8) stored,
    on_expiry int not null generated always as ((policy ->> 'on_expiry')::int) stored,
    on_dead_head int not null generated always as ((policy ->> 'on_dead_head')::int) stored,
    dedupe_window_ms int8 not null generated always as ((policy ->> 'dedupe_window_ms')::int8) stored,
    settled_retention_ms int8 not null generated always as ((policy ->> 'settled_retention_ms')::int8) stored,
    dead_retention_ms int8 not null generated always as ((policy ->> 'dead_retention_ms')::int8) stored,
    max_backlog int8 not null generated always as ((policy ->> 'max_backlog')::int8) stored
);

-- Unsettled items and dead letters. A state change is never a HOT update, since indexes depend on the state.
create table item (
    id uuid primary key,
    queue_id int not null,
    state int2 not null,
    priority int2 not null,
    refunds int2 not null default 0,
    cause int2,
    attempt int not null default 0,
    max_attempts int not null,
    size int not null,
    seq int8 not null, -- the order of submission, for ordering keys
    ord int8 not null, -- the place among its priority
    token int8 not null default 0,
    checksum int8 not null, -- of the payload
    claim_key int8, -- of the holder and its request id
    request_args int8,
    expires_in_ms int8,
    submitted_at timestamptz not null,
    ready_at timestamptz not null, -- since or until when
    expires_at timestamptz, -- null once dead
    granted_at timestamptz,
    lease_until timestamptz, -- null unless leased
    died_at timestamptz,
    drop_at timestamptz,
    submitter text not null,
    holder text, -- null once a lease was given back; kept when it ran out, for a late ack
    group_id text collate "C",
    dedupe_key text collate "C",
    ordering_key text collate "C",
    cancel_reason text,
    attributes bytea not null, -- JSON that only the service reads, labels apart
    failures jsonb, -- [attempt, error, holder, epoch ms], the last ten
    past jsonb, -- how its leases ended: [token, lost, holder, verb, arguments, ms, state], the last 20
    payload bytea not null
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_cost_delay = 0
);
alter table item alter column payload set storage external;
alter table item alter column attributes set storage main;

create index item_ready on item (queue_id, priority, ord) where state = 1;
create index item_lease on item (lease_until) where state = 4;
create index item_request on item (claim_key) where state = 4 and claim_key is not null;
create index item_timer on item (ready_at) where state = 2;
create index item_waiting on item (queue_id, ord) where state in (2, 3);
create index item_blocked on item (queue_id, ordering_key, seq) where state = 3;
create unique index item_head on item (queue_id, ordering_key)
    where ordering_key is not null and state in (1, 2, 4);
create index item_halt on item (queue_id, ordering_key) where ordering_key is not null and state = 6;
create index item_dead on item (queue_id, ord) where state = 6;
create index item_drop on item (drop_at) where state = 6;
create index item_lifetime on item (expires_at) where expires_at is not null;
create index item_group on item (queue_id, group_id) where group_id is not null;

-- Results, in settle order by (xid, ord). A dead item has one too (state 6), and stays an item.
create table settled (
    xid xid8 not null default pg_current_xact_id(),
    ord int8 not null,
    id uuid not null,
    queue_id int not null,
    state int2 not null,
    priority int2 not null,
    cause int2,
    attempt int not null,
    max_attempts int not null,
    size int not null,
    token int8 not null,
    checksum int8 not null,
    submitted_at timestamptz not null,
    settled_at timestamptz not null,
    drop_at timestamptz not null,
    submitter text not null,
    holder text,
    group_id text collate "C",
    dedupe_key text collate "C",
    ordering_key text collate "C",
    cancel_reason text,
    attributes bytea not null,
    failures jsonb,
    past jsonb,
    result bytea not null default '',
    result_type text not null default ''
) partition by range (drop_at);
create index settled_id on settled (id);
create index settled_queue on settled (queue_id, xid, ord);
create index settled_group on settled (queue_id, group_id, xid, ord) where group_id is not null;
create table settled_rest partition of settled default;
create index settled_rest_drop on settled_rest (drop_at);

-- Who holds a dedupe key; until is null while the item is unsettled.
create table dedupe (
    queue_id int not null,
    key text collate "C" not null,
    item_id uuid not null,
    until timestamptz,
    primary key (queue_id, key)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index dedupe_until on dedupe (until) where until is not null;

-- Numbers of the queues: a flush appends, the sweep folds.
create table counter_delta (
    queue_id int not null,
    ready int8 not null default 0,
    delayed int8 not null default 0,
    blocked int8 not null default 0,
    leased int8 not null default 0,
    dead int8 not null default 0,
    submitted int8 not null default 0,
    granted int8 not null default 0,
    settled int8 not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index counter_delta_queue on counter_delta (queue_id);
create table counter (like counter_delta including defaults, primary key (queue_id)) with (fillfactor = 50);

-- One verdict (n from 1), or a queue to wake: n = 0, status so many items, ms the lowest new ord, who its name.
create type verdict_1 as (n int, status int, lost int, state int, ms int8, cancel bool, who text);

create function remember_1(past jsonb, entry jsonb, most int) returns jsonb
language sql immutable as $$
    select case when jsonb_array_length(coalesce(past, '[]')) >= most then (past - 0) || jsonb_build_array(entry)
        else coalesce(past, '[]') || jsonb_build_array(entry) end
$$;

create function ms_1(span interval) returns int8
language sql immutable as $$ select round(extract(epoch from span) * 1000)::int8 $$;

-- Before anything is decided about ordering keys, by whom so ever.
create function lock_keys_1(queues int[], keys text[]) returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1818846561, b) from (
        select distinct (hashtextextended(u.k, u.q) & 1023)::int as b
        from unnest(queues, keys) u(q, k) where u.k is not null order by b) s;
end $$;

-- Lets the next of these keys take its head's place where there is no head (and no dead one that halts the key).
-- It keeps its place, so what is answered is the place before the lowest among them.
create function promote_1(queues int[], keys text[]) returns int8
language plpgsql as $$
declare
    now_ timestamptz := clock_timestamp();
    lowest int8;
begin
    with heirs as materialized (
        select n.id from (select distinct k.q, k.k from unnest(queues, keys) k(q, k) where k.k is not null) u
        join queue on queue.id = u.q
        cross join lateral (
            select i.id from item i where i.queue_id = u.q and i.ordering_key = u.k and i.state = 3
            order by i.seq limit 1) n
        where not exists (
            select from item h where h.queue_id = u.q and h.ordering_key = u.k
            and h.ordering_key is not null and h.state in (1, 2, 4))
        and not (queue.on_dead_head = 1 and exists (
            select from item d where d.queue_id = u.q and d.ordering_key = u.k
            and d.ordering_key is not null and d.state = 6))
    ), promoted as (
        update item i set state = case when i.ready_at > now_ then 2 else 1 end, ready_at = greatest(i.ready_at, now_)
        from heirs h where i.id = h.id returning i.queue_id, i.state, i.ord
    ), counted as (
        insert into counter_delta (queue_id, blocked, delayed, ready)
        select queue_id, -count(*), count(*) filter (where state = 2), count(*) filter (where state = 1)
        from promoted group by queue_id
    )
    select min(ord) - 1 into lowest from promoted where state = 1;
    return lowest;
end $$;
