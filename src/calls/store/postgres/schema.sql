-- SPDX-License-Identifier: Apache-2.0
--
-- schema.sql - the tables and functions of the store `postgres://`, version 2.
--
-- `once init` runs this text, `once init --print` shows it. It is one
-- transaction, it may be run again at any time, and running it again brings the
-- functions up to date. It refuses a schema that another version has made, and
-- one that is divided into another number of partitions.
--
-- Gateways call functions and nothing else. These run with their owner's rights
-- (SECURITY DEFINER), so a gateway's role needs USAGE on the schema and EXECUTE
-- on the functions, and cannot touch a table. Two are for the owner alone and
-- run with the caller's rights: head_put_1 and import_1.
--
-- How a batch is decided (apply_1). The client decides what an operation means:
-- it is shown the record as it was, and runs the same code as every store. What
-- is written here is which operations change a record, and into what:
--
--    seen      all records of the batch, in one snapshot, and what is to be done
--    fresh     claims of absent names are inserted. Order: name
--    held      records to be changed are locked, as they were seen. One that
--              changed since, or that is locked, is left out
--    changed   and changed
--
-- `held` asks for the place of a row twice, the second time with IS TRUE: minor
-- releases of PostgreSQL before the repair of TID scans (reported in September
-- 2025; 15.18 has it) do not look at the first one again when the row has changed
-- and the new version of it is locked.
--
-- `held` shows only which operations have their lock. Rows are wide, and each step
-- that hands them on copies them: a join in an UPDATE or under FOR UPDATE keeps a
-- second copy of each row as a whole. It needs no order, since it waits for no
-- one.
--
-- An operation that is missing in the answer met another session: the client
-- asks again. No call waits for a locked row here; only `fresh` waits, for a
-- claim of the same name that is not committed yet. Those who wait hold nothing
-- but names that no other can see and that are smaller: there is no deadlock.
-- An answer without a change takes no lock, writes nothing and waits for no
-- disk.
--
-- While `fresh` waits, the other's claim may be committed, completed and even
-- forgotten; then ours would go through with an old time and a fence that is
-- smaller than the forgotten one. A forgotten name whose record was that young
-- leaves a row in `swept`, and a claim that finds one there which it could not
-- see when it began takes all back (40001) and is asked again.
--
-- Why two partial indexes instead of one on a column that completing leaves
-- alone: that one would hold every completed record between the end of its
-- first lease and its retention, and each look for expired leases would
-- walk over all of them.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;

-- Two that run this at once: the second waits here, and finds all there.
DO $do$
BEGIN
    PERFORM pg_advisory_xact_lock(8028075772693119860);
END
$do$;

DO $do$
BEGIN
    -- Not IF NOT EXISTS: that asks for a right that is not needed.
    IF to_regnamespace('"@schema@"') IS NULL THEN
        CREATE SCHEMA "@schema@";
    END IF;
END
$do$;

CREATE TABLE IF NOT EXISTS "@schema@".meta (
    one boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    partitions integer NOT NULL,
    -- The store's head: see <once/once.h>.
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    incarnation integer NOT NULL DEFAULT 0,
    gap smallint NOT NULL DEFAULT 0,
    gap_from_ms bigint NOT NULL DEFAULT 0,
    gap_until_ms bigint NOT NULL DEFAULT 0
);

DO $do$
BEGIN
    IF EXISTS (SELECT FROM "@schema@".meta WHERE version <> 2) THEN
        RAISE EXCEPTION 'the schema is of another version'
            USING ERRCODE = 'ON002';
    END IF;
    IF EXISTS (SELECT FROM "@schema@".meta WHERE partitions <> @partitions@) THEN
        RAISE EXCEPTION 'the table has another number of partitions'
            USING ERRCODE = 'ON003';
    END IF;
END
$do$;

-- Numbers of states, kinds, policies and reasons are those of <once/once.h>.
-- Times are milliseconds since 1970. `grp` and `subject` have no trailing NUL
-- bytes.
DO $do$
DECLARE
    storage constant text := 'WITH (fillfactor = 70,'
        ' autovacuum_vacuum_scale_factor = 0.02,'
        ' autovacuum_analyze_scale_factor = 0.05)';
    shape constant text := '('
        'fence bigint NOT NULL,'
        'lease_ms bigint NOT NULL,'
        'keep_ms bigint NOT NULL,'
        'granted_ms bigint NOT NULL,'
        'created_ms bigint NOT NULL,'
        'ended_ms bigint NOT NULL,'
        'attempt integer NOT NULL,'
        'version smallint NOT NULL,'
        'state smallint NOT NULL,'
        'kind smallint NOT NULL,'
        'policy smallint NOT NULL,'
        'doubt smallint NOT NULL,'
        'reason smallint NOT NULL,'
        'token uuid NOT NULL,'
        'trace uuid NOT NULL,'
        'name bytea NOT NULL PRIMARY KEY,'
        'fingerprint bytea NOT NULL,'
        'subject bytea NOT NULL,'
        'grp bytea NOT NULL,'
        'label bytea NOT NULL,'
        'note bytea NOT NULL,'
        'body bytea NOT NULL)';
BEGIN
    IF to_regclass('"@schema@".record') IS NOT NULL THEN
        RETURN;
    END IF;
    IF @partitions@ = 0 THEN
        EXECUTE 'CREATE TABLE "@schema@".record ' || shape || storage;
    ELSE
        EXECUTE 'CREATE TABLE "@schema@".record ' || shape ||
            ' PARTITION BY HASH (name)';
    END IF;
    -- A result is incompressible or short; compressing costs more than it saves.
    ALTER TABLE "@schema@".record ALTER body SET STORAGE EXTERNAL;
    FOR i IN 0 .. @partitions@ - 1 LOOP
        EXECUTE format('CREATE TABLE "@schema@".record_%s PARTITION OF '
            '"@schema@".record FOR VALUES WITH (MODULUS @partitions@, '
            'REMAINDER %s) %s', i, i, storage);
    END LOOP;
    CREATE INDEX record_lease ON "@schema@".record (lease_ms)
        WHERE state IN (1, 2);
    CREATE INDEX record_keep ON "@schema@".record (keep_ms)
        WHERE state IN (0, 3);
    CREATE INDEX record_waiting ON "@schema@".record (ended_ms, name)
        WHERE state = 4;
END
$do$;

-- CACHE 1: a fence must be larger than the last one of its name, and sessions
-- that draw ahead would break that.
CREATE SEQUENCE IF NOT EXISTS "@schema@".fence AS bigint CACHE 1;

-- Names that were forgotten within an hour of their last grant, by which
-- transaction. Empty where retention is longer than that. See apply_1().
CREATE TABLE IF NOT EXISTS "@schema@".swept (
    name bytea NOT NULL,
    xid xid8 NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS swept_name ON "@schema@".swept (name);

-- What was seen of the time: see seen_1(). At most one row.
CREATE TABLE IF NOT EXISTS "@schema@".clock (
    one boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    seen_ms bigint NOT NULL,
    steady_ms bigint NOT NULL,
    host bytea NOT NULL,
    backs bigint NOT NULL
);

INSERT INTO "@schema@".meta (version, partitions) VALUES (2, @partitions@)
    ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION "@schema@".about() RETURNS TABLE (
    version integer, partitions integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT m.version, m.partitions FROM "@schema@".meta m;
$f$;

-- 1 if the row can have been made by these functions: once__record_sane().
CREATE OR REPLACE FUNCTION "@schema@".sane(r "@schema@".record) RETURNS boolean
LANGUAGE sql STABLE
AS $f$
    SELECT r.version = 2 AND r.attempt > 0 AND r.fence > 0
        AND r.state BETWEEN 0 AND 4 AND r.kind BETWEEN 0 AND 2
        AND r.policy BETWEEN 0 AND 3 AND r.doubt BETWEEN 0 AND 1
        AND (r.kind <> 0) = (r.state = 3)
        AND (r.lease_ms <> 0) = (r.state IN (1, 2))
        AND (r.state = 3 OR octet_length(r.body) = 0)
        AND (r.state <> 0 OR r.doubt = 0)
        AND r.lease_ms >= 0 AND r.keep_ms >= 0 AND r.granted_ms >= 0
        AND r.created_ms >= 0 AND r.ended_ms >= 0
        AND r.reason BETWEEN 0 AND @reasons@
        AND (r.state NOT IN (1, 2) OR (r.ended_ms = 0 AND r.reason = 0))
        AND octet_length(r.name) = 32 AND octet_length(r.fingerprint) = 32
        AND octet_length(r.grp) <= 32 AND octet_length(r.subject) <= 8
        AND octet_length(r.label) <= 128 AND octet_length(r.note) <= 1024
        AND octet_length(r.body) <= 67108864;
$f$;

-- What this session must not be for an answer to count.
CREATE OR REPLACE FUNCTION "@schema@".guard(p_async boolean) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'a standby' USING ERRCODE = '25006';
    END IF;
    IF NOT p_async AND (current_setting('synchronous_commit') = 'off'
        OR current_setting('synchronous_commit') = 'local'
            AND current_setting('synchronous_standby_names') <> '') THEN
        RAISE EXCEPTION 'asynchronous commit' USING ERRCODE = 'ON001';
    END IF;
END
$f$;

-- What an operation does to a record: 0 nothing, or
--    1 grant         2 make indeterminate   3 dispatch   4 renew
--    5 complete      6 make absent          7 resolve    8 reopen
--    9 forget       10 cut the lease
-- The rows of docs/protocol.md, section 5, in which the record changes.
CREATE OR REPLACE FUNCTION "@schema@".act(r "@schema@".record, v_now bigint,
    verb smallint, token uuid, fence bigint, policy smallint,
    fingerprint bytea) RETURNS integer
LANGUAGE sql STABLE
AS $f$
    SELECT CASE
    WHEN r.state IN (1, 2) AND verb IN (1, 8)
        AND r.lease_ms > v_now + 3600000 THEN 10
    WHEN verb = 1 THEN CASE
        WHEN r.token = token THEN 0
        WHEN r.state = 0 THEN 1
        WHEN r.fingerprint <> fingerprint THEN 0
        WHEN r.state = 3 THEN CASE
            WHEN r.kind = 2 AND r.policy & policy & 2 <> 0
                AND (r.policy & policy & 1 <> 0 OR r.doubt = 0) THEN 1
            ELSE 0 END
        WHEN r.state <> 4 AND v_now < r.lease_ms THEN 0
        WHEN r.policy & policy & 1 <> 0 THEN 1
        WHEN r.state = 1 AND r.doubt = 0 THEN 1
        WHEN r.state = 4 THEN 0
        ELSE 2 END
    WHEN verb IN (2, 3) THEN CASE
        WHEN r.state IN (1, 2) AND r.token = token AND r.fence = fence
            THEN verb + 1
        ELSE 0 END
    WHEN verb = 4 THEN CASE
        WHEN r.state IN (1, 2, 4) AND r.token = token AND r.fence = fence
            THEN 5
        ELSE 0 END
    WHEN verb = 5 THEN CASE
        WHEN r.state NOT IN (1, 2, 4) OR r.token <> token
            OR (fence <> 0 AND r.fence <> fence) THEN 0
        WHEN r.doubt = 0 THEN 6
        WHEN r.state = 4 AND r.reason = 6 THEN 0
        ELSE 2 END
    WHEN verb = 6 THEN CASE
        WHEN r.state IN (1, 2) AND r.token = token AND r.fence = fence
            THEN 2
        ELSE 0 END
    WHEN verb = 8 THEN CASE
        WHEN r.state NOT IN (1, 2) OR v_now < r.lease_ms THEN 0
        WHEN r.state = 1 AND r.doubt = 0 THEN 6
        ELSE 2 END
    WHEN verb = 9 THEN CASE
        WHEN r.state = 4 AND r.fence = fence THEN 7 ELSE 0 END
    WHEN verb = 10 THEN CASE
        WHEN r.state = 4 AND r.fence = fence AND r.policy & 1 <> 0 THEN 8
        ELSE 0 END
    WHEN verb = 11 THEN CASE
        WHEN r.state IN (0, 3) AND v_now >= r.keep_ms
            AND (fence = 0 OR r.fence = fence) THEN 9
        ELSE 0 END
    ELSE 0 END;
$f$;

-- One record, as it was before the operation; all NULL if there was none.
DO $do$
BEGIN
    IF to_regtype('"@schema@".answer') IS NULL THEN
        CREATE TYPE "@schema@".answer AS (
            name bytea,
            did integer,        -- what act() said
            now_ms bigint,
            granted bigint,     -- the fence of a grant
            version smallint, state smallint, kind smallint, policy smallint,
            doubt smallint, reason smallint, attempt integer, fence bigint,
            lease_ms bigint, keep_ms bigint, granted_ms bigint,
            created_ms bigint, ended_ms bigint, token uuid, trace uuid,
            fingerprint bytea, subject bytea, grp bytea, label bytea,
            note bytea, size integer, body bytea);
    END IF;
END
$do$;

-- A batch without FORGET; each name at most once, in the order of the names.
-- p_now      NULL, or the time
-- p_async    this session may commit asynchronously
-- p_grant    false: the disk is full, change what takes no room
-- p_lock_ms  how long to wait for a session that inserts the same name
-- p_inline   a longer body is not shown: body_1() fetches it
CREATE OR REPLACE FUNCTION "@schema@".apply_1(p_now bigint, p_async boolean,
    p_grant boolean, p_lock_ms integer, p_inline integer, p_verb smallint[],
    p_name bytea[], p_token uuid[], p_fence bigint[], p_kind smallint[],
    p_policy smallint[], p_state smallint[], p_lease bigint[],
    p_keep bigint[], p_reason smallint[], p_trace uuid[],
    p_fingerprint bytea[], p_subject bytea[], p_grp bytea[], p_label bytea[],
    p_result bytea[], p_note bytea[])
RETURNS SETOF "@schema@".answer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 64
SET search_path = pg_catalog, pg_temp
-- The plan is made once, by sessions that saw an empty table as well.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $f$
DECLARE
    v_began pg_snapshot := pg_current_snapshot();
    v_now bigint := coalesce(p_now,
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
BEGIN
    PERFORM "@schema@".guard(p_async),
        set_config('lock_timeout', p_lock_ms::text, true);
    RETURN QUERY
    WITH seen AS MATERIALIZED (
        SELECT o.*, r.ctid AS at, r.version, r.state, r.kind, r.policy,
            r.doubt, r.reason, r.attempt, r.fence, r.lease_ms, r.keep_ms,
            r.granted_ms, r.created_ms, r.ended_ms, r.token, r.trace,
            r.fingerprint, r.subject, r.grp, r.label, r.note,
            octet_length(r.body) AS size,
            CASE WHEN octet_length(r.body) <= p_inline THEN r.body END AS body,
            CASE WHEN r.name IS NULL OR NOT "@schema@".sane(r) THEN 0
            ELSE "@schema@".act(r, v_now, o.o_verb, o.o_token, o.o_fence,
                o.o_policy, o.o_fingerprint) END AS did
        FROM unnest(p_verb, p_name, p_token, p_fence, p_kind, p_policy,
            p_state, p_lease, p_keep, p_reason, p_trace, p_fingerprint,
            p_subject, p_grp, p_label, p_result, p_note)
            WITH ORDINALITY AS o(o_verb, o_name, o_token, o_fence, o_kind,
            o_policy, o_state, o_lease, o_keep, o_reason, o_trace,
            o_fingerprint, o_subject, o_grp, o_label, o_result, o_note, o_n)
        LEFT JOIN "@schema@".record r ON r.name = o.o_name
    ), fresh AS (
        INSERT INTO "@schema@".record AS r (fence, lease_ms, keep_ms,
            granted_ms, created_ms, ended_ms, attempt, version, state, kind,
            policy, doubt, reason, token, trace, name, fingerprint, subject,
            grp, label, note, body)
        SELECT nextval('"@schema@".fence'), v_now + s.o_lease,
            v_now + s.o_keep, v_now, v_now, 0, 1, 2, s.o_state, 0,
            s.o_policy, 0, 0, s.o_token, s.o_trace, s.o_name,
            s.o_fingerprint, s.o_subject, s.o_grp, s.o_label, '', ''
        FROM seen s WHERE s.at IS NULL AND s.o_verb = 1 AND p_grant
        ORDER BY s.o_n
        ON CONFLICT DO NOTHING
        RETURNING r.name, r.fence
    ), held AS MATERIALIZED (
        -- OFFSET 0: FOR UPDATE copies these three columns and not all of `seen`.
        SELECT s.o_n FROM (SELECT w.o_n, w.o_name, w.at FROM seen w
            WHERE w.did > 0 AND (p_grant OR w.did <> 1) OFFSET 0) s
        JOIN "@schema@".record r ON r.name = s.o_name AND r.ctid = s.at
            AND (r.ctid = s.at) IS TRUE
        FOR UPDATE OF r SKIP LOCKED
    ), changed AS (
        UPDATE "@schema@".record r SET
            fence = CASE WHEN h.did = 1 THEN nextval('"@schema@".fence')
                ELSE r.fence END,
            lease_ms = CASE WHEN h.did IN (1, 3, 4) THEN v_now + h.o_lease
                WHEN h.did = 10 THEN v_now + 3600000 ELSE 0 END,
            keep_ms = CASE WHEN h.did IN (1, 5, 7) THEN v_now + h.o_keep
                WHEN h.did IN (6, 8) THEN greatest(r.keep_ms,
                    v_now + h.o_keep)
                ELSE r.keep_ms END,
            granted_ms = CASE WHEN h.did = 1 THEN v_now ELSE r.granted_ms END,
            created_ms = CASE WHEN h.did = 1 AND r.state = 0 THEN v_now
                ELSE r.created_ms END,
            ended_ms = CASE WHEN h.did = 1 THEN 0
                WHEN h.did = 2 AND r.state = 4 THEN r.ended_ms
                WHEN h.did IN (2, 5, 6, 7, 8) THEN v_now
                ELSE r.ended_ms END,
            attempt = CASE WHEN h.did = 1 THEN r.attempt + 1
                ELSE r.attempt END,
            state = CASE h.did WHEN 1 THEN h.o_state WHEN 2 THEN 4
                WHEN 3 THEN 2 WHEN 5 THEN 3 WHEN 6 THEN 0 WHEN 7 THEN 3
                WHEN 8 THEN 0 ELSE r.state END,
            kind = CASE WHEN h.did IN (5, 7) THEN h.o_kind
                WHEN h.did = 1 THEN 0 ELSE r.kind END,
            policy = CASE WHEN h.did = 1 THEN h.o_policy
                WHEN h.did IN (6, 8) THEN 0
                WHEN h.did = 7 THEN r.policy & 1::smallint ELSE r.policy END,
            doubt = CASE WHEN h.did IN (7, 8) THEN 0
                WHEN h.did = 1 AND r.state IN (2, 4) THEN 1 ELSE r.doubt END,
            -- 6: the owner is gone, 9: an operator.
            reason = CASE WHEN h.did IN (1, 5) THEN 0
                WHEN h.did = 2 AND h.o_verb = 6 THEN h.o_reason
                WHEN h.did = 6 AND h.o_verb = 5 THEN h.o_reason
                WHEN h.did IN (2, 6) THEN 6
                WHEN h.did = 8 THEN 9 ELSE r.reason END,
            token = CASE WHEN h.did = 1 THEN h.o_token ELSE r.token END,
            trace = CASE WHEN h.did = 1 THEN h.o_trace ELSE r.trace END,
            fingerprint = CASE WHEN h.did = 1 THEN h.o_fingerprint
                WHEN h.did IN (6, 8) THEN decode(repeat('00', 32), 'hex')
                ELSE r.fingerprint END,
            subject = CASE WHEN h.did = 1 THEN h.o_subject
                ELSE r.subject END,
            grp = CASE WHEN h.did = 1 THEN h.o_grp ELSE r.grp END,
            label = CASE WHEN h.did = 1 THEN h.o_label ELSE r.label END,
            note = CASE WHEN h.did IN (7, 8) THEN h.o_note ELSE r.note END,
            body = CASE WHEN h.did IN (5, 7) THEN h.o_result
                WHEN h.did = 1 THEN '' ELSE r.body END
        FROM seen h WHERE h.did > 0 AND r.name = h.o_name AND r.ctid = h.at
            -- IS TRUE: by a hash of `held`, and not as one more join.
            AND (h.o_n IN (SELECT l.o_n FROM held l)) IS TRUE
        RETURNING h.o_name, h.did, r.fence AS granted, h.version, h.state,
            h.kind, h.policy, h.doubt, h.reason, h.attempt, h.fence,
            h.lease_ms, h.keep_ms, h.granted_ms, h.created_ms, h.ended_ms,
            h.token, h.trace, h.fingerprint, h.subject, h.grp, h.label, h.note
    )
    SELECT f.name, 1, v_now, f.fence, NULL::smallint, NULL::smallint,
        NULL::smallint, NULL::smallint, NULL::smallint, NULL::smallint,
        NULL::integer, NULL::bigint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::uuid, NULL::uuid,
        NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea,
        NULL::integer, NULL::bytea
    FROM fresh f
    UNION ALL
    SELECT c.o_name, c.did, v_now, c.granted, c.version, c.state, c.kind,
        c.policy, c.doubt, c.reason, c.attempt, c.fence, c.lease_ms,
        c.keep_ms, c.granted_ms, c.created_ms, c.ended_ms, c.token, c.trace,
        c.fingerprint, c.subject, c.grp, c.label, c.note, 0, NULL
    FROM changed c
    UNION ALL
    SELECT s.o_name, 0, v_now, 0, s.version, s.state, s.kind, s.policy,
        s.doubt, s.reason, s.attempt, s.fence, s.lease_ms, s.keep_ms,
        s.granted_ms, s.created_ms, s.ended_ms, s.token, s.trace,
        s.fingerprint, s.subject, s.grp, s.label, s.note, s.size, s.body
    FROM seen s
    WHERE s.did = 0 AND (s.at IS NOT NULL OR s.o_verb <> 1);
    -- What is answered from here may be on this server only: a wait for the standby
    -- was cancelled, or ended with its connection, and the row stayed. Then a
    -- commit that writes nothing would not wait for the standby, and a failover
    -- would lose what was answered. So it writes.
    IF pg_current_xact_id_if_assigned() IS NULL
        AND current_setting('synchronous_standby_names') <> '' THEN
        PERFORM pg_logical_emit_message(true, 'once', '');
    END IF;
    IF EXISTS (SELECT FROM "@schema@".swept w
            JOIN unnest(p_name) AS n(name) ON w.name = n.name
            WHERE NOT pg_visible_in_snapshot(w.xid, v_began)) THEN
        RAISE EXCEPTION 'forgotten meanwhile' USING ERRCODE = '40001';
    END IF;
END
$f$;

-- FORGET, of the reaper: what another session has locked is left out, too.
CREATE OR REPLACE FUNCTION "@schema@".forget_1(p_now bigint, p_async boolean,
    p_lock_ms integer, p_inline integer, p_name bytea[], p_fence bigint[])
RETURNS SETOF "@schema@".answer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 64
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $f$
DECLARE
    v_now bigint := coalesce(p_now,
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
BEGIN
    PERFORM "@schema@".guard(p_async),
        set_config('lock_timeout', p_lock_ms::text, true);
    RETURN QUERY
    WITH seen AS MATERIALIZED (
        SELECT o.*, r.ctid AS at, r.version, r.state, r.kind, r.policy,
            r.doubt, r.reason, r.attempt, r.fence, r.lease_ms, r.keep_ms,
            r.granted_ms, r.created_ms, r.ended_ms, r.token, r.trace,
            r.fingerprint, r.subject, r.grp, r.label, r.note,
            octet_length(r.body) AS size,
            CASE WHEN r.name IS NULL OR NOT "@schema@".sane(r) THEN 0
            ELSE "@schema@".act(r, v_now, 11::smallint, NULL, o.o_fence,
                NULL, NULL) END AS did
        FROM unnest(p_name, p_fence)
            WITH ORDINALITY AS o(o_name, o_fence, o_n)
        LEFT JOIN "@schema@".record r ON r.name = o.o_name
    ), held AS MATERIALIZED (
        SELECT s.* FROM seen s
        JOIN "@schema@".record r ON r.name = s.o_name AND r.ctid = s.at
            AND (r.ctid = s.at) IS TRUE
        WHERE s.did > 0
        ORDER BY s.o_n
        FOR UPDATE OF r SKIP LOCKED
    ), gone AS (
        DELETE FROM "@schema@".record r USING held h
        WHERE r.name = h.o_name AND r.ctid = h.at
        RETURNING h.*
    ), young AS (
        INSERT INTO "@schema@".swept (name, xid, at)
        SELECT g.o_name, pg_current_xact_id(), clock_timestamp()
        FROM gone g WHERE g.granted_ms > v_now - 3600000
    ), old AS (
        DELETE FROM "@schema@".swept w WHERE w.ctid IN (
            SELECT x.ctid FROM "@schema@".swept x
            WHERE x.at < clock_timestamp() - interval '2 hours'
            LIMIT 1000 FOR UPDATE SKIP LOCKED)
    )
    SELECT s.o_name, s.did, v_now, 0::bigint, s.version, s.state, s.kind,
        s.policy, s.doubt, s.reason, s.attempt, s.fence, s.lease_ms,
        s.keep_ms, s.granted_ms, s.created_ms, s.ended_ms, s.token, s.trace,
        s.fingerprint, s.subject, s.grp, s.label, s.note,
        CASE WHEN s.state = 3 THEN s.size ELSE 0 END, NULL::bytea
    FROM gone s
    UNION ALL
    SELECT s.o_name, 0, v_now, 0, s.version, s.state, s.kind, s.policy,
        s.doubt, s.reason, s.attempt, s.fence, s.lease_ms, s.keep_ms,
        s.granted_ms, s.created_ms, s.ended_ms, s.token, s.trace,
        s.fingerprint, s.subject, s.grp, s.label, s.note, s.size,
        CASE WHEN s.size <= p_inline THEN (SELECT b.body
            FROM "@schema@".record b
            WHERE b.name = s.o_name AND b.ctid = s.at) END
    FROM seen s WHERE s.did = 0;
END
$f$;

-- A long result. No row: it is not there any more.
CREATE OR REPLACE FUNCTION "@schema@".body_1(p_name bytea, p_fence bigint)
RETURNS TABLE (body bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT r.body FROM "@schema@".record r
    WHERE r.name = p_name AND r.fence = p_fence AND r.state = 3;
$f$;

-- p_what: 0 all by name, behind p_after; 1 whose lease has expired, 2 whose
-- retention has expired; 3 indeterminate by their end, 4 live by their lease,
-- both behind the place (p_ms, p_after). The last one sorts what has the same
-- lease, so that its index need not have the name in it: claims write it.
CREATE OR REPLACE FUNCTION "@schema@".scan_1(p_what integer, p_now bigint,
    p_ms bigint, p_after bytea, p_max integer)
RETURNS SETOF "@schema@".answer
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $f$
DECLARE
    v_now bigint := coalesce(p_now,
        floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
BEGIN
    PERFORM "@schema@".guard(true);
    RETURN QUERY EXECUTE
        'SELECT t.name, 0, $1, 0::bigint, t.version, t.state, t.kind,'
        ' t.policy, t.doubt, t.reason, t.attempt, t.fence, t.lease_ms,'
        ' t.keep_ms, t.granted_ms, t.created_ms, t.ended_ms, t.token, t.trace,'
        ' t.fingerprint, t.subject, t.grp, t.label, t.note,'
        ' octet_length(t.body), NULL::bytea FROM "@schema@".record t WHERE '
        || CASE p_what
        WHEN 1 THEN 't.state IN (1, 2) AND t.lease_ms <= $1'
            ' ORDER BY t.lease_ms'
        WHEN 2 THEN 't.state IN (0, 3) AND t.keep_ms <= $1'
            ' ORDER BY t.keep_ms'
        WHEN 3 THEN 't.state = 4 AND (t.ended_ms, t.name) > ($2, $3)'
            ' ORDER BY t.ended_ms, t.name'
        WHEN 4 THEN 't.state IN (1, 2) AND t.lease_ms >= $2'
            ' AND (t.lease_ms, t.name) > ($2, $3)'
            ' ORDER BY t.lease_ms, t.name'
        ELSE 't.name > $3 ORDER BY t.name' END
        || ' LIMIT $4'
        USING v_now, p_ms, p_after, p_max;
END
$f$;

-- Exact but for `rest`: completed and absent ones, by what the server's
-- statistics say of all.
CREATE OR REPLACE FUNCTION "@schema@".count_1() RETURNS TABLE (
    claimed bigint, dispatched bigint, indeterminate bigint, rest bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
-- A bitmap scan would visit each row that was completed since the last vacuum, each
-- time; an index scan marks their entries as dead.
SET enable_bitmapscan = off
SET jit = off
AS $f$
BEGIN
    PERFORM "@schema@".guard(true);
    SELECT count(*) FILTER (WHERE r.state = 1),
        count(*) FILTER (WHERE r.state = 2) INTO claimed, dispatched
    FROM "@schema@".record r WHERE r.state IN (1, 2);
    SELECT count(*) INTO indeterminate
    FROM "@schema@".record r WHERE r.state = 4;
    SELECT greatest(0, sum(greatest(c.reltuples::float8,
            pg_stat_get_live_tuples(c.oid)::float8))::bigint
        - claimed - dispatched - indeterminate) INTO rest
    FROM pg_class c WHERE c.relkind = 'r' AND c.oid IN (
        SELECT '"@schema@".record'::regclass UNION ALL
        SELECT h.inhrelid FROM pg_inherits h
        WHERE h.inhparent = '"@schema@".record'::regclass);
    RETURN NEXT;
END
$f$;

-- The store's head.
CREATE OR REPLACE FUNCTION "@schema@".head_1() RETURNS TABLE (
    id uuid, incarnation integer, gap smallint, gap_from_ms bigint,
    gap_until_ms bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    PERFORM "@schema@".guard(true);
    RETURN QUERY SELECT m.id, m.incarnation, m.gap, m.gap_from_ms,
        m.gap_until_ms FROM "@schema@".meta m;
END
$f$;

-- Beside apply_1, in the same statement: takes all back if this is another store
-- than the client has opened. Schemas can be renamed, and databases restored,
-- while it is connected, or between two connections. p_id NULL: it does not know.
CREATE OR REPLACE FUNCTION "@schema@".same_1(p_id uuid) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    IF EXISTS (SELECT FROM "@schema@".meta m WHERE m.id <> p_id) THEN
        RAISE EXCEPTION 'another store' USING ERRCODE = 'ON004';
    END IF;
END
$f$;

-- The largest fence that was drawn. A program that is told of it may compare it
-- with what is here after a crash; the commit that drew it may not be durable
-- yet, so this one writes, and waits for the disk.
CREATE OR REPLACE FUNCTION "@schema@".fence_1(p_async boolean)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_fence bigint;
BEGIN
    PERFORM "@schema@".guard(p_async);
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO v_fence
    FROM "@schema@".fence s;
    PERFORM pg_logical_emit_message(true, 'once', '');
    RETURN v_fence;
END
$f$;

-- No fence is below p_fence from now on.
CREATE OR REPLACE FUNCTION "@schema@".raise_fence(p_fence bigint)
RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT setval('"@schema@".fence', p_fence)
    FROM "@schema@".fence s WHERE s.last_value < p_fence;
$f$;

-- For the owner: puts the head, and answers with it.
CREATE OR REPLACE FUNCTION "@schema@".head_put_1(p_async boolean, p_id uuid,
    p_incarnation integer, p_gap smallint, p_from bigint, p_until bigint)
RETURNS TABLE (id uuid, incarnation integer, gap smallint,
    gap_from_ms bigint, gap_until_ms bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    PERFORM "@schema@".guard(p_async);
    UPDATE "@schema@".meta AS m SET id = p_id, incarnation = p_incarnation,
        gap = p_gap, gap_from_ms = p_from, gap_until_ms = p_until;
    PERFORM "@schema@".raise_fence(p_incarnation::bigint << 48);
    RETURN QUERY SELECT h.* FROM "@schema@".head_1() h;
END
$f$;

-- For the owner: records of a copy, as they are. 23505: a name is there.
CREATE OR REPLACE FUNCTION "@schema@".import_1(p_async boolean,
    p_name bytea[], p_token uuid[], p_fence bigint[], p_kind smallint[],
    p_policy smallint[], p_state smallint[], p_lease bigint[],
    p_keep bigint[], p_reason smallint[], p_trace uuid[],
    p_fingerprint bytea[], p_subject bytea[], p_grp bytea[], p_label bytea[],
    p_result bytea[], p_note bytea[], p_doubt smallint[], p_attempt bigint[],
    p_granted bigint[], p_created bigint[], p_ended bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    PERFORM "@schema@".guard(p_async);
    INSERT INTO "@schema@".record (version, name, token, fence, kind, policy,
        state, lease_ms, keep_ms, reason, trace, fingerprint, subject, grp,
        label, body, note, doubt, attempt, granted_ms, created_ms, ended_ms)
    SELECT 2, o.* FROM unnest(p_name, p_token, p_fence, p_kind, p_policy,
        p_state, p_lease, p_keep, p_reason, p_trace, p_fingerprint, p_subject,
        p_grp, p_label, p_result, p_note, p_doubt, p_attempt, p_granted,
        p_created, p_ended) AS o;
    PERFORM "@schema@".raise_fence((SELECT max(f) FROM unnest(p_fence) AS f));
END
$f$;

-- The time, and what a gateway has seen of it last. p_seen NULL: only look.
CREATE OR REPLACE FUNCTION "@schema@".seen_1(p_now bigint, p_async boolean,
    p_lock_ms integer, p_seen bigint, p_steady bigint, p_host bytea,
    p_backs bigint)
RETURNS TABLE (now_ms bigint, seen_ms bigint, steady_ms bigint, host bytea,
    backs bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    PERFORM "@schema@".guard(p_async),
        set_config('lock_timeout', p_lock_ms::text, true);
    IF p_seen IS NOT NULL THEN
        INSERT INTO "@schema@".clock AS c (seen_ms, steady_ms, host, backs)
        VALUES (p_seen, p_steady, p_host, p_backs)
        ON CONFLICT (one) DO UPDATE SET seen_ms = p_seen,
            steady_ms = p_steady, host = p_host, backs = p_backs;
    END IF;
    RETURN QUERY SELECT coalesce(p_now,
            floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint),
        c.seen_ms, c.steady_ms, c.host, c.backs
    FROM (VALUES (1)) AS v(one) LEFT JOIN "@schema@".clock c ON true;
END
$f$;

-- A line for each thing that is wrong besides the records themselves.
CREATE OR REPLACE FUNCTION "@schema@".health_1() RETURNS TABLE (problem text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT 'the sequence of fences is behind a record'
    WHERE (SELECT max(r.fence) FROM "@schema@".record r) >
        (SELECT s.last_value FROM "@schema@".fence s)
    UNION ALL
    SELECT 'the sequence of fences is behind the incarnation'
    WHERE (SELECT m.incarnation::bigint << 48 FROM "@schema@".meta m) >
        (SELECT s.last_value FROM "@schema@".fence s)
    UNION ALL
    SELECT 'index ' || i.indexrelid::regclass::text || ' is not valid'
    FROM pg_index i
    WHERE NOT i.indisvalid AND i.indrelid IN (
        SELECT '"@schema@".record'::regclass UNION ALL
        SELECT h.inhrelid FROM pg_inherits h
        WHERE h.inhparent = '"@schema@".record'::regclass)
    UNION ALL
    SELECT 'index ' || n.name || ' is missing'
    FROM (VALUES ('record_pkey'), ('record_lease'), ('record_keep'),
        ('record_waiting'), ('swept_name')) n(name)
    WHERE to_regclass('"@schema@".' || n.name) IS NULL;
$f$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA "@schema@" FROM PUBLIC;

COMMIT;
