insert into products (sku, name, price_cents, stock) values
    ('TEA-1', 'green tea', 450, 10),
    ('TEA-2', 'black tea', 390, 1),
    ('CUP-1', 'small cup', 1200, 3);
