create type order_state as enum ('open', 'paid', 'cancelled');

create table orders (
    id bigint generated always as identity primary key,
    state order_state not null default 'open',
    placed_at timestamptz not null default now()
);

create table order_lines (
    order_id bigint not null references orders on delete cascade,
    sku text not null references products,
    quantity integer not null check (quantity > 0),
    primary key (order_id, sku)
);

create view order_totals as
select o.id, o.state, coalesce(sum(l.quantity * p.price_cents), 0) as total_cents
from orders o
left join order_lines l on l.order_id = o.id
left join products p using (sku)
group by o.id;
