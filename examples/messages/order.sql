-- SPDX-License-Identifier: Apache-2.0
--
-- order.sql - an order, its message to billing, and the charge of the card, in
-- one transaction:  psql $DB -v order=42 -v cents=1250 -f order.sql
--
-- The message goes to the route `orders` with a drawn id. The charge goes to the
-- route `pay`, over HTTP, and its id is the Idempotency-Key: an order is charged
-- once, however often anybody asks for it.
BEGIN;
INSERT INTO orders (id, cents) VALUES (:order, :cents);
SELECT once.emit('orders',
    format('{"order": %s, "cents": %s}', :order, :cents),
    p_key => 'order-' || :order, p_type => 'application/json') AS message;
SELECT once.emit('pay',
    format('{"order": "order-%s", "amount": %s}', :order, :cents),
    p_id => 'charge-' || :order, p_type => 'application/json') AS charge;
COMMIT;
