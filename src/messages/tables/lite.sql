-- SPDX-License-Identifier: Apache-2.0
--
-- lite.sql - messages on SQLite: inbox, outbox, barriers and calls, version 2. The
-- tables lie in the program's own file, next to its data, so that one
-- transaction writes both. Each is named with its database, `main`: neither a
-- temporary table nor one of a database that was attached stands in for it.
--
-- SQLite cannot keep functions in a file: libonce-message executes the
-- statements, and a program in another language takes them from sqlite.c. The
-- columns mean what they mean in pg.sql. `xact` is drawn at random by the
-- program that begins a call.

CREATE TABLE IF NOT EXISTS main.once_message_meta(
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL,
    keep_ms INTEGER NOT NULL,
    floor_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS main.once_inbox(
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    fingerprint BLOB,
    kind INTEGER NOT NULL,
    xact BLOB,
    result BLOB,
    PRIMARY KEY (consumer, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS main.once_parked(
    no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    state INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    due_ms INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    key TEXT,
    type TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    error TEXT NOT NULL,
    filed INTEGER NOT NULL,
    UNIQUE (consumer, id, filed)
) STRICT;
CREATE INDEX IF NOT EXISTS main.once_parked_due ON once_parked(consumer, due_ms)
    WHERE state = 1;
CREATE INDEX IF NOT EXISTS main.once_parked_key ON once_parked(consumer, key, no)
    WHERE key IS NOT NULL;

CREATE TABLE IF NOT EXISTS main.once_outbox(
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    phase INTEGER NOT NULL,
    kept INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    doubt INTEGER NOT NULL DEFAULT 0,
    doubt_ms INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    lease_ms INTEGER NOT NULL DEFAULT 0,
    due_ms INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    route TEXT NOT NULL,
    id TEXT NOT NULL,
    key TEXT,
    saga TEXT,
    type TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    fingerprint BLOB,
    status INTEGER,
    reply BLOB,
    error TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS main.once_outbox_id ON once_outbox(route, id)
    WHERE kept = 1;
CREATE INDEX IF NOT EXISTS main.once_outbox_ready ON once_outbox(route, seq)
    WHERE phase = 0;
CREATE INDEX IF NOT EXISTS main.once_outbox_wait ON once_outbox(route, due_ms)
    WHERE phase = 1;
CREATE INDEX IF NOT EXISTS main.once_outbox_done ON once_outbox(due_ms)
    WHERE phase = 2;
-- It begins with phase > 0, which is no more than the list says: SQLite builds a
-- table of a list of three each time that it looks at a row, and most are ready.
CREATE INDEX IF NOT EXISTS main.once_outbox_stopped ON once_outbox(route, key, seq)
    WHERE phase > 0 AND phase IN (1, 3, 4) AND key IS NOT NULL;
DROP INDEX IF EXISTS main.once_outbox_stop;
CREATE INDEX IF NOT EXISTS main.once_outbox_dead ON once_outbox(route)
    WHERE phase IN (3, 4);

-- Routes that have a relay, which was there at `seen_ms`.
CREATE TABLE IF NOT EXISTS main.once_relay_route(
    route TEXT NOT NULL PRIMARY KEY,
    seen_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS main.once_barrier(
    gid TEXT NOT NULL,
    branch TEXT NOT NULL,
    phase INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (gid, branch)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS main.once_saga(
    gid TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    state INTEGER NOT NULL,
    version INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    since_ms INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    note TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS main.once_saga_late ON once_saga(deadline_ms)
    WHERE state = 0;
CREATE INDEX IF NOT EXISTS main.once_saga_open ON once_saga(state, gid)
    WHERE state IN (0, 1, 2, 5);
CREATE INDEX IF NOT EXISTS main.once_saga_over ON once_saga(since_ms)
    WHERE state IN (3, 4);

CREATE TABLE IF NOT EXISTS main.once_saga_step(
    gid TEXT NOT NULL,
    branch INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT 0,
    try_to TEXT NOT NULL,
    confirm_to TEXT,
    cancel_to TEXT,
    type TEXT NOT NULL,
    body BLOB NOT NULL,
    status INTEGER,
    reply BLOB,
    error TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (gid, branch)
) STRICT;
CREATE INDEX IF NOT EXISTS main.once_outbox_saga ON once_outbox(saga)
    WHERE saga IS NOT NULL;
CREATE INDEX IF NOT EXISTS main.once_outbox_ended ON once_outbox(saga)
    WHERE saga IS NOT NULL AND phase IN (2, 3, 4);

INSERT INTO main.once_message_meta(one, version, keep_ms, floor_ms)
    VALUES (1, 2, @keep@, 0) ON CONFLICT DO NOTHING;

-- Version 1 had no table of relays; it has one by now.
UPDATE main.once_message_meta SET version = 2 WHERE version = 1;
