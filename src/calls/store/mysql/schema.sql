-- SPDX-License-Identifier: Apache-2.0
--
-- schema.sql - the tables of the store `mysql://`, version 1.
--
-- `once init` runs this text in the store's database, `once init --print` shows
-- it. It may be run again at any time. There are no procedures and no triggers:
-- the client decides, in one transaction a batch.
--
-- Gateways need SELECT, INSERT, UPDATE and DELETE on these tables (of once_meta
-- only SELECT), and no other right.

-- Heads, in the order of their fences: the key is the fence. AUTO_INCREMENT
-- never repeats a number, also not after a restart, and replicas follow it.
-- class and due_ms serve all scans by one index:
--    class 1   claimed, dispatched    due_ms: the end of the lease
--    class 2   absent, completed      due_ms: the end of the retention
--    class 3   indeterminate          due_ms: when it ended
-- Numbers of states, kinds, policies and reasons are those of <once/once.h>.
-- Times are milliseconds since 1970. `grp` and `subject` have no trailing NUL
-- bytes. The defaults are what most claims have: an INSERT leaves them out.
CREATE TABLE IF NOT EXISTS once_record (
    fence BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    class TINYINT UNSIGNED NOT NULL DEFAULT 1,
    due_ms BIGINT UNSIGNED NOT NULL,
    lease_ms BIGINT UNSIGNED NOT NULL,
    keep_ms BIGINT UNSIGNED NOT NULL,
    granted_ms BIGINT UNSIGNED NOT NULL,
    created_ms BIGINT UNSIGNED NOT NULL,
    ended_ms BIGINT UNSIGNED NOT NULL DEFAULT 0,
    attempt INT UNSIGNED NOT NULL DEFAULT 1,
    version TINYINT UNSIGNED NOT NULL DEFAULT 1,
    state TINYINT UNSIGNED NOT NULL DEFAULT 2,
    kind TINYINT UNSIGNED NOT NULL DEFAULT 0,
    policy TINYINT UNSIGNED NOT NULL DEFAULT 0,
    doubt TINYINT UNSIGNED NOT NULL DEFAULT 0,
    reason TINYINT UNSIGNED NOT NULL DEFAULT 0,
    token BINARY(16) NOT NULL,
    trace BINARY(16) NOT NULL DEFAULT '',
    name BINARY(32) NOT NULL,
    fingerprint BINARY(32) NOT NULL,
    subject VARBINARY(8) NOT NULL DEFAULT '',
    grp VARBINARY(32) NOT NULL DEFAULT '',
    label VARBINARY(128) NOT NULL DEFAULT '',
    note VARBINARY(1024) NOT NULL DEFAULT '',
    UNIQUE KEY name (name),
    KEY due (class, due_ms, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Results, beside their heads, since a row that grows splits its page. In parts,
-- since a packet has a limit. A completed record has part 0 also if its result
-- is empty. `size` is that of the whole result.
CREATE TABLE IF NOT EXISTS once_body (
    fence BIGINT UNSIGNED NOT NULL,
    part SMALLINT UNSIGNED NOT NULL,
    size INT UNSIGNED NOT NULL,
    bytes MEDIUMBLOB NOT NULL,
    PRIMARY KEY (fence, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A commit that must wait for the disk, though it changes no record, changes
-- one of these.
CREATE TABLE IF NOT EXISTS once_touch (
    slot SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
    n INT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- Names that were forgotten within an hour of their last grant, and its fence: a
-- claim that was under way meanwhile may have drawn a smaller one.
CREATE TABLE IF NOT EXISTS once_swept (
    name BINARY(32) NOT NULL,
    fence BIGINT UNSIGNED NOT NULL,
    at_ms BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (name, fence),
    KEY fence (fence),
    KEY at (at_ms)
) ENGINE = InnoDB;

-- What was seen of the time. At most one row.
CREATE TABLE IF NOT EXISTS once_clock (
    one TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    seen_ms BIGINT UNSIGNED NOT NULL,
    steady_ms BIGINT UNSIGNED NOT NULL,
    host BINARY(16) NOT NULL,
    backs BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- The store's head: see <once/once.h>. One row.
CREATE TABLE IF NOT EXISTS once_meta (
    one TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    version INT UNSIGNED NOT NULL,
    id BINARY(16) NOT NULL,
    incarnation INT UNSIGNED NOT NULL,
    gap TINYINT UNSIGNED NOT NULL,
    gap_from_ms BIGINT UNSIGNED NOT NULL,
    gap_until_ms BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;

INSERT IGNORE INTO once_touch (slot, n)
    SELECT a.n * 16 + b.n, 0 FROM
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
    UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7
    UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10
    UNION ALL SELECT 11 UNION ALL SELECT 12 UNION ALL SELECT 13
    UNION ALL SELECT 14 UNION ALL SELECT 15) AS a,
    (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
    UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7
    UNION ALL SELECT 8 UNION ALL SELECT 9 UNION ALL SELECT 10
    UNION ALL SELECT 11 UNION ALL SELECT 12 UNION ALL SELECT 13
    UNION ALL SELECT 14 UNION ALL SELECT 15) AS b;

INSERT IGNORE INTO once_meta
    (one, version, id, incarnation, gap, gap_from_ms, gap_until_ms)
    VALUES (1, 1, UNHEX(LEFT(SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256),
    32)), 0, 0, 0, 0);
