create table products (
    sku text primary key check (sku ~ '^[A-Z]{3}-[0-9]+$'),
    name text not null,
    price_cents integer not null check (price_cents > 0),
    stock integer not null default 0 check (stock >= 0)
);
