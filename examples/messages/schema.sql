-- SPDX-License-Identifier: Apache-2.0
--
-- schema.sql - the shop's own tables; `once messages init` makes the others. An
-- order that is billed twice has two invoices: nothing but Once keeps that from
-- happening.
CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS invoice (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id bigint NOT NULL,
    cents bigint NOT NULL
);

-- Orders and bills of this shop, side by side.
CREATE OR REPLACE VIEW ledgers AS SELECT
    (SELECT count(*) FROM orders) AS orders,
    (SELECT count(*) FROM invoice) AS invoices,
    (SELECT count(*) FROM orders o WHERE NOT EXISTS (
        SELECT FROM invoice i WHERE i.order_id = o.id)) AS not_billed,
    (SELECT count(*) - count(DISTINCT order_id) FROM invoice) AS billed_twice;

-- For `once messages consume --sql`: what billing does with one message.
CREATE OR REPLACE FUNCTION bill(p_id text, p_body bytea) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO invoice (order_id, cents) SELECT (o->>'order')::bigint,
        (o->>'cents')::bigint FROM (SELECT convert_from(p_body, 'UTF8')::jsonb)
        AS m (o);
$$;
