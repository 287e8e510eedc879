-- SPDX-License-Identifier: Apache-2.0
--
-- my.sql - messages on MySQL and MariaDB: inbox, outbox, barriers and calls, as
-- tables of the program's own database, and procedures that are called inside the
-- caller's own transaction. Version 2.
--
-- `once messages init` runs this text, with --print it only shows it, so that the
-- command line client takes it. It may be run again at any time, also while
-- programs and relays are at work. Each statement here commits by itself, as all
-- DDL does there: what was cut off is made by the next run.
--
-- The columns mean what they mean in pg.sql. Ids, keys and texts are bytes, so that
-- no collation makes two of them one. An index on a part of a table does not exist
-- here: the phase stands in it, and `kept_id` is the id of a row that is kept. `size`
-- is read without its body, which lies on pages of its own.
-- `token`: drawn at random by each claim.
--
-- The procedures are the contract, for every language. They run with the rights of
-- the account that made them: EXECUTE is all that a program needs. Names that end
-- in _1 are called by the others. None commits, begins or rolls back. Each
-- answers with one row. Those that have only looked write a row as well: what is
-- visible may not be durable yet, and COMMIT waits for it then. So COMMIT after
-- every answer.
--
-- An error handler names its error. One for every error would also hide that a
-- deadlock has ended the caller's transaction, whose next write would then commit
-- by itself.
--
-- What explains a claim is read LOCK IN SHARE MODE: that sees what is committed in
-- every isolation level, and two repeats of one message do not wait for each other.
--
-- Errors: 22023 an argument is out of its limits, ON001 this server or session
-- would lose what it commits, ON003 a row is missing that init makes up, ON010 an
-- id was emitted with another body, ON014 parked in the transaction of its claim,
-- ON017 no transaction is open or a call was begun and not finished, 40001 do the
-- whole transaction again, 55P03 another copy is under way. Drivers that do not show
-- these have a number: 1644, for 55P03 1205, for 40001 1213. The server's own 1213
-- and 1020 mean the same as 40001. After any error: ROLLBACK.
--
-- MySQL knows no CREATE OR REPLACE PROCEDURE, and no setting for one statement. So
-- there are marks for both, @create@ and @wait@, and what only MySQL executes. The
-- bodies have no comments, since the command line client would leave them out, and
-- `check` compares bodies.

-- A procedure keeps the sql_mode and the character set of its creation.
SET @once_mode = @@SESSION.sql_mode,
    @once_client = @@SESSION.character_set_client,
    @once_results = @@SESSION.character_set_results,
    @once_collation = @@SESSION.collation_connection;
SET NAMES utf8mb4;
SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';

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

-- 1,024 rows. Who emits with a key locks that of its route and key up to COMMIT, so
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

DELIMITER //

-- Raises 22023 unless `p_value` is 1 to 255 characters of visible ASCII. Every
-- byte is a character of latin1, so the conversion cannot fail.
/*!80000 DROP PROCEDURE IF EXISTS once_check_1 */
//
@create@ PROCEDURE once_check_1(p_field VARCHAR(16), p_value LONGBLOB)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_text VARCHAR(128);
    DECLARE v_value VARCHAR(255) CHARACTER SET latin1 COLLATE latin1_bin;
    IF LENGTH(p_value) BETWEEN 1 AND 255 THEN
        SET v_value = CONVERT(p_value USING latin1);
    END IF;
    IF v_value IS NULL OR v_value REGEXP '[^!-~]' THEN
        SET v_text = CONCAT(p_field,
            ': it is not 1 to 255 characters of visible ASCII');
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = v_text;
    END IF;
END
//

-- Raises 22023 unless a message may have this content.
/*!80000 DROP PROCEDURE IF EXISTS once_content_1 */
//
@create@ PROCEDURE once_content_1(p_type LONGBLOB, p_headers LONGBLOB,
    p_body LONGBLOB)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_type VARCHAR(255) CHARACTER SET latin1 COLLATE latin1_bin;
    DECLARE v_headers LONGTEXT CHARACTER SET latin1 COLLATE latin1_bin;
    IF p_body IS NULL OR LENGTH(p_body) > 67108864 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'body: it is missing, or larger than 67108864 bytes';
    END IF;
    IF LENGTH(p_type) <= 255 THEN
        SET v_type = CONVERT(p_type USING latin1);
    END IF;
    IF v_type IS NULL OR v_type REGEXP '[^ -~]' THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'type: it is not up to 255 characters of ASCII';
    END IF;
    IF LENGTH(p_headers) <= 65535 THEN
        SET v_headers = CONVERT(p_headers USING latin1);
    END IF;
    IF v_headers IS NULL OR (v_headers <> ''
        AND (RIGHT(v_headers, 1) <> '\n' OR v_headers REGEXP '\r'
            OR CONCAT('\n', LEFT(v_headers, LENGTH(v_headers) - 1)) REGEXP
                '[\n](?![!#$%&''*+.^_`|~0-9A-Za-z-]{1,255}:[ ])')) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'headers: they are not lines of the form "Name: value", or larger than 65535 bytes';
    END IF;
END
//

-- Raises ON017 unless a transaction is open: a savepoint is kept only in one. And
-- ON001 where a crash would take back what was committed. A binlog that is not
-- synced does that too: recovery rolls back what it lacks.
/*!80000 DROP PROCEDURE IF EXISTS once_open_1 */
//
@create@ PROCEDURE once_open_1()
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_open TINYINT DEFAULT 1;
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET v_open = 0;
        SAVEPOINT once_open;
        RELEASE SAVEPOINT once_open;
    END;
    IF v_open = 0 THEN
        SIGNAL SQLSTATE 'ON017' SET MESSAGE_TEXT =
            'no transaction is open. Turn autocommit off: BEGIN, the call, your writes, COMMIT';
    END IF;
    IF @@innodb_flush_log_at_trx_commit NOT IN (1, 3) THEN
        SIGNAL SQLSTATE 'ON001' SET MESSAGE_TEXT =
            'innodb_flush_log_at_trx_commit is not 1: commits may be lost';
    END IF;
    IF @@log_bin = 1 AND (@@sql_log_bin = 0 OR @@sync_binlog <> 1) THEN
        SIGNAL SQLSTATE 'ON001' SET MESSAGE_TEXT =
            'sql_log_bin is off, or sync_binlog is not 1: commits may be lost';
    END IF;
    IF @@log_bin = 1 AND @@binlog_format = 'STATEMENT' THEN
        SIGNAL SQLSTATE 'ON001' SET MESSAGE_TEXT =
            'binlog_format is STATEMENT, not ROW or MIXED: a replica would draw other ids';
    END IF;
END
//

-- What was read is perhaps not durable yet. This writes, so COMMIT waits for it.
/*!80000 DROP PROCEDURE IF EXISTS once_touch_1 */
//
@create@ PROCEDURE once_touch_1()
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    @wait@ UPDATE once_message_touch SET n = (n + 1) & 4294967295
        WHERE slot = CONNECTION_ID() & 255;
    IF ROW_COUNT() <> 1 THEN
        SIGNAL SQLSTATE 'ON003' SET MESSAGE_TEXT =
            'once_message_touch lacks a row: run once messages init';
    END IF;
END
//

-- The time in an id that is a UUID of version 7, in ms since 1970; 0 for any
-- other id.
/*!80000 DROP PROCEDURE IF EXISTS once_id_ms_1 */
//
@create@ PROCEDURE once_id_ms_1(p_id VARBINARY(255), OUT p_ms BIGINT)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_id VARCHAR(255) CHARACTER SET latin1 COLLATE latin1_bin
        DEFAULT CONVERT(p_id USING latin1);
    SET p_ms = 0;
    IF LENGTH(v_id) = 36 AND v_id REGEXP CONCAT('^[0-9a-f]{8}-[0-9a-f]{4}-7',
        '[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$') THEN
        SET p_ms = CONV(CONCAT(SUBSTR(v_id, 1, 8), SUBSTR(v_id, 10, 4)), 16, 10);
    END IF;
END
//

-- 1 if an id's own time is before what is remembered; an id without a time never
-- is. It is asked behind the INSERT: a plain SELECT before it would fix what a
-- REPEATABLE READ transaction sees, and then the INSERT might wait. A SELECT within
-- a SET would lock the row up to COMMIT, and a purge would wait.
/*!80000 DROP PROCEDURE IF EXISTS once_old_1 */
//
@create@ PROCEDURE once_old_1(p_ms BIGINT, OUT p_old TINYINT)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_now BIGINT DEFAULT
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;
    DECLARE v_old TINYINT;
    SET p_old = 0;
    IF p_ms > 0 THEN
        SELECT p_ms < GREATEST(v_now - keep_ms, floor_ms) INTO v_old
            FROM once_message_meta;
        IF v_old IS NULL THEN
            SIGNAL SQLSTATE 'ON003' SET MESSAGE_TEXT =
                'once_message_meta lacks its row: run once messages init';
        END IF;
        SET p_old = v_old;
    END IF;
END
//

-- Takes a parked message out with its claim; keep_ms counts from the effect.
/*!80000 DROP PROCEDURE IF EXISTS once_unpark_1 */
//
@create@ PROCEDURE once_unpark_1(p_consumer VARBINARY(255),
    p_id VARBINARY(255), p_attempt BIGINT, p_token VARBINARY(16),
    OUT p_taken TINYINT)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    SET p_taken = 0;
    IF p_attempt > 0 THEN
        @wait@ DELETE FROM once_parked WHERE consumer = p_consumer
            AND id = p_id AND attempts = p_attempt;
        SET p_taken = ROW_COUNT() > 0;
    END IF;
    IF p_taken THEN
        @wait@ UPDATE once_inbox SET token = p_token, at_ms = GREATEST(at_ms,
                TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)
            WHERE consumer = p_consumer AND id = p_id;
    END IF;
END
//

-- The INSERT decides: `p_there` is 1 if the row was there before. A row of an id
-- that is old goes again.
/*!80000 DROP PROCEDURE IF EXISTS once_file_1 */
//
@create@ PROCEDURE once_file_1(p_consumer VARBINARY(255), p_id VARBINARY(255),
    p_fingerprint VARBINARY(32), p_kind TINYINT, p_token VARBINARY(16),
    OUT p_there TINYINT, OUT p_old TINYINT)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_now BIGINT DEFAULT
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;
    DECLARE v_ms BIGINT;
    SET p_there = 0, p_old = 0;
    CALL once_id_ms_1(p_id, v_ms);
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1062 SET p_there = 1;
        @wait@ INSERT INTO once_inbox
                (consumer, id, at_ms, fingerprint, kind, token)
            VALUES (p_consumer, p_id, GREATEST(v_now, v_ms), p_fingerprint,
                p_kind, p_token);
    END;
    IF p_there = 0 THEN
        CALL once_old_1(v_ms, p_old);
    END IF;
    IF p_old THEN
        DELETE FROM once_inbox WHERE consumer = p_consumer AND id = p_id;
    END IF;
END
//

-- done or mismatch: what the row that was there means.
/*!80000 DROP PROCEDURE IF EXISTS once_explain_1 */
//
@create@ PROCEDURE once_explain_1(p_consumer VARBINARY(255),
    p_id VARBINARY(255), p_fingerprint VARBINARY(32),
    OUT p_answer VARCHAR(16) CHARACTER SET ascii)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_was VARBINARY(32);
    DECLARE v_kind TINYINT;
    @wait@ SELECT kind, fingerprint INTO v_kind, v_was FROM once_inbox
        WHERE consumer = p_consumer AND id = p_id LOCK IN SHARE MODE;
    IF v_kind IS NULL THEN
        SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213,
            MESSAGE_TEXT = 'the row has gone';
    END IF;
    IF v_kind = 0 THEN
        SIGNAL SQLSTATE 'ON017' SET MESSAGE_TEXT =
            'this call was begun and not finished: here, or it was committed so';
    END IF;
    SET p_answer = IF(v_was <> p_fingerprint, 'mismatch', 'done');
    CALL once_touch_1();
END
//

-- Claims (consumer, id), whose limits the caller has checked. p_kind: 0 for a
-- call, 1 for a message. The savepoint shows later that this transaction has not
-- ended; there is no other way to see that.
/*!80000 DROP PROCEDURE IF EXISTS once_claim_1 */
//
@create@ PROCEDURE once_claim_1(p_consumer VARBINARY(255), p_id VARBINARY(255),
    p_fingerprint LONGBLOB, p_attempt BIGINT, p_kind TINYINT,
    OUT p_answer VARCHAR(16) CHARACTER SET ascii, OUT p_token VARBINARY(16))
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_token VARBINARY(16) DEFAULT
        UNHEX(LEFT(SHA2(CONCAT(UUID(), ' ', RAND()), 256), 32));
    DECLARE v_taken, v_there, v_old TINYINT DEFAULT 0;
    IF LENGTH(p_fingerprint) <> 32 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'fingerprint: it is not 32 bytes';
    END IF;
    IF p_attempt < 0 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'attempt: it is not a count';
    END IF;
    CALL once_open_1();
    CALL once_unpark_1(p_consumer, p_id, p_attempt, v_token, v_taken);
    IF NOT v_taken THEN
        CALL once_file_1(p_consumer, p_id, p_fingerprint, p_kind, v_token,
            v_there, v_old);
    END IF;
    IF v_old THEN
        SET p_answer = 'outside';
    ELSEIF v_there THEN
        CALL once_explain_1(p_consumer, p_id, p_fingerprint, p_answer);
    ELSE
        SET p_answer = 'run', p_token = v_token, @once_claimed = v_token;
        SAVEPOINT once_claimed;
    END IF;
END
//

-- Claims (consumer, id) in the caller's transaction. Call it first, before the
-- effect, and never inside a savepoint: ROLLBACK TO would take the claim away and
-- leave what came after unguarded.
--
--    run       do it, commit, acknowledge
--    done      the effect is committed, or the message is parked: commit,
--              acknowledge
--    mismatch  the id is known with another body
--    outside   the id's own time is before what is remembered
--
-- p_attempt: 0 for a message that arrived; for a parked message its count, and
-- the parked row is taken out with the claim.
/*!80000 DROP PROCEDURE IF EXISTS once_inbox_claim */
//
@create@ PROCEDURE once_inbox_claim(p_consumer LONGBLOB, p_id LONGBLOB,
    p_fingerprint LONGBLOB, p_attempt BIGINT)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_answer VARCHAR(16) CHARACTER SET ascii;
    DECLARE v_token VARBINARY(16);
    DECLARE EXIT HANDLER FOR 1205 SIGNAL SQLSTATE '55P03' SET MYSQL_ERRNO = 1205,
        MESSAGE_TEXT = 'another copy is under way, or a row is locked';
    CALL once_check_1('consumer', p_consumer);
    CALL once_check_1('id', p_id);
    CALL once_claim_1(p_consumer, p_id, p_fingerprint, COALESCE(p_attempt, 0),
        1, v_answer, v_token);
    SELECT v_answer AS answer;
END
//

-- ON014 if this transaction has claimed (consumer, id). It has if the row has the
-- token of this session's last claim, whose savepoint is still there.
/*!80000 DROP PROCEDURE IF EXISTS once_apart_1 */
//
@create@ PROCEDURE once_apart_1(p_consumer VARBINARY(255), p_id VARBINARY(255))
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_own TINYINT;
    SET v_own = (SELECT COUNT(*) FROM once_inbox WHERE consumer = p_consumer
        AND id = p_id AND token = @once_claimed LOCK IN SHARE MODE);
    IF v_own THEN
        BEGIN
            DECLARE CONTINUE HANDLER FOR 1305 SET v_own = 0;
            RELEASE SAVEPOINT once_claimed;
        END;
    END IF;
    IF v_own THEN
        SIGNAL SQLSTATE 'ON014' SET MESSAGE_TEXT =
            'it was claimed in this transaction: ROLLBACK first';
    END IF;
END
//

-- Keeps a message whose handler has not finished: after the handler's rollback,
-- in a transaction of its own. p_state: 1 it will run again in p_wait_ms, 3 it is
-- dead, 4 its outcome is not known. p_key only if the consumer keeps order.
-- parked, or done: its effect is committed or it was parked before.
/*!80000 DROP PROCEDURE IF EXISTS once_inbox_park */
//
@create@ PROCEDURE once_inbox_park(p_consumer LONGBLOB, p_id LONGBLOB,
    p_fingerprint LONGBLOB, p_state BIGINT, p_wait_ms BIGINT, p_key LONGBLOB,
    p_type LONGBLOB, p_headers LONGBLOB, p_body LONGBLOB, p_error LONGBLOB)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_was, v_answer VARCHAR(16) CHARACTER SET ascii;
    DECLARE v_token VARBINARY(16);
    DECLARE v_now BIGINT;
    DECLARE v_size INT DEFAULT 255;
    DECLARE v_there TINYINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR 1205 SIGNAL SQLSTATE '55P03' SET MYSQL_ERRNO = 1205,
        MESSAGE_TEXT = 'another copy is under way, or a row is locked';
    CALL once_check_1('consumer', p_consumer);
    CALL once_check_1('id', p_id);
    IF p_key IS NOT NULL THEN
        CALL once_check_1('key', p_key);
    END IF;
    IF COALESCE(p_state NOT IN (1, 3, 4), 1) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'state: it is not 1, 3 or 4';
    END IF;
    IF COALESCE(p_wait_ms NOT BETWEEN 0 AND 9007199254740991, 1) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'wait_ms: it is not 0 to 9007199254740991';
    END IF;
    CALL once_content_1(COALESCE(p_type, ''), COALESCE(p_headers, ''), p_body);
    CALL once_claim_1(p_consumer, p_id, p_fingerprint, 0, 1, v_was, v_token);
    IF v_was = 'done' THEN
        CALL once_apart_1(p_consumer, p_id);
        SET v_answer = 'done';
    ELSE
        WHILE ASCII(SUBSTR(p_error, v_size + 1, 1)) BETWEEN 128 AND 191 DO
            SET v_size = v_size - 1;
        END WHILE;
        SET v_now =
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;
        BEGIN
            DECLARE CONTINUE HANDLER FOR 1062 SET v_there = 1;
            @wait@ INSERT INTO once_parked (consumer, id, state, due_ms, at_ms,
                    `key`, type, headers, body, error, filed)
                VALUES (p_consumer, IF(v_was = 'mismatch', CONCAT(p_id, '#',
                    LOWER(HEX(p_fingerprint))), p_id),
                    IF(v_was = 'run', p_state, 3), v_now + p_wait_ms, v_now,
                    p_key, COALESCE(p_type, ''), COALESCE(p_headers, ''), p_body,
                    IF(v_was = 'run', COALESCE(LEFT(p_error, v_size), ''), v_was),
                    v_was = 'run');
        END;
        IF v_there THEN
            CALL once_touch_1();
        END IF;
        SET v_answer = 'parked';
    END IF;
    SELECT v_answer AS answer;
END
//

-- A call in the caller's transaction: the inbox with a result.
--
--    run       do it, then once_finish() with this token, then commit
--    replay    `kind` and `result` are those of the first call: commit
--    repeated  it was committed without a result, as a message is: commit
--    mismatch, outside: as once_inbox_claim()
--
-- A call that was begun and committed without once_finish() may have had its
-- effect, or not. It is an error (ON017) for each repeat: nothing runs twice.
/*!80000 DROP PROCEDURE IF EXISTS once_begin */
//
@create@ PROCEDURE once_begin(p_consumer LONGBLOB, p_key LONGBLOB,
    p_fingerprint LONGBLOB)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_answer VARCHAR(16) CHARACTER SET ascii;
    DECLARE v_token VARBINARY(16);
    DECLARE v_kind INT;
    DECLARE v_result LONGBLOB;
    DECLARE EXIT HANDLER FOR 1205 SIGNAL SQLSTATE '55P03' SET MYSQL_ERRNO = 1205,
        MESSAGE_TEXT = 'another copy is under way, or a row is locked';
    CALL once_check_1('consumer', p_consumer);
    CALL once_check_1('key', p_key);
    CALL once_claim_1(p_consumer, p_key, p_fingerprint, 0, 0, v_answer, v_token);
    IF v_answer = 'done' THEN
        SELECT kind, result INTO v_kind, v_result FROM once_inbox
            WHERE consumer = p_consumer AND id = p_key LOCK IN SHARE MODE;
        SET v_answer = IF(v_result IS NULL, 'repeated', 'replay');
    END IF;
    SELECT v_answer AS answer, v_kind AS kind, v_result AS result,
        v_token AS token;
END
//

-- Records what the call came to: kind 1 a success, 2 a failure that repeats are
-- given. ok, or none: this transaction has no such call under way; then roll back,
-- since the effect is unguarded. Savepoints that were set behind once_begin() and
-- are still there are gone behind it.
/*!80000 DROP PROCEDURE IF EXISTS once_finish */
//
@create@ PROCEDURE once_finish(p_consumer LONGBLOB, p_key LONGBLOB,
    p_token LONGBLOB, p_kind BIGINT, p_result LONGBLOB)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_here TINYINT DEFAULT 1;
    DECLARE EXIT HANDLER FOR 1205 SIGNAL SQLSTATE '55P03' SET MYSQL_ERRNO = 1205,
        MESSAGE_TEXT = 'another copy is under way, or a row is locked';
    CALL once_check_1('consumer', p_consumer);
    CALL once_check_1('key', p_key);
    IF COALESCE(LENGTH(p_token) <> 16, 1) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'token: it is not 16 bytes';
    END IF;
    IF COALESCE(p_kind NOT IN (1, 2), 1) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'kind: it is not 1 or 2';
    END IF;
    IF p_result IS NULL OR LENGTH(p_result) > 67108864 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'result: it is missing, or larger than 67108864 bytes';
    END IF;
    CALL once_open_1();
    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET v_here = 0;
        RELEASE SAVEPOINT once_claimed;
    END;
    IF v_here THEN
        SAVEPOINT once_claimed;
        @wait@ UPDATE once_inbox SET kind = p_kind, result = p_result
            WHERE consumer = p_consumer AND id = p_key AND kind = 0
                AND token = p_token;
        SET v_here = ROW_COUNT() = 1;
    END IF;
    SELECT IF(v_here, 'ok', 'none') AS answer;
END
//

-- Raises ON010 unless (route, id) is kept with this body.
/*!80000 DROP PROCEDURE IF EXISTS once_emitted_1 */
//
@create@ PROCEDURE once_emitted_1(p_route VARBINARY(255), p_id VARBINARY(255),
    p_fingerprint VARBINARY(32))
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_was VARBINARY(32);
    SELECT fingerprint INTO v_was FROM once_outbox
        WHERE route = p_route AND kept_id = p_id LOCK IN SHARE MODE;
    IF v_was IS NULL THEN
        SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213,
            MESSAGE_TEXT = 'the row has gone';
    END IF;
    IF v_was <> p_fingerprint THEN
        SIGNAL SQLSTATE 'ON010' SET MESSAGE_TEXT =
            'id: it was emitted before with another body';
    END IF;
    CALL once_touch_1();
END
//

-- Writers of one key wait for each other up to COMMIT.
/*!80000 DROP PROCEDURE IF EXISTS once_order_1 */
//
@create@ PROCEDURE once_order_1(p_route VARBINARY(255), p_key VARBINARY(255))
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_slot SMALLINT;
    SELECT slot INTO v_slot FROM once_lock
        WHERE slot = CRC32(CONCAT(p_route, ' ', p_key)) & 1023 FOR UPDATE;
    IF v_slot IS NULL THEN
        SIGNAL SQLSTATE 'ON003' SET MESSAGE_TEXT =
            'once_lock lacks a row: run once messages init';
    END IF;
END
//

-- Writes a message to the outbox in the caller's transaction. The id, drawn if
-- none is given; NULL: this id was emitted before with the same body. p_due_ms:
-- not before. p_keep: the row and its answer stay when it is done.
/*!80000 DROP PROCEDURE IF EXISTS once_emit */
//
@create@ PROCEDURE once_emit(p_route LONGBLOB, p_body LONGBLOB, p_key LONGBLOB,
    p_id LONGBLOB, p_type LONGBLOB, p_headers LONGBLOB, p_due_ms BIGINT,
    p_keep TINYINT)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_kept TINYINT DEFAULT p_id IS NOT NULL OR COALESCE(p_keep, 0) <> 0;
    DECLARE v_now BIGINT;
    DECLARE v_id VARCHAR(255) CHARACTER SET ascii;
    DECLARE v_time, v_drawn VARCHAR(64) CHARACTER SET ascii;
    DECLARE v_fingerprint VARBINARY(32);
    DECLARE EXIT HANDLER FOR 1205 SIGNAL SQLSTATE '55P03' SET MYSQL_ERRNO = 1205,
        MESSAGE_TEXT = 'another copy is under way, or a row is locked';
    CALL once_check_1('route', p_route);
    IF p_key IS NOT NULL THEN
        CALL once_check_1('key', p_key);
    END IF;
    IF p_id IS NOT NULL THEN
        CALL once_check_1('id', p_id);
    END IF;
    CALL once_content_1(COALESCE(p_type, ''), COALESCE(p_headers, ''), p_body);
    IF p_due_ms < 0 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'due_ms: it is below 0';
    END IF;
    CALL once_open_1();
    IF p_key IS NOT NULL THEN
        CALL once_order_1(p_route, p_key);
    END IF;
    SET v_now =
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;
    IF p_id IS NULL THEN
        SET v_time = LPAD(LOWER(HEX(v_now)), 12, '0'),
            v_drawn = SHA2(CONCAT(UUID(), ' ', RAND()), 256);
        SET v_id = CONCAT(LEFT(v_time, 8), '-', RIGHT(v_time, 4), '-7',
            LEFT(v_drawn, 3), '-', ELT(1 + (CONV(RIGHT(v_drawn, 1), 16, 10) & 3),
            '8', '9', 'a', 'b'), SUBSTR(v_drawn, 4, 3), '-', SUBSTR(v_drawn, 7, 12));
    ELSE
        SET v_id = p_id;
    END IF;
    IF v_kept THEN
        SET v_fingerprint = UNHEX(SHA2(p_body, 256));
    END IF;
    BEGIN
        DECLARE EXIT HANDLER FOR 1062 BEGIN
            CALL once_emitted_1(p_route, v_id, v_fingerprint);
            SET v_id = NULL;
        END;
        INSERT INTO once_outbox (phase, kept, due_ms, at_ms, route, id, `key`,
                type, headers, body, fingerprint)
            VALUES (COALESCE(p_due_ms, 0) > v_now, v_kept, COALESCE(p_due_ms, 0),
                v_now, p_route, v_id, p_key, COALESCE(p_type, ''),
                COALESCE(p_headers, ''), p_body, v_fingerprint);
    END;
    SELECT v_id AS id;
END
//

-- Writes a branch that has no row. `p_there`: it had one.
/*!80000 DROP PROCEDURE IF EXISTS once_branch_1 */
//
@create@ PROCEDURE once_branch_1(p_gid VARBINARY(255), p_branch VARBINARY(255),
    p_phase TINYINT, p_ms BIGINT, OUT p_there TINYINT)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE CONTINUE HANDLER FOR 1062 SET p_there = 1;
    SET p_there = 0;
    @wait@ INSERT INTO once_barrier (gid, branch, phase, at_ms)
        VALUES (p_gid, p_branch, p_phase, GREATEST(p_ms,
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000));
END
//

-- Confirms or cancels a branch that was tried, and is neither yet.
/*!80000 DROP PROCEDURE IF EXISTS once_move_1 */
//
@create@ PROCEDURE once_move_1(p_gid VARBINARY(255), p_branch VARBINARY(255),
    p_phase TINYINT, OUT p_moved TINYINT)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    @wait@ UPDATE once_barrier SET phase = p_phase, at_ms = GREATEST(at_ms,
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)
        WHERE gid = p_gid AND branch = p_branch AND phase = 1;
    SET p_moved = ROW_COUNT() = 1;
END
//

-- What a branch that was not written means for this op.
/*!80000 DROP PROCEDURE IF EXISTS once_stands_1 */
//
@create@ PROCEDURE once_stands_1(p_gid VARBINARY(255), p_branch VARBINARY(255),
    p_op VARCHAR(8) CHARACTER SET ascii,
    OUT p_answer VARCHAR(16) CHARACTER SET ascii)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_phase TINYINT;
    @wait@ SELECT phase INTO v_phase FROM once_barrier
        WHERE gid = p_gid AND branch = p_branch LOCK IN SHARE MODE;
    IF v_phase IS NULL AND p_op <> 'confirm' THEN
        SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213,
            MESSAGE_TEXT = 'the row has gone';
    END IF;
    SET p_answer = CASE
        WHEN v_phase IS NULL THEN 'early'
        WHEN p_op = 'try' THEN IF(v_phase < 3, 'done', 'refused')
        WHEN p_op = 'confirm' THEN IF(v_phase = 2, 'done', 'conflict')
        ELSE IF(v_phase > 2, 'done', 'conflict') END;
    IF v_phase IS NOT NULL THEN
        CALL once_touch_1();
    END IF;
END
//

-- Enters a branch's Try, Confirm or Cancel: first in the branch's transaction.
--
--    run       do it and commit
--    done      it was done before: commit, answer as before
--    empty     Cancel before any Try: nothing to undo; commit, so that a late Try
--              is refused
--    refused   Try after Cancel, or Try of a gid that is too old: its barrier may
--              have been purged
--    early     Confirm before Try: ask again later
--    conflict  Confirm after Cancel, or Cancel after Confirm
/*!80000 DROP PROCEDURE IF EXISTS once_barrier_enter */
//
@create@ PROCEDURE once_barrier_enter(p_gid LONGBLOB, p_branch LONGBLOB,
    p_op LONGBLOB)
SQL SECURITY DEFINER COMMENT 'once 2'
BEGIN
    DECLARE v_answer VARCHAR(16) CHARACTER SET ascii;
    DECLARE v_there, v_moved, v_old TINYINT DEFAULT 0;
    DECLARE v_ms BIGINT;
    DECLARE EXIT HANDLER FOR 1205 SIGNAL SQLSTATE '55P03' SET MYSQL_ERRNO = 1205,
        MESSAGE_TEXT = 'another copy is under way, or a row is locked';
    CALL once_check_1('gid', p_gid);
    CALL once_check_1('branch', p_branch);
    IF COALESCE(p_op NOT IN ('try', 'confirm', 'cancel'), 1) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'op: it is not try, confirm or cancel';
    END IF;
    CALL once_open_1();
    CALL once_id_ms_1(p_gid, v_ms);
    IF p_op = 'try' THEN
        CALL once_branch_1(p_gid, p_branch, 1, v_ms, v_there);
        IF NOT v_there THEN
            CALL once_old_1(v_ms, v_old);
            SET v_answer = IF(v_old, 'refused', 'run');
        END IF;
        IF v_old THEN
            DELETE FROM once_barrier WHERE gid = p_gid AND branch = p_branch;
        END IF;
    ELSE
        CALL once_move_1(p_gid, p_branch, IF(p_op = 'confirm', 2, 3), v_moved);
        IF NOT v_moved AND p_op = 'cancel' THEN
            CALL once_branch_1(p_gid, p_branch, 4, v_ms, v_there);
            SET v_answer = IF(v_there, NULL, 'empty');
            IF v_there THEN
                CALL once_move_1(p_gid, p_branch, 3, v_moved);
            END IF;
        END IF;
        SET v_answer = IF(v_moved, 'run', v_answer);
    END IF;
    IF v_answer IS NULL THEN
        CALL once_stands_1(p_gid, p_branch, p_op, v_answer);
    END IF;
    SELECT v_answer AS answer;
END
//

DELIMITER ;

SET SESSION sql_mode = @once_mode,
    character_set_client = @once_client,
    character_set_results = @once_results,
    collation_connection = @once_collation;
