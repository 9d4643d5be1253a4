-- The inbox: one row for each event that was handled, written in the transaction that does what the event asks for.
create table inbox (
    event_id uuid   primary key,
    order_id bigint not null,
    version  int    not null,
    arrival  bigint generated always as identity,
    seen     int    not null default 1  -- more than 1: came again and was dropped
);

-- What this consumer does: one line for each event.
create table work (
    event_id uuid not null,
    what     text not null
);
