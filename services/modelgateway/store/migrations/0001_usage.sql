-- Budgets: one row a window that has been drawn on.
create table bucket (
    id bigint generated always as identity primary key,
    namespace text not null,
    pool text not null,
    scope smallint not null,
    name text not null,
    window_s int not null,                  -- 0: for ever
    starts_at bigint not null,              -- unix seconds
    used bigint not null default 0,
    reserved bigint not null default 0 check (reserved >= 0),
    unique (namespace, pool, scope, name, window_s, starts_at)
) with (fillfactor = 50);

-- Tokens set aside for calls that are under way.
create table hold (
    id uuid primary key,
    tokens bigint not null,
    buckets bigint[] not null,
    expires_at timestamptz not null
);
create index hold_expiry on hold (expires_at);

-- Calls that are over.
create table call (
    id bigint generated always as identity primary key,
    ref uuid not null unique,
    namespace text not null,
    pool text not null,
    agent text not null,
    fleet text not null,
    caller text not null,
    model text not null,
    operation smallint not null,
    endpoint text not null,
    status int not null,
    error text not null,
    started_at double precision not null,
    seconds double precision not null,
    first_byte double precision,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cached_tokens bigint not null,
    estimated boolean not null,
    attempts int not null
);
create index call_newest on call (namespace, id desc);
create index call_oldest on call using brin (started_at);

-- When the window began that time t is in.
create function start_of(seconds int, t double precision) returns bigint
language sql immutable as $$
    select case when seconds = 0 then 0 else floor(t / seconds)::bigint * seconds end
$$;

-- The present windows of these budgets, made where they are not there yet, and locked in one order for everybody.
create function present(wanted jsonb)
returns table (n int, id bigint, used bigint, reserved bigint, told_at double precision)
language plpgsql as $$
#variable_conflict use_column
declare
    t constant double precision := extract(epoch from clock_timestamp());
begin
    insert into bucket (namespace, pool, scope, name, window_s, starts_at)
    select w.namespace, w.pool, w.scope, w.name, w."window", start_of(w."window", t)
    from jsonb_to_recordset(wanted)
         as w(namespace text, pool text, scope smallint, name text, "window" int)
    where not exists (
        select from bucket b
        where b.namespace = w.namespace and b.pool = w.pool and b.scope = w.scope and b.name = w.name
          and b.window_s = w."window" and b.starts_at = start_of(w."window", t))
    order by 1, 2, 3, 4, 5, 6
    on conflict do nothing;
    if found then
        perform set_config('synchronous_commit', 'on', true);  -- what a call uses is booked on it for sure
    end if;
    return query
    select w.n, b.id, b.used, b.reserved, t
    from jsonb_to_recordset(wanted)
         as w(n int, namespace text, pool text, scope smallint, name text, "window" int)
    join bucket b
      on b.namespace = w.namespace and b.pool = w.pool and b.scope = w.scope and b.name = w.name
     and b.window_s = w."window" and b.starts_at = start_of(w."window", t)
    order by b.id for update of b;
end $$;

-- Moves used and reserved of buckets by so much.
create function move(ids bigint[], more_used bigint[], more_reserved bigint[]) returns void
language plpgsql as $$
begin
    perform from bucket b where b.id = any(ids) order by b.id for update;
    update bucket b set used = b.used + m.u, reserved = b.reserved + m.r
    from (select x.id, sum(x.u)::bigint as u, sum(x.r)::bigint as r
          from unnest(ids, more_used, more_reserved) as x(id, u, r) group by x.id) m
    where b.id = m.id;
end $$;

-- Frees what these holds have set aside, and books what their calls used: entry n of `booked` on bucket n.
create function settle(done uuid[], booked bigint[], tokens bigint[]) returns void
language plpgsql as $$
declare
    freed bigint[];
    less bigint[];
begin
    perform from hold h where h.id = any(done) order by h.id for update;
    with gone as (delete from hold h where h.id = any(done) returning h.tokens, h.buckets)
    select coalesce(array_agg(b), '{}'), coalesce(array_agg(-g.tokens), '{}')
    into freed, less from gone g, unnest(g.buckets) b;
    perform move(
        booked || freed,
        tokens || array_fill(0::bigint, array[cardinality(freed)]),
        array_fill(0::bigint, array[cardinality(booked)]) || less);
end $$;

-- Frees holds that have expired.
create function expire() returns int
language plpgsql as $$
declare
    gone uuid[];
begin
    select coalesce(array_agg(x.id), '{}') into gone from (
        select h.id from hold h where h.expires_at <= clock_timestamp()
        order by h.expires_at limit 1000 for update skip locked) x;
    if cardinality(gone) > 0 then
        perform settle(gone, '{}', '{}');
    end if;
    return cardinality(gone);
end $$;

-- Sets tokens aside, one request after the other, each in all its budgets or in none. A request's `keys` are
-- places in `wanted`, from 1 on; `refused` is the place in `keys` of the budget that it does not fit into.
-- It does not wait for the disk: a server that crashes forgets reservations of its last second at most, and what
-- their calls use is booked all the same.
create function reserve(wanted jsonb, requests jsonb)
returns table (refused int, used bigint, reserved bigint, buckets bigint[], told_at double precision)
language plpgsql as $$
#variable_conflict use_column
declare
    ids bigint[];
    u bigint[];
    r bigint[];
    request record;
    k int;
begin
    perform set_config('synchronous_commit', 'off', true);
    select array_agg(p.id order by p.n), array_agg(p.used order by p.n), array_agg(p.reserved order by p.n),
           max(p.told_at)
    into ids, u, r, told_at from present(wanted) p;
    for request in
        select x.* from jsonb_to_recordset(requests)
            as x(n int, id uuid, tokens bigint, seconds double precision, keys int[], limits bigint[])
        order by x.n
    loop
        refused := null; used := null; reserved := null; buckets := '{}';
        for i in 1 .. cardinality(request.keys) loop
            k := request.keys[i];
            buckets := buckets || ids[k];
            if u[k] + r[k] + request.tokens > request.limits[i] then
                refused := i; used := u[k]; reserved := r[k];
                exit;
            end if;
        end loop;
        if refused is null then
            foreach k in array request.keys loop
                r[k] := r[k] + request.tokens;
            end loop;
            insert into hold values (
                request.id, request.tokens, buckets,
                clock_timestamp() + request.seconds * interval '1 second');
        end if;
        return next;
    end loop;
    update bucket b set reserved = m.r
    from unnest(ids, r) as m(id, r) where b.id = m.id and b.reserved <> m.r;
end $$;

-- Books what calls came to, each once however often it is told, and keeps their records. Those with a hold name
-- their buckets, those without the places of their budgets in `wanted`. It is on disk at the end; but others can
-- have the buckets before that.
create procedure book(spends jsonb, wanted jsonb, records jsonb)
language plpgsql as $$
declare
    known uuid[];
    done uuid[];
    booked bigint[];
    amounts bigint[];
    ids bigint[];
begin
    select coalesce(array_agg(c.ref), '{}') into known from call c
    where c.ref in (select x.id from jsonb_to_recordset(spends) as x(id uuid));
    select coalesce(array_agg(x.hold), '{}') into done
    from jsonb_to_recordset(spends) as x(id uuid, hold uuid) where x.hold is not null and x.id <> all(known);
    select coalesce(array_agg(b), '{}'), coalesce(array_agg(x.tokens), '{}') into booked, amounts
    from jsonb_to_recordset(spends) as x(id uuid, tokens bigint, buckets bigint[]), unnest(x.buckets) b
    where x.id <> all(known);
    if cardinality(done) + cardinality(booked) > 0 then
        perform settle(done, booked, amounts);
    end if;
    if jsonb_array_length(wanted) > 0 then  -- after the holds: whoever locks does so in that order
        select array_agg(p.id order by p.n) into ids from present(wanted) p;
        select coalesce(array_agg(ids[k]), '{}'), coalesce(array_agg(x.tokens), '{}') into booked, amounts
        from jsonb_to_recordset(spends) as x(id uuid, tokens bigint, keys int[]), unnest(x.keys) k
        where x.id <> all(known);
        perform move(booked, amounts, array_fill(0::bigint, array[cardinality(booked)]));
    end if;
    insert into call (
        ref, namespace, pool, agent, fleet, caller, model, operation, endpoint, status, error, started_at,
        seconds, first_byte, input_tokens, output_tokens, cached_tokens, estimated, attempts)
    select
        c.ref, c.namespace, c.pool, c.agent, c.fleet, c.caller, c.model, c.operation, c.endpoint, c.status,
        c.error, c.started_at, c.seconds, c.first_byte, c.input_tokens, c.output_tokens, c.cached_tokens,
        c.estimated, c.attempts
    from jsonb_populate_recordset(null::call, records) c where c.ref <> all(known);
    perform set_config('synchronous_commit', 'off', true);
    commit;
    perform pg_logical_emit_message(true, 'modelgateway', '');  -- whose commit takes the other one to disk
end $$;
