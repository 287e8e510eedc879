-- SPDX-License-Identifier: Apache-2.0
--
-- my.sql - messages on MySQL and MariaDB: inbox, outbox, barriers and calls, as
-- tables of the program's own database, and procedures that are called inside the
-- caller's own transaction. Version 2.
--
-- `once messages init` runs this text, with --print it only shows it. It may be run
-- again at any time, also while programs and relays are at work. Each statement
-- here commits by itself, as all DDL does there: what was cut off is made by the
-- next run.
--
-- The columns mean what they mean in pg.sql. Ids, keys and texts are bytes, so that
-- no collation makes two of them one. An index on a part of a table does not exist
-- here: the phase stands in it, and `kept_id` is the id of a row that is kept. `size`
-- is read without its body, which lies on pages of its own.

CREATE TABLE IF NOT EXISTS once_message_meta (
    one TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,
    keep_ms BIGINT NOT NULL,
    floor_ms BIGINT NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS once_inbox (
    consumer VARBINARY(255) NOT NULL,
    id VARBINARY(255) NOT NULL,
    at_ms BIGINT NOT NULL,
    fingerprint VARBINARY(32),
    kind TINYINT NOT NULL,
    token VARBINARY(16),
    result LONGBLOB,
    PRIMARY KEY (consumer, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS once_parked (
    no BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    consumer VARBINARY(255) NOT NULL,
    id VARBINARY(320) NOT NULL,
    state TINYINT NOT NULL,
    attempts INT NOT NULL DEFAULT 0,
    due_ms BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    `key` VARBINARY(255),
    type VARBINARY(255) NOT NULL,
    headers BLOB NOT NULL,
    body LONGBLOB NOT NULL,
    error VARBINARY(255) NOT NULL,
    filed TINYINT NOT NULL,
    UNIQUE KEY parked_id (consumer, id, filed),
    KEY parked_due (consumer, state, due_ms),
    KEY parked_key (consumer, `key`, no)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS once_outbox (
    seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    phase TINYINT NOT NULL,
    kept TINYINT NOT NULL,
    attempts INT NOT NULL DEFAULT 0,
    doubt INT NOT NULL DEFAULT 0,
    doubt_ms BIGINT NOT NULL DEFAULT 0,
    refused INT NOT NULL DEFAULT 0,
    lease_ms BIGINT NOT NULL DEFAULT 0,
    due_ms BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    route VARBINARY(255) NOT NULL,
    id VARBINARY(255) NOT NULL,
    kept_id VARBINARY(255) AS (IF(kept = 1, id, NULL)) VIRTUAL,
    `key` VARBINARY(255),
    saga VARBINARY(255),
    type VARBINARY(255) NOT NULL,
    headers BLOB NOT NULL,
    body LONGBLOB NOT NULL,
    size INT UNSIGNED AS (LENGTH(body)) STORED,
    fingerprint VARBINARY(32),
    status INT,
    reply LONGBLOB,
    error VARBINARY(255) NOT NULL DEFAULT '',
    UNIQUE KEY outbox_id (route, kept_id),
    KEY outbox_ready (route, phase, seq),
    KEY outbox_wait (route, phase, due_ms),
    KEY outbox_done (phase, due_ms),
    KEY outbox_stop (route, `key`, phase, seq),
    KEY outbox_saga (saga, phase)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Routes that have a relay, which was there at `seen_ms`. Claimers of a route lock
-- its row.
CREATE TABLE IF NOT EXISTS once_relay_route (
    route VARBINARY(255) NOT NULL PRIMARY KEY,
    seen_ms BIGINT NOT NULL
) ENGINE = InnoDB;

-- 1,024 rows. Who emits with a key locks that of CRC32(key) & 1023 up to COMMIT, so
-- that rows of one key become visible in the order of seq.
CREATE TABLE IF NOT EXISTS once_lock (
    slot SMALLINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- 256 rows. What is visible may not be durable yet: who answers by what it has only
-- read writes the row of CONNECTION_ID() & 255, whose COMMIT waits for all that was
-- committed before.
CREATE TABLE IF NOT EXISTS once_message_touch (
    slot SMALLINT NOT NULL PRIMARY KEY,
    n INT UNSIGNED NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS once_barrier (
    gid VARBINARY(255) NOT NULL,
    branch VARBINARY(255) NOT NULL,
    phase TINYINT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (gid, branch),
    KEY barrier_at (at_ms)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS once_saga (
    gid VARBINARY(255) NOT NULL PRIMARY KEY,
    kind VARBINARY(255) NOT NULL,
    state TINYINT NOT NULL,
    version INT NOT NULL,
    deadline_ms BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    since_ms BIGINT NOT NULL,
    fingerprint VARBINARY(32) NOT NULL,
    note VARBINARY(255) NOT NULL DEFAULT '',
    KEY saga_late (state, deadline_ms),
    KEY saga_open (state, gid),
    KEY saga_over (state, since_ms)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS once_saga_step (
    gid VARBINARY(255) NOT NULL,
    branch INT NOT NULL,
    state TINYINT NOT NULL DEFAULT 0,
    failed TINYINT NOT NULL DEFAULT 0,
    round INT NOT NULL DEFAULT 0,
    try_to VARBINARY(255) NOT NULL,
    confirm_to VARBINARY(255),
    cancel_to VARBINARY(255),
    type VARBINARY(255) NOT NULL,
    body LONGBLOB NOT NULL,
    status INT,
    reply LONGBLOB,
    error VARBINARY(255) NOT NULL DEFAULT '',
    PRIMARY KEY (gid, branch)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO once_message_meta (one, version, keep_ms, floor_ms)
    VALUES (1, 2, @keep@, 0);

INSERT IGNORE INTO once_lock (slot)
    WITH RECURSIVE s AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM s WHERE n < 31)
    SELECT 32 * a.n + b.n FROM s AS a, s AS b;

INSERT IGNORE INTO once_message_touch (slot, n)
    WITH RECURSIVE s AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM s WHERE n < 255)
    SELECT s.n, 0 FROM s;
