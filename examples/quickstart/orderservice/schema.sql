create table orders (
    id          bigint generated always as identity primary key,
    customer    text   not null,
    status      text   not null,
    total_cents bigint not null,
    version     int    not null default 1  -- how many events the order has had
);

-- The outbox. seq gives events their order: an identity with cache 1, filled in by the database after the transaction has
-- locked its order's row, is in order for each order. created_at would not be: it is the start of the transaction.
create table outbox (
    id             uuid        primary key default gen_random_uuid(),
    aggregate_type text        not null,
    aggregate_id   bigint      not null,
    type           text        not null,
    payload        jsonb       not null,
    created_at     timestamptz not null default now(),
    seq            bigint      generated always as identity (cache 1),
    unique (seq)
);

-- What the demo checks against: events of transactions that were rolled back, noted afterwards by one of their own.
create table rolled_back (
    event_id uuid primary key
);
