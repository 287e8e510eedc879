-- SPDX-License-Identifier: Apache-2.0
--
-- pg.sql - messages on PostgreSQL: inbox, outbox, barriers and calls, as tables
-- and functions that are called inside the caller's own transaction. Version 2.
--
-- `once messages init` runs this text, with --print it only shows it. It is one
-- transaction and may be run again at any time, also while programs and relays
-- are at work: it makes what is not there, takes the tables of an older version
-- to this one, step by step, and brings the functions up to date. At the end it
-- compares what is there with what there has to be, and undoes all of it where
-- something is missing.
--
-- The functions are the contract, for every language. They run with their
-- owner's rights (SECURITY DEFINER): a program's role needs USAGE on the schema
-- and EXECUTE on the functions, and cannot touch a table. Names that end in _1
-- are for `once` of this version, and for nobody else.
--
-- A row of `inbox` says: this id is answered for. It is written in the
-- transaction that has the effect, so both are committed or neither is. While it
-- is not committed its lock is the lease, and it ends exactly with its holder:
-- nothing is ever in doubt here.
--
-- Errors: 22023 an argument is out of its limits, ON001 the session commits
-- asynchronously, ON002 a later version of this schema, ON003 the schema lacks
-- something that init does not make up, ON010 an id was emitted
-- with another body, ON012 a call inside itself, ON013 the transaction is not READ
-- COMMITTED, ON014 parked in the transaction of its claim, ON016 a call of a saga
-- has changed since it was read, ON017 at COMMIT: the call was a transaction of its
-- own, or begin() has no finish(), 40001 do the whole
-- transaction again, 55P03 another copy is under way.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;
-- A table that a long transaction has in use: programs must not queue behind us.
SET LOCAL lock_timeout = '10s';

-- Two that run this at once: the second waits here, and finds all there.
DO $do$
BEGIN
    PERFORM pg_advisory_xact_lock(8028075772693119861);
    IF to_regnamespace('"@schema@"') IS NULL THEN
        CREATE SCHEMA "@schema@";
    END IF;
END
$do$;

-- Ids older than `floor_ms` are refused: their rows may have been purged. It
-- never falls. `keep_ms` is how long an id is remembered.
CREATE TABLE IF NOT EXISTS "@schema@".message_meta (
    one boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    keep_ms bigint NOT NULL,
    floor_ms bigint NOT NULL
);

-- The steps from an older version to this one. A step is never changed again, and
-- leaves to what follows it the indexes, functions and triggers.
DO $do$
DECLARE
    v_version integer := (SELECT m.version FROM "@schema@".message_meta m);
BEGIN
    IF v_version > 2 THEN
        RAISE EXCEPTION 'the schema is of a later version'
            USING ERRCODE = 'ON002';
    END IF;
    IF v_version = 1 THEN
        -- In the order in which programs come to them, or they would wait for
        -- each other.
        LOCK TABLE "@schema@".inbox, "@schema@".barrier, "@schema@".outbox,
            "@schema@".relay_idle IN ACCESS EXCLUSIVE MODE;
        ALTER TABLE "@schema@".relay_idle
            ADD COLUMN until_ms bigint NOT NULL DEFAULT 0,
            ADD COLUMN seen_ms bigint NOT NULL DEFAULT 0;
        -- Programs call functions of these names that call them. Renamed, they
        -- keep their grants.
        ALTER FUNCTION "@schema@".inbox_park RENAME TO inbox_park_bytes;
        ALTER FUNCTION "@schema@".emit RENAME TO emit_bytes;
        ALTER FUNCTION "@schema@".finish RENAME TO finish_bytes;
        UPDATE "@schema@".message_meta SET version = 2;
    END IF;
END
$do$;

-- `at_ms`: arrival, or the id's own time if that is later; `keep_ms` counts from
-- there. `fingerprint`: SHA-256 of the body, NULL: not compared. `kind`: 0 a call
-- that has begun, 1 done, 2 done and a failure; `xact` is the transaction that
-- claimed it, NULL: an operator did; `result` what a call came to.
CREATE TABLE IF NOT EXISTS "@schema@".inbox (
    consumer text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    at_ms bigint NOT NULL,
    fingerprint bytea,
    kind smallint NOT NULL,
    xact xid8,
    result bytea,
    PRIMARY KEY (consumer, id)
);

-- A message that the database keeps because its handler has not finished.
-- `state`: 1 waiting, 3 dead, 4 indeterminate. `filed`: its id has a row in the
-- inbox, which one that was outside or a mismatch has not. Such a one may stand
-- beside one that is filed, and must not keep it from being parked.
CREATE TABLE IF NOT EXISTS "@schema@".parked (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    state smallint NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    due_ms bigint NOT NULL,
    at_ms bigint NOT NULL,
    key text COLLATE "C",
    type text NOT NULL,
    headers text NOT NULL,
    body bytea NOT NULL,
    error text NOT NULL,
    filed boolean NOT NULL,
    UNIQUE (consumer, id, filed)
);
CREATE INDEX IF NOT EXISTS parked_due ON "@schema@".parked (consumer, due_ms)
    WHERE state = 1;
CREATE INDEX IF NOT EXISTS parked_key ON "@schema@".parked (consumer, key, no)
    WHERE key IS NOT NULL;

-- `phase`: 0 ready, or leased while `lease_ms` runs; 1 waiting until `due_ms`;
-- 2 done; 3 dead; 4 indeterminate. `kept`: stays when it is done. `attempts`:
-- claims so far, which is the fence. `doubt`: of these, those whose outcome is
-- not known, since `doubt_ms`. `refused`: of these, those that the target turned
-- down. `lease_ms` is in no index, or claiming would not be a heap-only update.
-- `saga`: the gid of the saga whose step it is. `fingerprint`: SHA-256 of the body
-- of a row that is kept. `due_ms` of a row that is done: when it was. A row that
-- `relay_lease` has is not written while its lease runs.
CREATE TABLE IF NOT EXISTS "@schema@".outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    phase smallint NOT NULL,
    kept boolean NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    doubt integer NOT NULL DEFAULT 0,
    doubt_ms bigint NOT NULL DEFAULT 0,
    refused integer NOT NULL DEFAULT 0,
    lease_ms bigint NOT NULL DEFAULT 0,
    due_ms bigint NOT NULL,
    at_ms bigint NOT NULL,
    route text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    saga text COLLATE "C",
    type text NOT NULL,
    headers text NOT NULL,
    body bytea NOT NULL,
    fingerprint bytea,
    status integer,
    reply bytea,
    error text NOT NULL DEFAULT ''
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE "@schema@".outbox ALTER body SET STORAGE EXTERNAL;
-- One event to two routes is two rows. A drawn id has 74 random bits and needs
-- no index.
CREATE UNIQUE INDEX IF NOT EXISTS outbox_id ON "@schema@".outbox (route, id)
    WHERE kept;
CREATE INDEX IF NOT EXISTS outbox_ready ON "@schema@".outbox (route, seq)
    WHERE phase = 0;
CREATE INDEX IF NOT EXISTS outbox_wait ON "@schema@".outbox (route, due_ms)
    WHERE phase = 1;
CREATE INDEX IF NOT EXISTS outbox_done ON "@schema@".outbox (due_ms)
    WHERE phase = 2;
CREATE INDEX IF NOT EXISTS outbox_stop ON "@schema@".outbox (route, key, seq)
    WHERE phase IN (1, 3, 4) AND key IS NOT NULL;
CREATE INDEX IF NOT EXISTS outbox_dead ON "@schema@".outbox (route)
    WHERE phase IN (3, 4);

-- What one claim of many rows has, from `at_ms` to `until_ms`: one row here, where
-- a write to each of its rows would cost three times as much. Settled, it goes. Run
-- out, it becomes what a claim of single rows leaves: leases_end_1(). It is gone so
-- soon that it is not worth compressing.
CREATE TABLE IF NOT EXISTS "@schema@".relay_lease (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    route text COLLATE "C" NOT NULL,
    at_ms bigint NOT NULL,
    until_ms bigint NOT NULL,
    seqs bigint[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    toast_tuple_target = 8160);

-- Routes that have a relay, which was there at `seen_ms`. `idle`: it sleeps and
-- needs a NOTIFY, until `until_ms` at the latest: it may have died in its sleep.
CREATE TABLE IF NOT EXISTS "@schema@".relay_idle (
    route text COLLATE "C" PRIMARY KEY,
    idle boolean NOT NULL,
    until_ms bigint NOT NULL DEFAULT 0,
    seen_ms bigint NOT NULL DEFAULT 0
);

-- What claimers of a route lock, by the route's hash. An advisory lock would do,
-- but any role of the database can take that, and keep the route waiting; these
-- it can lock only with rights on a table of ours. They have no rows.
DO $do$
BEGIN
    FOR i IN 0..15 LOOP
        EXECUTE format('CREATE TABLE IF NOT EXISTS "@schema@".route_lock_%s '
            '(nothing boolean)', i);
    END LOOP;
END
$do$;

-- `phase`: 1 tried, 2 confirmed, 3 cancelled, 4 cancelled and never tried.
CREATE TABLE IF NOT EXISTS "@schema@".barrier (
    gid text COLLATE "C" NOT NULL,
    branch text COLLATE "C" NOT NULL,
    phase smallint NOT NULL,
    at_ms bigint NOT NULL,
    PRIMARY KEY (gid, branch)
) WITH (fillfactor = 80);
CREATE INDEX IF NOT EXISTS barrier_at ON "@schema@".barrier (at_ms);

-- `state`: 0 going on, 1 confirming, 2 undoing, 3 done, 4 undone, 5 stuck, since
-- `since_ms`. `version` rises with each change. `note`: why it turned back or is
-- stuck, or an operator's decision. `fingerprint`: SHA-256 of kind and steps.
CREATE TABLE IF NOT EXISTS "@schema@".saga (
    gid text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    state smallint NOT NULL,
    version integer NOT NULL,
    deadline_ms bigint NOT NULL,
    at_ms bigint NOT NULL,
    since_ms bigint NOT NULL,
    fingerprint bytea NOT NULL,
    note text NOT NULL DEFAULT ''
) WITH (fillfactor = 80);
CREATE INDEX IF NOT EXISTS saga_late ON "@schema@".saga (deadline_ms)
    WHERE state = 0;
CREATE INDEX IF NOT EXISTS saga_open ON "@schema@".saga (state, gid)
    WHERE state IN (0, 1, 2, 5);
CREATE INDEX IF NOT EXISTS saga_over ON "@schema@".saga (since_ms)
    WHERE state IN (3, 4);

-- `state`: 0 not begun, 1 trying, 2 tried, 3 confirming, 4 confirmed, 5
-- cancelling, 6 cancelled. `failed`: 3 its Confirm or Cancel was refused for good,
-- 4 its outcome is not known. `round`: which Confirm or Cancel this is, from 0.
-- `status`, `reply`, `error`: of the last call that ended.
CREATE TABLE IF NOT EXISTS "@schema@".saga_step (
    gid text COLLATE "C" NOT NULL REFERENCES "@schema@".saga ON DELETE CASCADE,
    branch integer NOT NULL,
    state smallint NOT NULL DEFAULT 0,
    failed smallint NOT NULL DEFAULT 0,
    round integer NOT NULL DEFAULT 0,
    try_to text COLLATE "C" NOT NULL,
    confirm_to text COLLATE "C",
    cancel_to text COLLATE "C",
    type text NOT NULL,
    body bytea NOT NULL,
    status integer,
    reply bytea,
    error text NOT NULL DEFAULT '',
    PRIMARY KEY (gid, branch)
) WITH (fillfactor = 80);
-- The calls of a saga, and those that have ended and were not looked at yet.
CREATE INDEX IF NOT EXISTS outbox_saga ON "@schema@".outbox (saga)
    WHERE saga IS NOT NULL;
CREATE INDEX IF NOT EXISTS outbox_ended ON "@schema@".outbox (saga)
    WHERE saga IS NOT NULL AND phase IN (2, 3, 4);

INSERT INTO "@schema@".message_meta (version, keep_ms, floor_ms)
    VALUES (2, @keep@, 0) ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION "@schema@".message_about() RETURNS TABLE (
    version integer, keep_ms bigint, floor_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT m.version, m.keep_ms, m.floor_ms FROM "@schema@".message_meta m;
$f$;

-- The time in an id that is a UUID of version 7, in ms since 1970; 0 for any
-- other id.
CREATE OR REPLACE FUNCTION "@schema@".id_ms_1(p_id text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    IF p_id COLLATE "C" ~ ('^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-'
        '[89ab][0-9a-f]{3}-[0-9a-f]{12}$') THEN
        RETURN ('x' || substr(p_id, 1, 8) || substr(p_id, 10, 4))::bit(48)
            ::bigint;
    END IF;
    RETURN 0;
END
$f$;

-- Raises 22023 unless `p_value` is 1 to 255 characters of visible ASCII.
CREATE OR REPLACE FUNCTION "@schema@".check_1(p_field text, p_value text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    IF p_value IS NULL OR octet_length(p_value) NOT BETWEEN 1 AND 255
        OR p_value COLLATE "C" ~ '[^!-~]' THEN
        RAISE EXCEPTION '%: it is not 1 to 255 characters of visible ASCII',
            p_field USING ERRCODE = '22023';
    END IF;
END
$f$;

-- Raises 22023 unless a message may have this content.
CREATE OR REPLACE FUNCTION "@schema@".content_1(p_type text, p_headers text,
    p_body bytea)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    IF p_body IS NULL OR octet_length(p_body) > 67108864 THEN
        RAISE EXCEPTION 'body: it is missing, or larger than 67108864 bytes'
            USING ERRCODE = '22023';
    END IF;
    IF p_type IS NULL OR octet_length(p_type) > 255
        OR p_type COLLATE "C" ~ '[^ -~]' THEN
        RAISE EXCEPTION 'type: it is not up to 255 characters of ASCII'
            USING ERRCODE = '22023';
    END IF;
    IF p_headers IS NULL OR octet_length(p_headers) > 65535
        OR (p_headers <> '' AND p_headers COLLATE "C" !~
            '^([!#$%&''*+.^_`|~0-9A-Za-z-]{1,255}: [^\r\n]*\n)+$') THEN
        RAISE EXCEPTION 'headers: they are not lines of the form "Name: value", '
            'or larger than 65535 bytes' USING ERRCODE = '22023';
    END IF;
END
$f$;

-- Claims (consumer, id) in the caller's transaction. Call it first, before the
-- effect, and never inside a savepoint: ROLLBACK TO would take the claim away and
-- leave what came after unguarded.
--
--    run       do it, commit, acknowledge
--    done      the effect is committed, or the message is parked: acknowledge
--    mismatch  the id is known with another body
--    outside   the id's own time is before what is remembered
--
-- p_attempt: 0 for a message that arrived; for a parked message its count, and
-- the parked row is taken out with the claim. p_call: for begin() alone.
--
-- An id of any type is read by format(), here and in all that run with their owner's
-- rights: a cast to text may be a function that the caller has made for its own
-- type, and it would run with these rights. Only a superuser makes what format()
-- calls.
CREATE OR REPLACE FUNCTION "@schema@".inbox_claim(p_consumer text,
    p_id anycompatible, p_fingerprint bytea DEFAULT NULL,
    p_attempt integer DEFAULT 0, p_call boolean DEFAULT false)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $f$
DECLARE
    v_id text := format('%s', p_id);
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_ms bigint := 0;
    v_old boolean := false;
    v_row record;
    v_kind integer := CASE WHEN p_call THEN 0 ELSE 1 END;
    v_called text;
BEGIN
    -- What check_1() looks for, written out: two calls of it would make a claim
    -- cost two thirds as much again. It is called for its error alone.
    IF p_consumer IS NULL OR octet_length(p_consumer) NOT BETWEEN 1 AND 255
        OR p_consumer COLLATE "C" ~ '[^!-~]' OR v_id IS NULL
        OR octet_length(v_id) NOT BETWEEN 1 AND 255
        OR v_id COLLATE "C" ~ '[^!-~]' THEN
        PERFORM "@schema@".check_1('consumer', p_consumer);
        PERFORM "@schema@".check_1('id', v_id);
    END IF;
    IF octet_length(p_fingerprint) <> 32 OR p_attempt IS NULL
        OR p_attempt < 0 OR p_call IS NULL THEN
        RAISE EXCEPTION 'fingerprint: it is not 32 bytes, or attempt: it is '
            'not a count' USING ERRCODE = '22023';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        RAISE EXCEPTION 'synchronous_commit is off in this session'
            USING ERRCODE = 'ON001';
    END IF;
    IF p_attempt > 0 THEN
        DELETE FROM "@schema@".parked k WHERE k.consumer = p_consumer
            AND k.id = v_id AND k.attempts = p_attempt;
        IF FOUND THEN -- keep_ms counts from the effect
            UPDATE "@schema@".inbox i SET at_ms = greatest(i.at_ms, v_now),
                    xact = pg_current_xact_id()
                WHERE i.consumer = p_consumer AND i.id = v_id;
            PERFORM set_config('once.called',
                extract(epoch FROM statement_timestamp())::text, true);
            RETURN 'run';
        END IF;
    END IF;
    IF substr(v_id, 15, 1) = '7' THEN
        v_ms := "@schema@".id_ms_1(v_id);
        IF v_ms > 0 THEN
            v_old := v_ms < (SELECT greatest(v_now - m.keep_ms, m.floor_ms)
                FROM "@schema@".message_meta m);
        END IF;
    END IF;
    IF NOT v_old THEN -- this one INSERT decides; the rest explains
        v_ms := greatest(v_now, v_ms);
        INSERT INTO "@schema@".inbox VALUES (p_consumer, v_id, v_ms,
                p_fingerprint, v_kind, pg_current_xact_id(), NULL)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            v_called := set_config('once.called',
                extract(epoch FROM statement_timestamp())::text, true);
            RETURN 'run';
        END IF;
    END IF;
    SELECT i.fingerprint INTO v_row FROM "@schema@".inbox i
        WHERE i.consumer = p_consumer AND i.id = v_id;
    IF NOT FOUND THEN
        IF v_old THEN
            RETURN 'outside';
        END IF;
        RAISE EXCEPTION 'the row has gone' USING ERRCODE = '40001';
    END IF;
    RETURN CASE WHEN v_row.fingerprint <> p_fingerprint THEN 'mismatch'
        ELSE 'done' END;
END
$f$;

-- What a call in autocommit would do: it commits by itself, before the effect or
-- after it, and a crash between the two loses a message or runs it twice. So each
-- call notes in `once.called` when its statement came, and these triggers look at
-- COMMIT. A COMMIT has a time of its own; a call whose statement is still the
-- newest one ended its transaction itself. That is refused, unless something else
-- was written as well, by a function around the call or by statements that came
-- with it in one message.
CREATE OR REPLACE FUNCTION "@schema@".alone_1() RETURNS trigger
LANGUAGE plpgsql
AS $f$
BEGIN
    IF current_setting('once.called', true)
        = extract(epoch FROM statement_timestamp())::text THEN
        PERFORM "@schema@".refuse_1(TG_RELID);
    END IF;
    RETURN NULL;
END
$f$;

-- Everybody may call it: it tells nothing.
CREATE OR REPLACE FUNCTION "@schema@".refuse_1(p_table oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    -- What the calls themselves write. An emit is an effect of a claim.
    v_own oid[] := CASE WHEN p_table = '"@schema@".outbox'::regclass
        THEN ARRAY['"@schema@".outbox'::regclass, '"@schema@".saga',
            '"@schema@".saga_step']
        ELSE ARRAY['"@schema@".inbox'::regclass, '"@schema@".barrier',
            '"@schema@".parked'] END;
BEGIN
    -- A table that is written stays locked until the transaction has ended.
    IF NOT EXISTS (SELECT FROM pg_locks k JOIN pg_class c ON c.oid = k.relation
        WHERE k.pid = pg_backend_pid() AND k.locktype = 'relation'
            AND k.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock',
                'ExclusiveLock', 'AccessExclusiveLock')
            AND c.relkind IN ('r', 'p', 'f', 'm') AND c.oid <> ALL (v_own)) THEN
        RAISE EXCEPTION 'this call was a transaction of its own'
            USING ERRCODE = 'ON017',
            HINT = 'Turn autocommit off: BEGIN, the call, your writes, COMMIT.';
    END IF;
END
$f$;

-- begin() without finish(): a repeat would find no result.
CREATE OR REPLACE FUNCTION "@schema@".finished_1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_context text;
BEGIN
    GET DIAGNOSTICS v_context = PG_CONTEXT;
    IF strpos(v_context, 'inbox_claim') > 0 THEN
        RETURN NULL; -- SET CONSTRAINTS ALL IMMEDIATE: it is not over yet
    END IF;
    IF EXISTS (SELECT FROM "@schema@".inbox i
        WHERE i.consumer = NEW.consumer AND i.id = NEW.id AND i.kind = 0
            AND i.xact = NEW.xact) THEN
        RAISE EXCEPTION 'begin() without finish() in one transaction'
            USING ERRCODE = 'ON017',
            HINT = 'BEGIN, begin(), your writes, finish(), COMMIT; or ROLLBACK.';
    END IF;
    RETURN NULL;
END
$f$;

DO $do$
DECLARE
    v_name text;
    v_on text;
    v_does text;
BEGIN
    FOR v_name, v_on, v_does IN VALUES
        ('inbox_alone', 'INSERT ON "@schema@".inbox',
            'WHEN (NEW.xact IS NOT NULL) EXECUTE FUNCTION "@schema@".alone_1()'),
        ('inbox_again_alone', 'UPDATE ON "@schema@".inbox',
            'WHEN (NEW.xact IS DISTINCT FROM OLD.xact)
            EXECUTE FUNCTION "@schema@".alone_1()'),
        ('inbox_finished', 'INSERT ON "@schema@".inbox',
            'WHEN (NEW.kind = 0) EXECUTE FUNCTION "@schema@".finished_1()'),
        ('barrier_alone', 'INSERT OR UPDATE ON "@schema@".barrier',
            'WHEN (NEW.phase <> 4) EXECUTE FUNCTION "@schema@".alone_1()'),
        ('outbox_alone', 'INSERT ON "@schema@".outbox',
            'EXECUTE FUNCTION "@schema@".alone_1()')
    LOOP
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgname = v_name
            AND t.tgrelid = split_part(v_on, ' ON ', 2)::regclass) THEN
            EXECUTE format('CREATE CONSTRAINT TRIGGER %s AFTER %s '
                'DEFERRABLE INITIALLY DEFERRED FOR EACH ROW %s',
                v_name, v_on, v_does);
        END IF;
    END LOOP;
END
$do$;

-- Keeps a message whose handler has not finished: after the handler's rollback,
-- in a transaction of its own. p_state: 1 it will run again in p_wait_ms, 3 it is
-- dead, 4 its outcome is not known. p_key only if the consumer keeps order.
-- parked, or done: its effect is committed or it was parked before.
CREATE OR REPLACE FUNCTION "@schema@".inbox_park_bytes(p_consumer text,
    p_id text, p_fingerprint bytea, p_state integer, p_wait_ms bigint, p_key text,
    p_type text, p_headers text, p_body bytea, p_error text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_called text := coalesce(current_setting('once.called', true), '');
    v_was text;
BEGIN
    IF p_key IS NOT NULL THEN
        PERFORM "@schema@".check_1('key', p_key);
    END IF;
    IF p_state IS NULL OR p_state NOT IN (1, 3, 4) OR p_wait_ms IS NULL
        OR p_wait_ms < 0 OR p_error IS NULL THEN
        RAISE EXCEPTION 'state: it is not 1, 3 or 4, or an argument is missing'
            USING ERRCODE = '22023';
    END IF;
    PERFORM "@schema@".content_1(p_type, p_headers, p_body);
    v_was := "@schema@".inbox_claim(p_consumer, p_id, p_fingerprint);
    PERFORM set_config('once.called', v_called, true); -- this may be alone
    IF v_was = 'done' THEN
        IF EXISTS (SELECT FROM "@schema@".inbox i WHERE i.consumer = p_consumer
            AND i.id = p_id AND i.xact = pg_current_xact_id()) THEN
            RAISE EXCEPTION 'it was claimed in this transaction'
                USING ERRCODE = 'ON014';
        END IF;
        RETURN v_was;
    END IF;
    INSERT INTO "@schema@".parked (consumer, id, state, due_ms, at_ms, key,
            type, headers, body, error, filed)
        VALUES (p_consumer,
            p_id || CASE v_was WHEN 'mismatch'
                THEN '#' || encode(p_fingerprint, 'hex') ELSE '' END,
            CASE v_was WHEN 'run' THEN p_state ELSE 3 END,
            v_now + p_wait_ms, v_now, p_key, p_type, p_headers, p_body,
            CASE v_was WHEN 'run' THEN left(p_error, 255) ELSE v_was END,
            v_was = 'run')
        ON CONFLICT (consumer, id, filed) DO NOTHING;
    RETURN 'parked';
END
$f$;

-- Writes a message to the outbox in the caller's transaction. The id, drawn if
-- none is given; NULL: this id was emitted before with the same body. p_at: not
-- before. p_keep: the row and its answer stay when it is done.
CREATE OR REPLACE FUNCTION "@schema@".emit_bytes(p_route text,
    p_body bytea, p_key text DEFAULT NULL, p_id text DEFAULT NULL, p_type text DEFAULT '',
    p_headers text DEFAULT '', p_at timestamptz DEFAULT NULL,
    p_keep boolean DEFAULT false)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_due bigint := 0;
    v_kept boolean := p_keep OR p_id IS NOT NULL;
    v_phase integer := 0;
    v_id text := p_id;
    v_fingerprint bytea;
    v_was bytea;
    v_called text;
BEGIN
    -- What check_1() and content_1() look for, as in inbox_claim().
    IF p_route IS NULL OR octet_length(p_route) NOT BETWEEN 1 AND 255
        OR p_route COLLATE "C" ~ '[^!-~]' THEN
        PERFORM "@schema@".check_1('route', p_route);
    END IF;
    IF octet_length(p_key) NOT BETWEEN 1 AND 255
        OR p_key COLLATE "C" ~ '[^!-~]' THEN
        PERFORM "@schema@".check_1('key', p_key);
    END IF;
    IF octet_length(p_id) NOT BETWEEN 1 AND 255
        OR p_id COLLATE "C" ~ '[^!-~]' THEN
        PERFORM "@schema@".check_1('id', p_id);
    END IF;
    IF p_body IS NULL OR octet_length(p_body) > 67108864 OR p_type IS NULL
        OR octet_length(p_type) > 255 OR p_type COLLATE "C" ~ '[^ -~]'
        OR p_headers IS NULL OR p_headers <> '' THEN
        PERFORM "@schema@".content_1(p_type, p_headers, p_body);
    END IF;
    IF p_keep IS NULL OR NOT isfinite(coalesce(p_at, now())) THEN
        RAISE EXCEPTION 'at: it is not a time, or keep: it is missing'
            USING ERRCODE = '22023';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        RAISE EXCEPTION 'synchronous_commit is off in this session'
            USING ERRCODE = 'ON001';
    END IF;
    -- What PL/pgSQL computes by itself costs a tenth of the same in a statement, which
    -- is started for each row.
    IF p_at IS NOT NULL THEN
        v_due := extract(epoch FROM p_at) * 1000;
        v_phase := CASE WHEN v_due > v_now THEN 1 ELSE 0 END;
    END IF;
    IF v_kept THEN
        v_fingerprint := sha256(p_body);
    END IF;
    IF v_id IS NULL THEN
        v_id := overlay(gen_random_uuid()::text placing
            lpad(to_hex(v_now >> 16), 8, '0') || '-'
            || lpad(to_hex(v_now & 65535), 4, '0') || '-7' from 1 for 15);
    END IF;
    IF p_key IS NOT NULL THEN -- writers of one key commit in the order of seq
        PERFORM pg_advisory_xact_lock(1869505381,
            hashtext(p_route || ' ' || p_key));
    END IF;
    INSERT INTO "@schema@".outbox (phase, kept, due_ms, at_ms, route, id, key,
            type, headers, body, fingerprint)
        VALUES (v_phase, v_kept, v_due, v_now, p_route, v_id, p_key, p_type,
            p_headers, p_body, v_fingerprint)
        ON CONFLICT (route, id) WHERE kept DO NOTHING;
    IF NOT FOUND THEN
        SELECT o.fingerprint INTO v_was FROM "@schema@".outbox o
            WHERE o.route = p_route AND o.id = p_id AND o.kept;
        IF v_was <> v_fingerprint THEN
            RAISE EXCEPTION 'id: it was emitted before with another body'
                USING ERRCODE = 'ON010';
        END IF;
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM "@schema@".relay_idle n
        WHERE n.route = p_route AND n.idle AND n.until_ms > v_now) THEN
        PERFORM pg_notify('once_outbox', p_route);
    END IF;
    v_called := set_config('once.called',
        extract(epoch FROM statement_timestamp())::text, true);
    RETURN v_id;
END
$f$;

-- Enters a branch's Try, Confirm or Cancel: first in the branch's transaction.
--
--    run       do it and commit
--    done      it was done before: answer as before
--    empty     Cancel before any Try: nothing to undo; commit, so that a late Try
--              is refused
--    refused   Try after Cancel, or Try of a gid that is too old
--    early     Confirm before Try: ask again later
--    conflict  Confirm after Cancel, or Cancel after Confirm
CREATE OR REPLACE FUNCTION "@schema@".barrier_enter(p_gid anycompatible,
    p_branch text, p_op text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $f$
DECLARE
    v_gid text := format('%s', p_gid);
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_to smallint := CASE p_op WHEN 'confirm' THEN 2 ELSE 3 END;
    v_ms bigint;
    v_phase smallint;
BEGIN
    PERFORM "@schema@".check_1('gid', v_gid);
    PERFORM "@schema@".check_1('branch', p_branch);
    IF p_op IS NULL OR p_op NOT IN ('try', 'confirm', 'cancel') THEN
        RAISE EXCEPTION 'op: it is not try, confirm or cancel'
            USING ERRCODE = '22023';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        RAISE EXCEPTION 'synchronous_commit is off in this session'
            USING ERRCODE = 'ON001';
    END IF;
    SELECT b.phase INTO v_phase FROM "@schema@".barrier b
        WHERE b.gid = v_gid AND b.branch = p_branch;
    IF v_phase IS NULL AND p_op = 'try' THEN
        v_ms := "@schema@".id_ms_1(v_gid);
        IF v_ms > 0 AND v_ms < (SELECT greatest(v_now - m.keep_ms, m.floor_ms)
            FROM "@schema@".message_meta m) THEN
            RETURN 'refused'; -- its barrier may have been purged
        END IF;
    END IF;
    IF v_phase IS NULL AND p_op <> 'confirm' THEN
        INSERT INTO "@schema@".barrier VALUES (v_gid, p_branch,
            CASE p_op WHEN 'try' THEN 1 ELSE 4 END,
            greatest(v_now, "@schema@".id_ms_1(v_gid)))
            ON CONFLICT DO NOTHING;
        IF FOUND AND p_op = 'try' THEN
            PERFORM set_config('once.called',
                extract(epoch FROM statement_timestamp())::text, true);
            RETURN 'run';
        ELSIF FOUND THEN
            RETURN 'empty';
        END IF;
    END IF;
    IF p_op <> 'try' THEN
        UPDATE "@schema@".barrier b
            SET phase = v_to, at_ms = greatest(b.at_ms, v_now)
            WHERE b.gid = v_gid AND b.branch = p_branch AND b.phase = 1;
        IF FOUND THEN
            PERFORM set_config('once.called',
                extract(epoch FROM statement_timestamp())::text, true);
            RETURN 'run';
        END IF;
    END IF;
    SELECT b.phase INTO v_phase FROM "@schema@".barrier b
        WHERE b.gid = v_gid AND b.branch = p_branch;
    RETURN CASE
        WHEN v_phase IS NULL THEN 'early'
        WHEN p_op = 'try' THEN CASE WHEN v_phase < 3 THEN 'done'
            ELSE 'refused' END
        WHEN v_phase = v_to OR (p_op = 'cancel' AND v_phase = 4) THEN 'done'
        ELSE 'conflict' END;
END
$f$;

-- Writes one call of a saga to the outbox. p_op: 1 try, 2 confirm, 3 cancel.
CREATE OR REPLACE FUNCTION "@schema@".saga_call_1(p_gid text, p_branch bigint,
    p_op bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_op text := (ARRAY['try', 'confirm', 'cancel'])[p_op];
    v_route text;
BEGIN
    INSERT INTO "@schema@".outbox (phase, kept, due_ms, at_ms, route, id, saga,
            type, headers, body, fingerprint)
        SELECT 0, true, 0, v_now,
            CASE p_op WHEN 1 THEN t.try_to WHEN 2 THEN t.confirm_to
                ELSE t.cancel_to END,
            p_gid || '/' || p_branch || '/' || v_op
                || CASE t.round WHEN 0 THEN '' ELSE '/' || t.round END,
            p_gid, t.type, 'Once-Saga: ' || p_gid || '; branch=' || p_branch
                || '; op=' || v_op || E'\n', t.body, sha256(t.body)
        FROM "@schema@".saga_step t
        WHERE t.gid = p_gid AND t.branch = p_branch
        RETURNING route INTO STRICT v_route;
    IF EXISTS (SELECT FROM "@schema@".relay_idle n
        WHERE n.route = v_route AND n.idle AND n.until_ms > v_now) THEN
        PERFORM pg_notify('once_outbox', v_route);
    END IF;
END
$f$;

-- Starts a saga in the caller's transaction. p_steps is an array of objects with
-- the members try, confirm, cancel (routes; the last two may be missing), type,
-- and body (any JSON, sent as it stands here) or hex (any bytes). The gid, drawn
-- if none is given; NULL: it was started before with the same kind and steps.
-- p_deadline: when a saga that has not tried every step is undone [in an hour].
-- ON010: it was started with others; ON015: the gid is older than what is kept.
CREATE OR REPLACE FUNCTION "@schema@".saga_start(p_kind text, p_steps json,
    p_gid anycompatible DEFAULT NULL, p_deadline timestamptz DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_keep bigint;
    v_floor bigint;
    v_deadline bigint;
    v_gid text := CASE WHEN p_gid IS NOT NULL THEN format('%s', p_gid) END;
    v_print bytea;
    v_was bytea;
    v_step record;
BEGIN
    PERFORM "@schema@".check_1('kind', p_kind);
    IF v_gid COLLATE "C" !~ '^[-A-Za-z0-9._~:]{1,200}$' THEN
        RAISE EXCEPTION 'gid: it is not 1 to 200 of A-Z a-z 0-9 - . _ ~ :'
            USING ERRCODE = '22023';
    END IF;
    IF p_steps IS NULL OR json_typeof(p_steps) <> 'array'
        OR json_array_length(p_steps) NOT BETWEEN 1 AND 32 THEN
        RAISE EXCEPTION 'steps: they are not an array of 1 to 32 objects'
            USING ERRCODE = '22023';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        RAISE EXCEPTION 'synchronous_commit is off in this session'
            USING ERRCODE = 'ON001';
    END IF;
    SELECT m.keep_ms, m.floor_ms INTO v_keep, v_floor
        FROM "@schema@".message_meta m;
    IF NOT isfinite(coalesce(p_deadline, now())) THEN
        RAISE EXCEPTION 'deadline: it is not a time' USING ERRCODE = '22023';
    END IF;
    v_deadline := coalesce(extract(epoch FROM p_deadline) * 1000,
        v_now + least(3600000, v_keep / 2));
    IF v_deadline >= v_now + v_keep OR v_deadline < 0 THEN
        RAISE EXCEPTION 'deadline: it is after the window in which ids are '
            'remembered' USING ERRCODE = '22023';
    END IF;
    IF v_gid IS NULL THEN
        v_gid := overlay(gen_random_uuid()::text placing
            lpad(to_hex(v_now >> 16), 8, '0') || '-'
            || lpad(to_hex(v_now & 65535), 4, '0') || '-7' from 1 for 15);
    END IF;
    v_print := sha256(convert_to(p_kind || ' ' || p_steps::text, 'UTF8'));
    SELECT s.fingerprint INTO v_was FROM "@schema@".saga s WHERE s.gid = v_gid;
    IF v_was IS NULL THEN
        IF "@schema@".id_ms_1(v_gid) BETWEEN 1
            AND greatest(v_now - v_keep, v_floor) - 1 THEN
            RAISE EXCEPTION 'gid: it is older than the window in which ids are '
                'remembered' USING ERRCODE = 'ON015';
        END IF;
        INSERT INTO "@schema@".saga VALUES (v_gid, p_kind, 0, 1, v_deadline,
            v_now, v_now, v_print) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN -- another has committed it since
            SELECT s.fingerprint INTO v_was FROM "@schema@".saga s
                WHERE s.gid = v_gid;
            IF v_was IS NULL THEN
                RAISE EXCEPTION 'the row has gone' USING ERRCODE = '40001';
            END IF;
        END IF;
    END IF;
    IF v_was <> v_print THEN
        RAISE EXCEPTION 'gid: it was started before with other steps'
            USING ERRCODE = 'ON010';
    ELSIF v_was IS NOT NULL THEN
        RETURN NULL;
    END IF;
    FOR v_step IN
        SELECT e.step, e.no, e.step->>'try' AS try_to,
            e.step->>'confirm' AS confirm_to, e.step->>'cancel' AS cancel_to,
            coalesce(e.step->>'type', CASE WHEN e.step->'body' IS NULL THEN ''
                ELSE 'application/json' END) AS type,
            CASE WHEN e.step->>'hex' IS NOT NULL
                    THEN decode(e.step->>'hex', 'hex')
                WHEN e.step->'body' IS NOT NULL
                    THEN convert_to((e.step->'body')::text, 'UTF8')
                ELSE '' END AS body
        FROM json_array_elements(p_steps) WITH ORDINALITY AS e (step, no)
    LOOP
        PERFORM "@schema@".check_1('try', v_step.try_to);
        IF v_step.confirm_to IS NOT NULL THEN
            PERFORM "@schema@".check_1('confirm', v_step.confirm_to);
        END IF;
        IF v_step.cancel_to IS NOT NULL THEN
            PERFORM "@schema@".check_1('cancel', v_step.cancel_to);
        END IF;
        IF EXISTS (SELECT FROM json_object_keys(v_step.step) AS k (name)
            WHERE k.name NOT IN ('try', 'confirm', 'cancel', 'type', 'body',
                'hex')) THEN
            RAISE EXCEPTION 'steps: a member that is not try, confirm, cancel, '
                'type, body or hex' USING ERRCODE = '22023';
        END IF;
        IF octet_length(v_step.type) > 255
            OR v_step.type COLLATE "C" ~ '[^ -~]' THEN
            RAISE EXCEPTION 'type: it is not up to 255 characters of ASCII'
                USING ERRCODE = '22023';
        END IF;
        IF octet_length(v_step.body) > 1048576 THEN
            RAISE EXCEPTION 'body: it is larger than 1048576 bytes'
                USING ERRCODE = '22023';
        END IF;
        INSERT INTO "@schema@".saga_step (gid, branch, state, try_to,
                confirm_to, cancel_to, type, body)
            VALUES (v_gid, v_step.no, CASE v_step.no WHEN 1 THEN 1 ELSE 0 END,
                v_step.try_to, v_step.confirm_to, v_step.cancel_to,
                v_step.type, v_step.body);
    END LOOP;
    PERFORM "@schema@".saga_call_1(v_gid, 1, 1);
    PERFORM set_config('once.called',
        extract(epoch FROM statement_timestamp())::text, true);
    RETURN v_gid;
END
$f$;

-- All that decides how a saga goes on, in one snapshot; no row: there is none.
--    what  no       state  n         m      flags
--    0     version  state  late: 1                      the saga
--    1     branch   state  failed    round  1 Confirm,  a step, in order
--                                           2 Cancel
--    2     seq      phase  attempts                     a call that nobody has
--                                                       under way
CREATE OR REPLACE FUNCTION "@schema@".saga_read_1(p_gid text) RETURNS TABLE (
    what bigint, no bigint, state bigint, n bigint, m bigint, flags bigint,
    id text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
#variable_conflict use_column
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    RETURN QUERY
        SELECT 0::bigint, s.version::bigint, s.state::bigint,
            (s.deadline_ms <= v_now)::integer::bigint, 0::bigint, 0::bigint, ''
        FROM "@schema@".saga s WHERE s.gid = p_gid
        UNION ALL
        SELECT 1, t.branch, t.state, t.failed, t.round,
            (t.confirm_to IS NOT NULL)::integer
            + 2 * (t.cancel_to IS NOT NULL)::integer, ''
        FROM "@schema@".saga_step t WHERE t.gid = p_gid
        UNION ALL
        SELECT 2, o.seq, o.phase, o.attempts, 0, 0, o.id
        FROM "@schema@".outbox o WHERE o.saga = p_gid
            AND (o.phase > 0 OR o.lease_ms - v_now NOT BETWEEN 1 AND 3600000)
            AND NOT EXISTS (SELECT FROM "@schema@".leases_1(o.route, v_now) AS l
                WHERE o.phase = 0 AND l.seq = o.seq)
        ORDER BY 1, 2;
END
$f$;

-- Writes what once__saga_next() has decided, if nothing has changed since it was
-- read. p_steps: (branch, state, failed, round) of those that changed. p_taken:
-- (seq, phase, attempts, branch or 0) of calls that were looked at and go; their
-- answer is kept with that step. p_calls: (branch, op) to make. p_note NULL: it
-- stays. ok, or changed.
CREATE OR REPLACE FUNCTION "@schema@".saga_write_1(p_gid text,
    p_version bigint, p_state integer, p_note text, p_steps bigint[],
    p_taken bigint[], p_calls bigint[])
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_back bigint[] := ARRAY(SELECT p_taken[x.n][1]
        FROM generate_subscripts(p_taken, 1) AS x (n) WHERE p_taken[x.n][2] = 0);
    i integer;
BEGIN
    PERFORM "@schema@".fit_1();
    IF v_back <> '{}' THEN -- a call that is taken back must not be claimed meanwhile
        PERFORM "@schema@".settle_lock_1(v_back);
    END IF;
    UPDATE "@schema@".saga s SET version = s.version + 1, state = p_state,
            since_ms = CASE s.state WHEN p_state THEN s.since_ms ELSE v_now END,
            note = coalesce(p_note, s.note)
        WHERE s.gid = p_gid AND s.version = p_version;
    IF NOT FOUND THEN
        RETURN 'changed';
    END IF;
    FOR i IN 1..coalesce(array_length(p_steps, 1), 0) LOOP
        UPDATE "@schema@".saga_step t SET state = p_steps[i][2],
                failed = p_steps[i][3], round = p_steps[i][4]
            WHERE t.gid = p_gid AND t.branch = p_steps[i][1];
    END LOOP;
    FOR i IN 1..coalesce(array_length(p_taken, 1), 0) LOOP
        UPDATE "@schema@".saga_step t SET status = o.status, reply = o.reply,
                error = o.error
            FROM "@schema@".outbox o WHERE o.seq = p_taken[i][1]
                AND t.gid = p_gid AND t.branch = p_taken[i][4];
        DELETE FROM "@schema@".outbox o WHERE o.seq = p_taken[i][1]
            AND o.saga = p_gid AND o.phase = p_taken[i][2]
            AND o.attempts = p_taken[i][3]
            AND (o.phase > 0 OR NOT EXISTS (
                SELECT FROM "@schema@".relay_lease l
                WHERE l.route = o.route AND o.seq = ANY (l.seqs)));
        IF NOT FOUND THEN
            RAISE EXCEPTION 'a call has changed' USING ERRCODE = 'ON016';
        END IF;
    END LOOP;
    FOR i IN 1..coalesce(array_length(p_calls, 1), 0) LOOP
        PERFORM "@schema@".saga_call_1(p_gid, p_calls[i][1], p_calls[i][2]);
    END LOOP;
    RETURN 'ok';
END
$f$;

-- The end of a call that is still its claimer's, and what saga_write_1() makes of it:
-- both, or neither. p_own: (seq, attempt, branch or 0, status); `attempt` is the
-- fence, as in outbox_settle_1(). A call has no key, so no row waits for it, and a
-- claim of its route may look meanwhile. ok, or changed; ON016: it is not the
-- claimer's any more.
CREATE OR REPLACE FUNCTION "@schema@".saga_settle_1(p_gid text,
    p_version bigint, p_state integer, p_note text, p_steps bigint[],
    p_taken bigint[], p_calls bigint[], p_own bigint[], p_reply bytea,
    p_error text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
BEGIN
    IF "@schema@".saga_write_1(p_gid, p_version, p_state, p_note, p_steps,
        p_taken, p_calls) <> 'ok' THEN
        RETURN 'changed';
    END IF;
    DELETE FROM "@schema@".outbox o WHERE o.seq = p_own[1] AND o.saga = p_gid
        AND o.attempts = p_own[2] AND o.phase IN (0, 4) AND o.lease_ms > 0;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a call has changed' USING ERRCODE = 'ON016';
    END IF;
    UPDATE "@schema@".saga_step t SET status = p_own[4], reply = p_reply,
            error = p_error
        WHERE t.gid = p_gid AND t.branch = p_own[3];
    RETURN 'ok';
END
$f$;

-- Sagas to look at: calls of theirs have ended, or their deadline has passed.
CREATE OR REPLACE FUNCTION "@schema@".saga_due_1(p_n integer)
RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    RETURN QUERY (SELECT DISTINCT o.saga FROM "@schema@".outbox o
            WHERE o.saga IS NOT NULL AND o.phase IN (2, 3, 4) LIMIT p_n)
        UNION
        (SELECT s.gid FROM "@schema@".saga s
            WHERE s.state = 0 AND s.deadline_ms <= v_now
            ORDER BY s.deadline_ms LIMIT p_n)
        LIMIT p_n;
END
$f$;

-- Sagas after p_after, in the order of their gids. p_state, p_gid NULL: all.
CREATE OR REPLACE FUNCTION "@schema@".saga_list_1(p_gid text, p_state integer,
    p_after text, p_n integer)
RETURNS TABLE (gid text, kind text, note text, state bigint, version bigint,
    n bigint, deadline_ms bigint, at_ms bigint, since_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT s.gid, s.kind, s.note, s.state::bigint,
            s.version::bigint, (SELECT count(*) FROM "@schema@".saga_step t
                WHERE t.gid = s.gid), s.deadline_ms, s.at_ms, s.since_ms
        FROM "@schema@".saga s WHERE s.gid > p_after
            AND (p_gid IS NULL OR s.gid = p_gid)
            AND (p_state IS NULL OR s.state = p_state)
        ORDER BY s.gid LIMIT p_n;
$f$;

-- A saga's steps, each with its call that is under way: `seq` 0 if there is none.
CREATE OR REPLACE FUNCTION "@schema@".saga_steps_1(p_gid text)
RETURNS TABLE (try_to text, confirm_to text, cancel_to text, error text,
    trouble text, state bigint, failed bigint, round bigint, status bigint,
    seq bigint, phase bigint, attempts bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT t.try_to, coalesce(t.confirm_to, ''),
            coalesce(t.cancel_to, ''), t.error, coalesce(o.error, ''),
            t.state::bigint, t.failed::bigint, t.round::bigint,
            coalesce(t.status, 0)::bigint, coalesce(o.seq, 0),
            coalesce(o.phase, 0)::bigint, coalesce(o.attempts, 0)::bigint
                + (SELECT count(*) FROM "@schema@".relay_lease l
                    WHERE l.route = o.route AND o.seq = ANY (l.seqs))
        FROM "@schema@".saga_step t LEFT JOIN "@schema@".outbox o
            ON o.saga = p_gid AND o.id = p_gid || '/' || t.branch
                || CASE t.state WHEN 1 THEN '/try' WHEN 3 THEN '/confirm'
                    WHEN 5 THEN '/cancel' END
                || CASE t.round WHEN 0 THEN '' ELSE '/' || t.round END
        WHERE t.gid = p_gid ORDER BY t.branch;
$f$;

-- How many sagas are in each state that has not ended well, in one row: 0, 1, 2
-- and 5, and for how long the oldest has been stuck.
CREATE OR REPLACE FUNCTION "@schema@".saga_stats_1() RETURNS TABLE (
    going bigint, confirming bigint, undoing bigint, stuck bigint,
    stuck_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT count(*) FILTER (WHERE s.state = 0),
            count(*) FILTER (WHERE s.state = 1),
            count(*) FILTER (WHERE s.state = 2),
            count(*) FILTER (WHERE s.state = 5),
            coalesce(greatest(
                (extract(epoch FROM clock_timestamp()) * 1000)::bigint
                - min(s.since_ms) FILTER (WHERE s.state = 5), 0), 0)
        FROM "@schema@".saga s WHERE s.state IN (0, 1, 2, 5);
$f$;

-- Sagas that ended before the floor; those that have not, never.
CREATE OR REPLACE FUNCTION "@schema@".saga_purge_1(p_max bigint)
RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    WITH gone AS (
        DELETE FROM "@schema@".saga s WHERE s.gid = ANY (ARRAY(
            SELECT c.gid FROM "@schema@".saga c
            WHERE c.since_ms < (SELECT m.floor_ms FROM "@schema@".message_meta m)
                AND c.state IN (3, 4) AND NOT EXISTS (
                    SELECT FROM "@schema@".outbox o WHERE o.saga = c.gid)
            LIMIT p_max)) RETURNING 1)
    SELECT count(*) FROM gone;
$f$;

-- A call in the caller's transaction: the inbox with a result.
--
--    run       do it, then finish(), then commit
--    replay    `kind` and `result` are those of the first call
--    repeated  it was committed without a result
--    mismatch, outside: as inbox_claim()
CREATE OR REPLACE FUNCTION "@schema@".begin(p_group text,
    p_key anycompatible, p_fingerprint bytea DEFAULT NULL)
RETURNS TABLE (answer text, kind smallint, result bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_key text := format('%s', p_key);
    v_xact xid8;
BEGIN
    answer := "@schema@".inbox_claim(p_group, v_key, p_fingerprint, 0, true);
    IF answer = 'done' THEN
        SELECT i.kind, i.result, i.xact INTO kind, result, v_xact
            FROM "@schema@".inbox i
            WHERE i.consumer = p_group AND i.id = v_key;
        IF kind = 0 AND v_xact = pg_current_xact_id() THEN
            RAISE EXCEPTION 'a call inside itself' USING ERRCODE = 'ON012';
        END IF;
        answer := CASE WHEN result IS NULL THEN 'repeated' ELSE 'replay' END;
    END IF;
    RETURN NEXT;
END
$f$;

-- Records what the call came to: kind 1 a success, 2 a failure that repeats are
-- given. ok, or none: this transaction has no call of that key under way; then
-- roll back, since the effect is unguarded.
CREATE OR REPLACE FUNCTION "@schema@".finish_bytes(p_group text,
    p_key text, p_kind integer, p_result bytea)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    IF p_group IS NULL OR p_key IS NULL OR p_kind IS NULL
        OR p_kind NOT IN (1, 2) OR p_result IS NULL
        OR octet_length(p_result) > 67108864 THEN
        RAISE EXCEPTION 'kind: it is not 1 or 2, or result: it is missing or '
            'larger than 67108864 bytes' USING ERRCODE = '22023';
    END IF;
    UPDATE "@schema@".inbox i SET kind = p_kind, result = p_result
        WHERE i.consumer = p_group AND i.id = p_key AND i.kind = 0
            AND i.xact = pg_current_xact_id();
    RETURN CASE WHEN FOUND THEN 'ok' ELSE 'none' END;
END
$f$;

-- What programs call with whatever they have: a body or result as text, which is
-- sent in UTF-8, as jsonb, or as bytes; keys and ids as text, bigint or uuid (a key
-- and an id of one call: both of one type). PostgreSQL takes a literal, and a
-- parameter whose type the driver leaves open, for text: were bytea alone there, it
-- would read it as its notation of bytes, and a backslash would go.
--
-- They have no rights of their own, and everybody may execute them: rights are
-- given on what they call. PostgreSQL writes their text in the place of a call.
CREATE OR REPLACE FUNCTION "@schema@".emit(p_route text, p_body bytea,
    p_key anycompatible DEFAULT NULL, p_id anycompatible DEFAULT NULL,
    p_type text DEFAULT '', p_headers text DEFAULT '',
    p_at timestamptz DEFAULT NULL, p_keep boolean DEFAULT false)
RETURNS text
LANGUAGE sql
AS $f$
    SELECT "@schema@".emit_bytes(p_route, p_body, p_key::pg_catalog.text,
        p_id::pg_catalog.text, p_type, p_headers, p_at, p_keep);
$f$;

CREATE OR REPLACE FUNCTION "@schema@".emit(p_route text, p_body text,
    p_key anycompatible DEFAULT NULL, p_id anycompatible DEFAULT NULL,
    p_type text DEFAULT '', p_headers text DEFAULT '',
    p_at timestamptz DEFAULT NULL, p_keep boolean DEFAULT false)
RETURNS text
LANGUAGE sql
AS $f$
    SELECT "@schema@".emit_bytes(p_route,
        pg_catalog.convert_to(p_body, 'UTF8'), p_key::pg_catalog.text,
        p_id::pg_catalog.text, p_type, p_headers, p_at, p_keep);
$f$;

CREATE OR REPLACE FUNCTION "@schema@".emit(p_route text, p_body jsonb,
    p_key anycompatible DEFAULT NULL, p_id anycompatible DEFAULT NULL,
    p_type text DEFAULT '', p_headers text DEFAULT '',
    p_at timestamptz DEFAULT NULL, p_keep boolean DEFAULT false)
RETURNS text
LANGUAGE sql
AS $f$
    SELECT "@schema@".emit_bytes(p_route,
        pg_catalog.convert_to(p_body::pg_catalog.text, 'UTF8'),
        p_key::pg_catalog.text, p_id::pg_catalog.text, p_type, p_headers, p_at,
        p_keep);
$f$;

-- An id is read here as inbox_claim() and begin() read it.
CREATE OR REPLACE FUNCTION "@schema@".inbox_park(p_consumer text,
    p_id anycompatible, p_fingerprint bytea, p_state integer, p_wait_ms bigint,
    p_key anycompatible, p_type text, p_headers text, p_body bytea, p_error text)
RETURNS text
LANGUAGE sql
AS $f$
    SELECT "@schema@".inbox_park_bytes(p_consumer,
        pg_catalog.format('%s', p_id), p_fingerprint, p_state, p_wait_ms,
        p_key::pg_catalog.text, p_type, p_headers, p_body, p_error);
$f$;

CREATE OR REPLACE FUNCTION "@schema@".inbox_park(p_consumer text,
    p_id anycompatible, p_fingerprint bytea, p_state integer, p_wait_ms bigint,
    p_key anycompatible, p_type text, p_headers text, p_body text, p_error text)
RETURNS text
LANGUAGE sql
AS $f$
    SELECT "@schema@".inbox_park_bytes(p_consumer,
        pg_catalog.format('%s', p_id), p_fingerprint, p_state, p_wait_ms,
        p_key::pg_catalog.text, p_type, p_headers,
        pg_catalog.convert_to(p_body, 'UTF8'), p_error);
$f$;

CREATE OR REPLACE FUNCTION "@schema@".finish(p_group text, p_key anycompatible,
    p_kind integer, p_result bytea)
RETURNS text
LANGUAGE sql
AS $f$
    SELECT "@schema@".finish_bytes(p_group, CASE
        WHEN p_key IS NOT NULL THEN pg_catalog.format('%s', p_key) END, p_kind,
        p_result);
$f$;

CREATE OR REPLACE FUNCTION "@schema@".finish(p_group text, p_key anycompatible,
    p_kind integer, p_result text)
RETURNS text
LANGUAGE sql
AS $f$
    SELECT "@schema@".finish_bytes(p_group, CASE
        WHEN p_key IS NOT NULL THEN pg_catalog.format('%s', p_key) END, p_kind,
        pg_catalog.convert_to(p_result, 'UTF8'));
$f$;

-- Raises the floor: ids that carry a time before it are refused from now on, and
-- their rows may go. In a transaction of its own, before purge_1(). The new one.
CREATE OR REPLACE FUNCTION "@schema@".floor_1(p_slack_ms bigint)
RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    UPDATE "@schema@".message_meta m SET floor_ms = greatest(m.floor_ms,
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint - m.keep_ms
                - p_slack_ms)
        RETURNING m.floor_ms;
$f$;

-- Forgets rows of the inbox that are older than the floor, in p_pages pages from
-- page p_from on; how many. -1: there is no such page. A row whose id, or whose
-- clock, was further ahead than the window counts from a window ahead of now.
CREATE OR REPLACE FUNCTION "@schema@".inbox_purge_1(p_from bigint,
    p_pages bigint)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_floor bigint := (SELECT m.floor_ms FROM "@schema@".message_meta m);
    v_ahead bigint := (SELECT extract(epoch FROM clock_timestamp()) * 1000
        + m.keep_ms FROM "@schema@".message_meta m);
    v_n bigint;
BEGIN
    IF p_from * current_setting('block_size')::bigint
        >= pg_relation_size('"@schema@".inbox') THEN
        RETURN -1;
    END IF;
    DELETE FROM "@schema@".inbox i
        WHERE i.ctid >= format('(%s,0)', p_from)::tid
            AND i.ctid < format('(%s,0)', p_from + p_pages)::tid
            AND i.at_ms < v_floor
            AND NOT EXISTS (SELECT FROM "@schema@".parked k
                WHERE k.consumer = i.consumer AND k.id = i.id);
    GET DIAGNOSTICS v_n = ROW_COUNT;
    UPDATE "@schema@".inbox i SET at_ms = v_ahead
        WHERE i.ctid >= format('(%s,0)', p_from)::tid
            AND i.ctid < format('(%s,0)', p_from + p_pages)::tid
            AND i.at_ms > v_ahead;
    RETURN v_n;
END
$f$;

-- Barriers that ended, twice keep_ms ago; tried ones never go by their age.
CREATE OR REPLACE FUNCTION "@schema@".barrier_purge_1(p_max bigint)
RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    WITH gone AS (
        DELETE FROM "@schema@".barrier b WHERE b.ctid = ANY (ARRAY(
            SELECT c.ctid FROM "@schema@".barrier c
            WHERE c.phase > 1 AND c.at_ms < (SELECT m.floor_ms - m.keep_ms
                FROM "@schema@".message_meta m) LIMIT p_max)) RETURNING 1)
    SELECT count(*) FROM gone;
$f$;

-- ---- For `once` of this version, and for nobody else --------------------------

-- Raises unless what this transaction commits stays, and each of its statements
-- sees what was committed before that statement.
CREATE OR REPLACE FUNCTION "@schema@".fit_1() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        RAISE EXCEPTION 'synchronous_commit is off in this session'
            USING ERRCODE = 'ON001';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this transaction is not READ COMMITTED'
            USING ERRCODE = 'ON013';
    END IF;
END
$f$;

-- Takes the lock of routes with this hash until the transaction ends: alone, or
-- together with others that are not alone.
CREATE OR REPLACE FUNCTION "@schema@".lock_1(p_hash integer, p_alone boolean)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    EXECUTE format('LOCK TABLE "@schema@".route_lock_%s IN %s MODE',
        p_hash & 15, CASE WHEN p_alone THEN 'EXCLUSIVE' ELSE 'ROW SHARE' END);
END
$f$;

-- The rows of a route that a lease has which runs.
CREATE OR REPLACE FUNCTION "@schema@".leases_1(p_route text, p_now bigint)
RETURNS TABLE (no bigint, seq bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT l.no, unnest(l.seqs) FROM "@schema@".relay_lease l
        WHERE l.route = p_route AND l.until_ms - p_now BETWEEN 1 AND 3600000;
$f$;

-- Leases of a route that ran out: their attempts are counted now, and in doubt. So
-- a late answer to them is taken by the count, as one to a claim of single rows.
CREATE OR REPLACE FUNCTION "@schema@".leases_end_1(p_route text, p_now bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_lease "@schema@".relay_lease;
BEGIN
    FOR v_lease IN DELETE FROM "@schema@".relay_lease l WHERE l.route = p_route
        AND l.until_ms - p_now NOT BETWEEN 1 AND 3600000 RETURNING l.*
    LOOP
        UPDATE "@schema@".outbox o SET attempts = o.attempts + 1,
                doubt = o.doubt + 1, lease_ms = v_lease.until_ms,
                doubt_ms = CASE o.doubt WHEN 0 THEN v_lease.at_ms
                    ELSE o.doubt_ms END
            WHERE o.seq = ANY (v_lease.seqs);
    END LOOP;
END
$f$;

-- Claims up to p_n rows of a route, and no more than about 16 MB of bodies. A
-- row is leased while its lease_ms is up to an hour ahead; further ahead it was
-- written by a clock that went back. A row waits behind an earlier row of its key
-- that is leased or has stopped: waiting, and unless p_pass dead or
-- indeterminate. p_hold: a row whose lease ran out becomes indeterminate. p_each:
-- they will be settled one by one, so each is written; else `lease` is the number
-- of the lease that all of them have.
--
-- One claimer of a route at a time; settling and deciding wait for it and make it
-- wait, so that the rows that it looks at do not change meanwhile.
CREATE OR REPLACE FUNCTION "@schema@".outbox_claim_1(p_route text, p_n bigint,
    p_lease_ms bigint, p_hold boolean, p_pass boolean, p_each boolean)
RETURNS TABLE (seq bigint, attempts integer, doubt integer, refused integer,
    doubt_ms bigint, phase smallint, status integer, lease_ms bigint,
    at_ms bigint, due_ms bigint, saga text, error text, route text, id text,
    key text, type text, headers text, kept boolean, body bytea, reply bytea,
    now_ms bigint, lease bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_lease bigint := 0;
    v_plain boolean := false;
    v_quick boolean := false;
    v_look bigint := 10 * p_n;
    v_from bigint := 0;
    v_last bigint;
    v_seen bigint;
    v_ahead bigint;
    v_end bigint := 9223372036854775807;
    v_many boolean;
    v_stop jsonb;
    v_busy jsonb := '{}';
    v_more jsonb;
    v_leased bigint[];
    v_late bigint[];
    v_held bigint[];
    v_seqs bigint[];
BEGIN
    PERFORM "@schema@".check_1('route', p_route);
    IF p_n IS NULL OR p_n NOT BETWEEN 1 AND 10000 OR p_lease_ms IS NULL
        OR p_lease_ms NOT BETWEEN 1 AND 3600000 OR p_hold IS NULL
        OR p_pass IS NULL OR p_each IS NULL THEN
        RAISE EXCEPTION 'n or lease_ms: it is out of its limits, or an '
            'argument is missing' USING ERRCODE = '22023';
    END IF;
    PERFORM "@schema@".fit_1();
    PERFORM "@schema@".lock_1(hashtext(p_route), true);
    v_now := extract(epoch FROM clock_timestamp()) * 1000;
    PERFORM "@schema@".leases_end_1(p_route, v_now);
    -- No claim makes a lease meanwhile. A settlement may end one, with its rows.
    v_leased := ARRAY(SELECT unnest(l.seqs) FROM "@schema@".relay_lease l
        WHERE l.route = p_route);
    UPDATE "@schema@".outbox o SET phase = 0
        WHERE o.seq = ANY (ARRAY(SELECT d.seq FROM "@schema@".outbox d
            WHERE d.route = p_route AND d.phase = 1 AND d.due_ms <= v_now
            ORDER BY d.due_ms LIMIT p_n));
    -- Rows without a key wait for none: those that come next are all that is needed.
    IF NOT p_hold THEN
        SELECT array_agg(x.seq ORDER BY x.seq),
                coalesce(bool_and(x.plain) AND sum(x.size) < 16777216, true)
            INTO v_seqs, v_plain FROM (
                SELECT o.seq, octet_length(o.body) AS size,
                    o.key IS NULL AND o.lease_ms = 0 AS plain
                FROM "@schema@".outbox o
                WHERE o.phase = 0 AND (o.route, o.seq) > (p_route, 0)
                    AND (o.route, o.seq) <= (p_route, v_end)
                    AND o.seq NOT IN (SELECT unnest(v_leased))
                ORDER BY o.route, o.seq LIMIT p_n) AS x;
        v_quick := NOT v_plain;
        v_look := p_n + cardinality(v_leased);
    END IF;
    -- Keys that have stopped, and where. As one value and not as a table to join:
    -- so the oldest rows are read in order, whatever the planner expects.
    IF NOT v_plain THEN
        SELECT count(*) > 10000 INTO v_many FROM (
            SELECT FROM "@schema@".outbox p WHERE p.route = p_route
                AND p.phase IN (1, 3, 4) AND p.key IS NOT NULL LIMIT 10001) AS x;
    END IF;
    LOOP
        EXIT WHEN v_plain;
        IF v_many THEN -- only the keys of the rows that come next, up to v_end
            WITH n AS MATERIALIZED (
                SELECT o.seq, o.key FROM "@schema@".outbox o
                WHERE o.phase = 0 AND (o.route, o.seq) > (p_route, v_from)
                    AND (o.route, o.seq) <= (p_route, 9223372036854775807)
                ORDER BY o.route, o.seq LIMIT v_look)
            SELECT (SELECT max(n.seq) FROM n), (SELECT count(*) FROM n), (
                SELECT jsonb_object_agg(k.key, h.seq)
                FROM (SELECT DISTINCT n.key FROM n WHERE n.key IS NOT NULL) AS k
                CROSS JOIN LATERAL (
                    SELECT p.seq FROM "@schema@".outbox p
                    WHERE p.route = p_route AND p.key = k.key
                        AND p.phase IN (1, 3, 4) AND (p.phase = 1 OR NOT p_pass)
                    ORDER BY p.seq LIMIT 1) AS h)
                INTO v_end, v_ahead, v_stop;
        ELSE
            SELECT jsonb_object_agg(h.key, h.seq) INTO v_stop FROM (
                SELECT p.key, min(p.seq) AS seq FROM "@schema@".outbox p
                WHERE p.route = p_route AND p.phase IN (1, 3, 4)
                    AND p.key IS NOT NULL AND (p.phase = 1 OR NOT p_pass)
                GROUP BY p.key) AS h;
        END IF;
        v_stop := coalesce(v_stop, '{}') || v_busy;
        -- w: the oldest rows before that. r: which of these wait. Look-ups row by
        -- row would take seconds. Rows are compared with their routes, or the
        -- planner would read the primary key, past all that is done.
        WITH w AS MATERIALIZED (
            SELECT o.seq, o.key, octet_length(o.body) AS size,
                o.lease_ms - v_now BETWEEN 1 AND 3600000
                    OR o.seq IN (SELECT unnest(v_leased)) AS leased,
                p_hold AND o.lease_ms > 0
                    AND o.lease_ms - v_now NOT BETWEEN 1 AND 3600000 AS late
            FROM "@schema@".outbox o
            WHERE o.phase = 0 AND (o.route, o.seq) > (p_route, v_from)
                AND (o.route, o.seq) <= (p_route, v_end)
                AND coalesce((v_stop ->> o.key)::bigint > o.seq, true)
            ORDER BY o.route, o.seq LIMIT v_look),
        r AS (
            SELECT w.seq, w.key, w.size, w.late,
                w.leased OR (w.late AND NOT p_pass) AS blocks,
                w.leased OR w.late
                OR (w.key IS NOT NULL AND bool_or(w.leased
                    OR (w.late AND NOT p_pass)) OVER k) AS waits
            FROM w WINDOW k AS (PARTITION BY w.key ORDER BY w.seq)),
        t AS (
            SELECT r.seq, r.key, r.late, r.blocks, r.waits,
                count(*) FILTER (WHERE NOT r.waits) OVER s AS nth,
                sum(r.size) FILTER (WHERE NOT r.waits) OVER s - r.size AS before
            FROM r WINDOW s AS (ORDER BY r.seq))
        SELECT count(*), max(t.seq), array_agg(t.seq) FILTER (WHERE t.late),
                jsonb_object_agg(t.key, 0)
                    FILTER (WHERE t.blocks AND t.key IS NOT NULL),
                array_agg(t.seq ORDER BY t.seq) FILTER (WHERE NOT t.waits
                    AND t.nth <= p_n
                    AND t.before < 16777216)
            INTO v_seen, v_last, v_held, v_more, v_seqs FROM t;
        IF v_quick AND coalesce(cardinality(v_seqs), 0) < p_n
            AND ((v_many AND v_ahead = v_look)
                OR (NOT v_many AND v_seen = v_look)) THEN
            v_quick := false;
            v_look := 10 * p_n;
            CONTINUE;
        END IF;
        v_late := v_late || v_held;
        -- Where all of them wait for others, look further, past the rows of the
        -- keys that they wait for; at last behind all rows whose keys have stopped.
        EXIT WHEN v_seqs IS NOT NULL OR (v_look >= 100000 AND NOT v_many)
            OR CASE WHEN v_many THEN v_ahead ELSE v_seen END < v_look;
        v_from := CASE WHEN v_many THEN v_end ELSE v_last END;
        v_busy := v_busy || coalesce(v_more, '{}');
        IF v_look >= 100000 THEN
            v_many := false;
            v_end := 9223372036854775807;
        END IF;
        v_look := least(v_look * 10, 100000);
    END LOOP;
    UPDATE "@schema@".outbox o
        SET phase = 4, error = 'its lease ran out: it may have been taken'
        WHERE o.seq = ANY (v_late);
    -- Programs have committed since each of these looks. What has to go before a
    -- row of its key was there before it, so it can be seen now.
    IF v_seqs IS NOT NULL AND NOT v_plain THEN
        v_seqs := ARRAY(SELECT o.seq FROM "@schema@".outbox o
            WHERE o.seq = ANY (v_seqs) AND (o.key IS NULL OR NOT EXISTS (
                    SELECT FROM "@schema@".outbox p
                    WHERE p.route = p_route AND p.key = o.key AND p.seq < o.seq
                        AND p.phase IN (1, 3, 4) AND p.key IS NOT NULL
                        AND (p.phase = 1 OR NOT p_pass)))
            ORDER BY o.seq);
    END IF;
    IF v_from > 0 THEN
        v_seqs := ARRAY(SELECT o.seq FROM "@schema@".outbox o
            WHERE o.seq = ANY (v_seqs) AND (o.key IS NULL OR o.key NOT IN (
                    SELECT p.key FROM "@schema@".outbox p
                    WHERE p.phase = 0 AND (p.route, p.seq) > (p_route, 0)
                        AND (p.route, p.seq) <= (p_route, v_from)
                        AND p.key IS NOT NULL))
            ORDER BY o.seq);
    END IF;
    IF coalesce(cardinality(v_seqs), 0) = 0 THEN
        RETURN;
    ELSIF p_each OR cardinality(v_seqs) < 4 THEN
        RETURN QUERY UPDATE "@schema@".outbox o
            SET attempts = o.attempts + 1, doubt = o.doubt + 1,
                lease_ms = v_now + p_lease_ms,
                doubt_ms = CASE o.doubt WHEN 0 THEN v_now ELSE o.doubt_ms END
            WHERE o.seq = ANY (v_seqs)
            RETURNING o.seq, o.attempts, o.doubt, o.refused, o.doubt_ms, o.phase,
                o.status, o.lease_ms, o.at_ms, o.due_ms, o.saga, o.error,
                o.route, o.id, o.key, o.type, o.headers, o.kept, o.body,
                o.reply, v_now, v_lease;
        RETURN;
    END IF;
    INSERT INTO "@schema@".relay_lease (route, at_ms, until_ms, seqs)
        VALUES (p_route, v_now, v_now + p_lease_ms, v_seqs)
        RETURNING relay_lease.no INTO v_lease;
    -- An earlier claim of theirs may have run out: it is over. Where its claimer is
    -- just settling a call of a saga, this waits, and the row is gone then.
    IF NOT v_plain THEN
        UPDATE "@schema@".outbox o SET lease_ms = 0
            WHERE o.seq = ANY (v_seqs) AND o.lease_ms > 0;
    END IF;
    RETURN QUERY SELECT o.seq, o.attempts + 1, o.doubt + 1, o.refused,
            CASE o.doubt WHEN 0 THEN v_now ELSE o.doubt_ms END, o.phase,
            o.status, o.lease_ms, o.at_ms, o.due_ms, o.saga, o.error, o.route,
            o.id, o.key, o.type, o.headers, o.kept, o.body, o.reply, v_now,
            v_lease
        FROM "@schema@".outbox o WHERE o.seq = ANY (v_seqs);
END
$f$;

-- Takes the locks of the routes of these rows, together with others.
CREATE OR REPLACE FUNCTION "@schema@".settle_lock_1(p_seq bigint[])
RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT "@schema@".lock_1(h.route, false)
        FROM (SELECT DISTINCT hashtext(o.route) & 15 AS route
            FROM "@schema@".outbox o WHERE o.seq = ANY (p_seq)
            ORDER BY 1) AS h;
$f$;

-- How claimed rows ended, one element of each array for a row. The places in the
-- arrays, from 1, of those that were still the claimer's. p_lease: of their claim,
-- or 0. While it is there, nobody else has touched its rows. Else p_attempt is the
-- fence, and lease_ms > 0 says that the claim was not settled before, so that
-- nothing is counted twice when this is asked again. A late answer is taken from a
-- row that became indeterminate meanwhile, too, as a late complete is.
CREATE OR REPLACE FUNCTION "@schema@".outbox_settle_1(p_lease bigint,
    p_seq bigint[], p_attempt integer[], p_phase integer[], p_wait_ms bigint[],
    p_harmless integer[], p_refused integer[], p_status integer[],
    p_reply bytea[], p_error text[])
RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
DECLARE
    v_now bigint;
    v_leased boolean := false;
    v_whole boolean;
    v_gone bigint;
    v_rest bigint[];
    v_lease "@schema@".relay_lease;
BEGIN
    PERFORM "@schema@".fit_1();
    IF EXISTS (SELECT FROM unnest(p_phase, p_wait_ms, p_harmless, p_refused)
        AS v (phase, wait, harmless, refused)
        WHERE (v.phase BETWEEN 0 AND 4 AND v.wait >= 0
            AND v.harmless BETWEEN 0 AND 1 AND v.refused BETWEEN 0 AND 1)
            IS NOT TRUE) THEN
        RAISE EXCEPTION 'phase, wait, harmless or refused: it is out of its '
            'limits' USING ERRCODE = '22023';
    END IF;
    -- What is done keeps no other row waiting: a claim may look meanwhile, as long
    -- as the lease keeps it from these rows.
    IF p_lease = 0 OR p_phase <> array_fill(2, ARRAY[cardinality(p_phase)]) THEN
        PERFORM "@schema@".settle_lock_1(p_seq);
    END IF;
    IF p_lease > 0 THEN
        SELECT * INTO v_lease FROM "@schema@".relay_lease l
            WHERE l.no = p_lease FOR UPDATE;
        v_leased := FOUND;
        IF NOT v_leased THEN
            PERFORM "@schema@".settle_lock_1(p_seq);
        END IF;
    END IF;
    v_now := extract(epoch FROM clock_timestamp()) * 1000;
    v_whole := v_leased AND v_lease.seqs = p_seq;
    RETURN QUERY DELETE FROM "@schema@".outbox o
        USING unnest(p_seq, p_attempt, p_phase) WITH ORDINALITY
            AS v (seq, attempt, phase, place)
        WHERE o.seq = v.seq AND v.phase = 2 AND NOT o.kept
            AND CASE WHEN v_whole OR o.seq = ANY (v_lease.seqs)
                THEN o.attempts + 1 = v.attempt
                ELSE o.attempts = v.attempt AND o.phase IN (0, 4)
                    AND o.lease_ms > 0 END
        RETURNING v.place;
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    IF v_whole AND v_gone = cardinality(p_seq) THEN -- as a rule
        DELETE FROM "@schema@".relay_lease l WHERE l.no = p_lease;
    ELSIF v_leased THEN -- what this does not settle stays leased
        v_rest := ARRAY(SELECT o.seq FROM "@schema@".outbox o
            WHERE o.seq = ANY (v_lease.seqs) AND NOT EXISTS (
                SELECT FROM unnest(p_seq, p_attempt) AS v (seq, attempt)
                WHERE v.seq = o.seq AND v.attempt = o.attempts + 1));
        UPDATE "@schema@".relay_lease l SET seqs = v_rest WHERE l.no = p_lease;
        DELETE FROM "@schema@".relay_lease l
            WHERE l.no = p_lease AND l.seqs = '{}';
    END IF;
    IF v_gone = cardinality(p_seq) THEN
        RETURN;
    END IF;
    RETURN QUERY UPDATE "@schema@".outbox o
        SET phase = v.phase, lease_ms = 0,
            attempts = v.attempt,
            -- READY keeps it, and so stays a heap-only update
            due_ms = CASE v.phase WHEN 0 THEN o.due_ms ELSE v_now + v.wait END,
            doubt = CASE v.phase WHEN 2 THEN 0 ELSE greatest(o.doubt
                + v.attempt - o.attempts - v.harmless, 0) END,
            doubt_ms = CASE WHEN o.doubt = 0 AND v.attempt > o.attempts
                THEN v_lease.at_ms ELSE o.doubt_ms END,
            refused = o.refused + v.refused,
            body = CASE v.phase WHEN 2 THEN '' ELSE o.body END,
            status = v.status, reply = v.reply, error = v.error
        FROM unnest(p_seq, p_attempt, p_phase, p_wait_ms, p_harmless, p_refused,
            p_status, p_reply, p_error) WITH ORDINALITY AS v (seq, attempt,
            phase, wait, harmless, refused, status, reply, error, place)
        WHERE o.seq = v.seq AND (v.phase <> 2 OR o.kept)
            AND CASE WHEN v_whole OR o.seq = ANY (v_lease.seqs)
                THEN o.attempts + 1 = v.attempt
                ELSE o.attempts = v.attempt AND o.phase IN (0, 4)
                    AND o.lease_ms > 0 END
        RETURNING v.place;
END
$f$;

-- Says whether this route's relay sleeps and needs a NOTIFY, for as long as 30 s:
-- it says so again before that, unless it has died. Each COMMIT with a NOTIFY waits
-- for all others, so one that nobody hears is dear.
CREATE OR REPLACE FUNCTION "@schema@".outbox_idle_1(p_route text,
    p_idle boolean)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    PERFORM "@schema@".check_1('route', p_route);
    INSERT INTO "@schema@".relay_idle AS n
        VALUES (p_route, p_idle, v_now + 30000, v_now)
        ON CONFLICT (route) DO UPDATE
        SET idle = p_idle, until_ms = v_now + 30000, seen_ms = v_now
        WHERE n.idle <> p_idle OR n.until_ms < v_now + 20000;
    RETURN 'ok';
END
$f$;

-- Says that this route has a relay, awake or asleep.
CREATE OR REPLACE FUNCTION "@schema@".outbox_here_1(p_route text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    PERFORM "@schema@".check_1('route', p_route);
    INSERT INTO "@schema@".relay_idle AS n VALUES (p_route, false, 0, v_now)
        ON CONFLICT (route) DO UPDATE SET seen_ms = v_now
        WHERE abs(v_now - n.seen_ms) > 5000;
    RETURN 'ok';
END
$f$;

-- Up to p_n routes whose oldest row has been due for p_age_ms, and which no relay
-- has had for a minute: a relay was there seen_ms ago, -1: never. `rows`: up to
-- 10,000.
CREATE OR REPLACE FUNCTION "@schema@".outbox_strays_1(p_age_ms bigint,
    p_n integer)
RETURNS TABLE (route text, rows bigint, seen_ms bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
#variable_conflict use_column
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_route text := '';
    v_seen bigint;
    v_rows bigint;
    v_n integer := 0;
BEGIN
    WHILE v_n < p_n LOOP -- from one route to the next, whatever they have
        v_route := least(
            (SELECT o.route FROM "@schema@".outbox o
                WHERE o.phase = 0 AND o.route > v_route
                ORDER BY o.route, o.seq LIMIT 1),
            (SELECT o.route FROM "@schema@".outbox o
                WHERE o.phase = 1 AND o.route > v_route
                ORDER BY o.route, o.due_ms LIMIT 1));
        EXIT WHEN v_route IS NULL;
        v_seen := (SELECT n.seen_ms FROM "@schema@".relay_idle n
            WHERE n.route = v_route AND n.seen_ms > 0);
        CONTINUE WHEN abs(v_now - v_seen) < 60000 OR least(
            (SELECT o.at_ms FROM "@schema@".outbox o WHERE o.phase = 0
                AND (o.route, o.seq) > (v_route, 0)
                AND (o.route, o.seq) <= (v_route, 9223372036854775807)
                ORDER BY o.route, o.seq LIMIT 1),
            (SELECT o.due_ms FROM "@schema@".outbox o WHERE o.phase = 1
                AND (o.route, o.due_ms) > (v_route, -1)
                AND (o.route, o.due_ms) <= (v_route, 9223372036854775807)
                ORDER BY o.route, o.due_ms LIMIT 1)) > v_now - p_age_ms;
        v_rows := (SELECT count(*) FROM (SELECT FROM "@schema@".outbox o
                WHERE o.phase = 0 AND (o.route, o.seq) > (v_route, 0)
                    AND (o.route, o.seq) <= (v_route, 9223372036854775807)
                ORDER BY o.route, o.seq LIMIT 10000) AS x)
            + (SELECT count(*) FROM (SELECT FROM "@schema@".outbox o
                WHERE o.phase = 1 AND (o.route, o.due_ms) > (v_route, -1)
                    AND (o.route, o.due_ms) <= (v_route, 9223372036854775807)
                ORDER BY o.route, o.due_ms LIMIT 10000) AS x);
        v_n := v_n + 1;
        RETURN QUERY SELECT v_route, least(v_rows, 10000),
            CASE WHEN v_seen IS NULL THEN -1
                ELSE greatest(v_now - v_seen, 0) END;
    END LOOP;
END
$f$;

-- How many transactions ago the oldest snapshot was taken, or the oldest
-- transaction began, that this database still keeps row versions for: a claim
-- reads past all of them. An autovacuum has no user, and is no such reader.
CREATE OR REPLACE FUNCTION "@schema@".outbox_held_1() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    RETURN (SELECT greatest(max(age(h.xmin)), 0) FROM (
        SELECT unnest(ARRAY[a.backend_xmin, a.backend_xid]) AS xmin
            FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid()
                AND a.usesysid IS NOT NULL
                AND coalesce(a.datname = current_database(), true)
        UNION ALL SELECT s.xmin FROM pg_replication_slots s
        UNION ALL SELECT x.transaction FROM pg_prepared_xacts x
            WHERE x.database = current_database()) AS h);
END
$f$;

-- Rows after p_after. p_route and p_phase NULL: all. p_whole: with bodies and
-- replies.
CREATE OR REPLACE FUNCTION "@schema@".outbox_list_1(p_route text,
    p_phase integer, p_after bigint, p_n integer, p_whole boolean)
RETURNS SETOF "@schema@".outbox
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_row "@schema@".outbox;
    v_lease "@schema@".relay_lease;
BEGIN
    FOR v_row IN SELECT * FROM "@schema@".outbox o WHERE o.seq > p_after
        AND (p_route IS NULL OR o.route = p_route)
        AND (p_phase IS NULL OR o.phase = p_phase) ORDER BY o.seq LIMIT p_n
    LOOP
        SELECT * INTO v_lease FROM "@schema@".relay_lease l
            WHERE l.route = v_row.route AND v_row.seq = ANY (l.seqs);
        IF FOUND AND v_row.phase = 0 THEN
            v_row.attempts := v_row.attempts + 1;
            v_row.doubt_ms := CASE v_row.doubt WHEN 0 THEN v_lease.at_ms
                ELSE v_row.doubt_ms END;
            v_row.doubt := v_row.doubt + 1;
            v_row.lease_ms := v_lease.until_ms;
        END IF;
        IF NOT p_whole THEN
            v_row.body := '';
            v_row.reply := NULL;
        END IF;
        RETURN NEXT v_row;
    END LOOP;
END
$f$;

-- An operator's decision about one row, if it still has this phase and these
-- attempts. p_action: 0 retry, 1 drop, 2 resolve. ok, refused, or free: there is
-- no such row.
CREATE OR REPLACE FUNCTION "@schema@".outbox_decide_1(p_seq bigint,
    p_phase integer, p_attempts integer, p_action integer, p_why text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
DECLARE
    v_now bigint;
    v_row "@schema@".outbox;
BEGIN
    PERFORM "@schema@".fit_1();
    IF p_why IS NULL OR p_action IS NULL OR p_action NOT BETWEEN 0 AND 2 THEN
        RAISE EXCEPTION 'action: it is not 0, 1 or 2, or why: it is missing'
            USING ERRCODE = '22023';
    END IF;
    PERFORM "@schema@".lock_1(hashtext(o.route), true)
        FROM "@schema@".outbox o WHERE o.seq = p_seq;
    v_now := extract(epoch FROM clock_timestamp()) * 1000;
    PERFORM "@schema@".leases_end_1(o.route, v_now)
        FROM "@schema@".outbox o WHERE o.seq = p_seq;
    SELECT * INTO v_row FROM "@schema@".outbox o WHERE o.seq = p_seq FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'free';
    END IF;
    IF v_row.phase <> p_phase OR v_row.attempts <> p_attempts
        OR (v_row.phase = 0 AND v_row.lease_ms - v_now BETWEEN 1 AND 3600000)
        OR EXISTS (SELECT FROM "@schema@".leases_1(v_row.route, v_now) AS l
            WHERE l.seq = p_seq) THEN
        RETURN 'refused';
    END IF;
    IF p_action = 1 AND v_row.phase <> 2 AND v_row.saga IS NULL THEN
        DELETE FROM "@schema@".outbox o WHERE o.seq = p_seq;
        RETURN 'ok';
    ELSIF p_action = 0 AND v_row.phase IN (1, 3, 4) THEN
        UPDATE "@schema@".outbox o
            SET phase = 0, lease_ms = 0, refused = 0, error = p_why
            WHERE o.seq = p_seq;
        IF EXISTS (SELECT FROM "@schema@".relay_idle n
            WHERE n.route = v_row.route AND n.idle
                AND n.until_ms > v_now) THEN
            PERFORM pg_notify('once_outbox', v_row.route);
        END IF;
        RETURN 'ok';
    ELSIF p_action = 2 AND v_row.phase IN (3, 4) THEN
        UPDATE "@schema@".outbox o SET phase = 2, lease_ms = 0, doubt = 0,
                due_ms = v_now, body = '', error = p_why
            WHERE o.seq = p_seq;
        RETURN 'ok';
    END IF;
    RETURN 'refused';
END
$f$;

-- How many rows each route has, by phase, and the age of its oldest one that is
-- not done. Without p_done those that are done are not read, and `done` is 0: a
-- relay asks again and again.
CREATE OR REPLACE FUNCTION "@schema@".outbox_stats_1(p_done boolean)
RETURNS TABLE (route text, ready bigint, waiting bigint, done bigint,
    dead bigint, indeterminate bigint, leased bigint, oldest_ms bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    RETURN QUERY SELECT x.route, count(*) FILTER (WHERE x.phase = 0),
            count(*) FILTER (WHERE x.phase = 1),
            count(*) FILTER (WHERE x.phase = 2),
            count(*) FILTER (WHERE x.phase = 3),
            count(*) FILTER (WHERE x.phase = 4),
            count(*) FILTER (WHERE x.phase = 0
                AND x.lease_ms - v_now BETWEEN 1 AND 3600000)
            + (SELECT count(*) FROM "@schema@".leases_1(x.route, v_now)),
            greatest(v_now - min(x.at_ms) FILTER (WHERE x.phase <> 2), 0)
        FROM (SELECT o.route, o.phase, o.lease_ms, o.at_ms
                FROM "@schema@".outbox o WHERE o.phase = 0
            UNION ALL SELECT o.route, o.phase, 0, o.at_ms
                FROM "@schema@".outbox o WHERE o.phase = 1
            UNION ALL SELECT o.route, o.phase, 0, o.at_ms
                FROM "@schema@".outbox o WHERE o.phase IN (3, 4)
            UNION ALL SELECT o.route, o.phase, 0, o.at_ms
                FROM "@schema@".outbox o WHERE p_done AND o.phase = 2) AS x
        GROUP BY x.route ORDER BY x.route;
END
$f$;

-- Up to p_max rows that were done p_age_ms ago go; those of a saga go with it.
CREATE OR REPLACE FUNCTION "@schema@".outbox_purge_1(p_age_ms bigint,
    p_max bigint)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_until bigint := extract(epoch FROM clock_timestamp()) * 1000 - p_age_ms;
    v_n bigint;
BEGIN
    DELETE FROM "@schema@".outbox o WHERE o.phase = 2 AND o.seq = ANY (ARRAY(
        SELECT d.seq FROM "@schema@".outbox d
        WHERE d.phase = 2 AND d.due_ms < v_until AND d.saga IS NULL
        ORDER BY d.due_ms LIMIT p_max));
    GET DIAGNOSTICS v_n = ROW_COUNT;
    RETURN v_n;
END
$f$;

-- Takes the message that has waited longest: it is counted before it runs, and
-- not due again before p_lease_ms. p_keyed: only one whose key has no earlier
-- parked message.
CREATE OR REPLACE FUNCTION "@schema@".parked_take_1(p_consumer text,
    p_lease_ms bigint, p_keyed boolean)
RETURNS SETOF "@schema@".parked
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    PERFORM "@schema@".check_1('consumer', p_consumer);
    PERFORM "@schema@".fit_1();
    RETURN QUERY UPDATE "@schema@".parked p
        SET attempts = p.attempts + 1, due_ms = v_now + p_lease_ms
        WHERE p.no = (SELECT k.no FROM "@schema@".parked k
            WHERE k.consumer = p_consumer AND k.state = 1 AND k.due_ms <= v_now
                AND NOT (p_keyed AND k.key IS NOT NULL AND EXISTS (
                    SELECT FROM "@schema@".parked e
                    WHERE e.consumer = k.consumer AND e.key = k.key
                        AND e.no < k.no))
            ORDER BY k.due_ms, k.no LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING p.*;
END
$f$;

-- When a message that was taken is due again, or that it is dead (3) or
-- indeterminate (4). refused: it has another count by now.
CREATE OR REPLACE FUNCTION "@schema@".parked_put_back_1(p_no bigint,
    p_attempt integer, p_state integer, p_wait_ms bigint, p_why text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    PERFORM "@schema@".fit_1();
    IF p_state IS NULL OR p_state NOT IN (1, 3, 4) OR p_wait_ms IS NULL
        OR p_wait_ms < 0 OR p_why IS NULL THEN
        RAISE EXCEPTION 'state: it is not 1, 3 or 4, or an argument is missing'
            USING ERRCODE = '22023';
    END IF;
    UPDATE "@schema@".parked p
        SET state = p_state, due_ms = v_now + p_wait_ms, error = p_why
        WHERE p.no = p_no AND p.attempts = p_attempt
            AND p.state IN (1, p_state);
    RETURN CASE WHEN FOUND THEN 'ok' ELSE 'refused' END;
END
$f$;

-- Whether a message of this key is parked, in any state.
CREATE OR REPLACE FUNCTION "@schema@".parked_has_key_1(p_consumer text,
    p_key text)
RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
BEGIN
    RETURN EXISTS (SELECT FROM "@schema@".parked k
        WHERE k.consumer = p_consumer AND k.key = p_key);
END
$f$;

-- How many waiting messages stand behind one of their key that has stopped.
CREATE OR REPLACE FUNCTION "@schema@".parked_behind_1(p_consumer text)
RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT count(*) FROM "@schema@".parked k
        WHERE k.consumer = p_consumer AND k.state = 1 AND k.key IS NOT NULL
            AND EXISTS (SELECT FROM "@schema@".parked e
                WHERE e.consumer = k.consumer AND e.key = k.key
                    AND e.no < k.no AND e.state <> 1);
$f$;

-- As outbox_list_1().
CREATE OR REPLACE FUNCTION "@schema@".parked_list_1(p_consumer text,
    p_state integer, p_after bigint, p_n integer, p_whole boolean)
RETURNS SETOF "@schema@".parked
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_row "@schema@".parked;
BEGIN
    FOR v_row IN SELECT * FROM "@schema@".parked k WHERE k.no > p_after
        AND (p_consumer IS NULL OR k.consumer = p_consumer)
        AND (p_state IS NULL OR k.state = p_state) ORDER BY k.no LIMIT p_n
    LOOP
        IF NOT p_whole THEN
            v_row.body := '';
        END IF;
        RETURN NEXT v_row;
    END LOOP;
END
$f$;

-- As outbox_decide_1(), by state and count. A message whose id is not in the
-- inbox gets its row there before it is retried, and goes if there is one by now.
-- One that goes leaves its id answered for.
CREATE OR REPLACE FUNCTION "@schema@".parked_decide_1(p_no bigint,
    p_state integer, p_attempt integer, p_action integer, p_why text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $f$
DECLARE
    v_now bigint := extract(epoch FROM clock_timestamp()) * 1000;
    v_row "@schema@".parked;
BEGIN
    PERFORM "@schema@".fit_1();
    IF p_why IS NULL OR p_action IS NULL OR p_action NOT BETWEEN 0 AND 2 THEN
        RAISE EXCEPTION 'action: it is not 0, 1 or 2, or why: it is missing'
            USING ERRCODE = '22023';
    END IF;
    SELECT * INTO v_row FROM "@schema@".parked k WHERE k.no = p_no FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'free';
    END IF;
    IF v_row.state <> p_state OR v_row.attempts <> p_attempt
        OR (p_action = 2 AND v_row.state <> 4)
        OR (p_action = 0 AND octet_length(v_row.id) > 255) THEN
        RETURN 'refused';
    END IF;
    IF p_action = 0 AND NOT v_row.filed THEN
        INSERT INTO "@schema@".inbox VALUES (v_row.consumer, v_row.id,
                greatest(v_now, "@schema@".id_ms_1(v_row.id)),
                sha256(v_row.body), 1, NULL, NULL)
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            DELETE FROM "@schema@".parked k WHERE k.no = p_no;
            RETURN 'ok';
        END IF;
    END IF;
    IF p_action = 0 THEN
        UPDATE "@schema@".parked k SET state = 1, attempts = 0, due_ms = v_now,
                error = p_why, filed = true
            WHERE k.no = p_no;
    ELSE
        UPDATE "@schema@".inbox i SET at_ms = greatest(i.at_ms, v_now)
            WHERE i.consumer = v_row.consumer AND i.id = v_row.id;
        DELETE FROM "@schema@".parked k WHERE k.no = p_no;
    END IF;
    RETURN 'ok';
END
$f$;

-- How many messages each consumer has parked, by state, and the oldest one's age.
CREATE OR REPLACE FUNCTION "@schema@".parked_stats_1() RETURNS TABLE (
    consumer text, waiting bigint, dead bigint, indeterminate bigint,
    oldest_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT k.consumer, count(*) FILTER (WHERE k.state = 1),
            count(*) FILTER (WHERE k.state = 3),
            count(*) FILTER (WHERE k.state = 4),
            greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint
                - min(k.at_ms), 0)
        FROM "@schema@".parked k GROUP BY k.consumer ORDER BY k.consumer;
$f$;

-- Where tables were copied without their sequences, as a logical replica is, the
-- next numbers are taken, and rows with small ones would overtake earlier rows.
DO $do$
BEGIN
    IF (SELECT s.last_value + s.is_called::integer
            FROM "@schema@".outbox_seq_seq s)
        <= (SELECT max(o.seq) FROM "@schema@".outbox o) THEN
        LOCK TABLE "@schema@".outbox IN EXCLUSIVE MODE;
        PERFORM setval('"@schema@".outbox_seq_seq', max(o.seq))
            FROM "@schema@".outbox o;
    END IF;
    IF (SELECT s.last_value + s.is_called::integer
            FROM "@schema@".relay_lease_no_seq s)
        <= (SELECT max(l.no) FROM "@schema@".relay_lease l) THEN
        LOCK TABLE "@schema@".relay_lease IN EXCLUSIVE MODE;
        PERFORM setval('"@schema@".relay_lease_no_seq', max(l.no))
            FROM "@schema@".relay_lease l;
    END IF;
    IF (SELECT s.last_value + s.is_called::integer
            FROM "@schema@".parked_no_seq s)
        <= (SELECT max(k.no) FROM "@schema@".parked k) THEN
        LOCK TABLE "@schema@".parked IN EXCLUSIVE MODE;
        PERFORM setval('"@schema@".parked_no_seq', max(k.no))
            FROM "@schema@".parked k;
    END IF;
END
$do$;

-- What the tables, the functions and everybody's rights lack, or have that they
-- should not: '' if it is nothing. More columns and indexes do no harm.
CREATE OR REPLACE FUNCTION "@schema@".differs_1() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $f$
DECLARE
    v_schema oid := '"@schema@"'::regnamespace;
    v_prefix text := quote_ident('@schema@') || '.';
    v_owner oid := (SELECT c.relowner FROM pg_class c
        WHERE c.oid = '"@schema@".message_meta'::regclass);
    v_has text[];
BEGIN
    v_has := ARRAY(
        SELECT format('column %s.%s %s%s%s%s', c.relname, a.attname,
                format_type(a.atttypid, a.atttypmod),
                CASE WHEN a.attcollation = 0 THEN '' ELSE (SELECT
                    CASE l.collname WHEN 'default' THEN '' ELSE ' ' || l.collname
                    END FROM pg_collation l WHERE l.oid = a.attcollation) END,
                CASE WHEN a.attnotnull THEN '' ELSE ' null' END,
                CASE a.attidentity WHEN '' THEN coalesce(' default '
                    || pg_get_expr(d.adbin, d.adrelid), '')
                    ELSE ' identity' END)
            FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                LEFT JOIN pg_attrdef d ON d.adrelid = c.oid
                    AND d.adnum = a.attnum
            WHERE c.relnamespace = v_schema AND c.relkind = 'r'
                AND c.relpersistence = 'p' AND a.attnum > 0
                AND NOT a.attisdropped
        UNION ALL
        SELECT replace(pg_get_indexdef(i.indexrelid), v_prefix, '')
            FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
            WHERE c.relnamespace = v_schema AND i.indisvalid AND i.indisready
        UNION ALL
        SELECT format('constraint %s %s', (SELECT c.relname FROM pg_class c WHERE c.oid = n.conrelid),
                replace(pg_get_constraintdef(n.oid), v_prefix, ''))
            FROM pg_constraint n WHERE n.connamespace = v_schema
                AND n.contype IN ('c', 'f') AND n.convalidated
        UNION ALL
        SELECT replace(pg_get_triggerdef(t.oid), v_prefix, '')
            FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
            WHERE c.relnamespace = v_schema AND NOT t.tgisinternal
                AND t.tgenabled IN ('O', 'A'));
    RETURN coalesce((SELECT string_agg(w.what, '; ') FROM (
        SELECT 'it lacks ' || e.what AS what
            FROM unnest("@schema@".expected_1()) AS e (what)
            WHERE e.what <> ALL (v_has)
        UNION ALL
        SELECT format('table %s is of another owner', c.relname)
            FROM pg_class c WHERE c.relnamespace = v_schema
                AND c.relkind = 'r' AND c.relowner <> v_owner
        UNION ALL
        SELECT format('everybody has rights on table %s', c.relname)
            FROM pg_class c, aclexplode(c.relacl) AS r
            WHERE c.relnamespace = v_schema AND c.relkind = 'r'
                AND r.grantee = 0
        UNION ALL
        SELECT format('function %s is of another owner', p.proname)
            FROM pg_proc p WHERE p.pronamespace = v_schema
                AND p.proowner <> v_owner
        UNION ALL
        SELECT format('everybody may execute %s', p.proname)
            FROM pg_proc p, aclexplode(coalesce(p.proacl,
                acldefault('f', p.proowner))) AS r
            WHERE p.pronamespace = v_schema AND p.prosecdef AND r.grantee = 0
        UNION ALL
        SELECT format('function %s has not its search_path', p.proname)
            FROM pg_proc p WHERE p.pronamespace = v_schema AND p.prosecdef
                AND 'search_path=pg_catalog, pg_temp'
                    = ANY (p.proconfig) IS NOT TRUE
        LIMIT 5) AS w), '');
END
$f$;

-- In the words of pg_get_triggerdef(), pg_get_indexdef() and so on.
CREATE OR REPLACE FUNCTION "@schema@".expected_1() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $f$
    SELECT ARRAY(
        SELECT 'CREATE CONSTRAINT TRIGGER ' || t.made || ' DEFERRABLE INITIALLY '
            || 'DEFERRED FOR EACH ROW ' || t.does || '()'
        FROM (VALUES
            ('barrier_alone AFTER INSERT OR UPDATE ON barrier',
                'WHEN ((new.phase <> 4)) EXECUTE FUNCTION alone_1'),
            ('inbox_again_alone AFTER UPDATE ON inbox',
                'WHEN ((new.xact IS DISTINCT FROM old.xact)) '
                || 'EXECUTE FUNCTION alone_1'),
            ('inbox_alone AFTER INSERT ON inbox',
                'WHEN ((new.xact IS NOT NULL)) EXECUTE FUNCTION alone_1'),
            ('inbox_finished AFTER INSERT ON inbox',
                'WHEN ((new.kind = 0)) EXECUTE FUNCTION finished_1'),
            ('outbox_alone AFTER INSERT ON outbox', 'EXECUTE FUNCTION alone_1')
        ) AS t (made, does)
        UNION ALL SELECT 'CREATE ' || regexp_replace(i.line,
            '(\w+) (\w+) \(', 'INDEX \1 ON \2 USING btree (')
        FROM unnest(ARRAY[
            'barrier_at barrier (at_ms)',
            'outbox_dead outbox (route) WHERE (phase = ANY (ARRAY[3, 4]))',
            'outbox_done outbox (due_ms) WHERE (phase = 2)',
            'outbox_ended outbox (saga)'
                || ' WHERE ((saga IS NOT NULL) AND (phase = ANY (ARRAY[2, 3, 4])))',
            'outbox_ready outbox (route, seq) WHERE (phase = 0)',
            'outbox_saga outbox (saga) WHERE (saga IS NOT NULL)',
            'outbox_stop outbox (route, key, seq)'
                || ' WHERE ((phase = ANY (ARRAY[1, 3, 4])) AND (key IS NOT NULL))',
            'outbox_wait outbox (route, due_ms) WHERE (phase = 1)',
            'parked_due parked (consumer, due_ms) WHERE (state = 1)',
            'parked_key parked (consumer, key, no) WHERE (key IS NOT NULL)',
            'saga_late saga (deadline_ms) WHERE (state = 0)',
            'saga_open saga (state, gid)'
                || ' WHERE (state = ANY (ARRAY[0, 1, 2, 5]))',
            'saga_over saga (since_ms) WHERE (state = ANY (ARRAY[3, 4]))',
            'UNIQUE barrier_pkey barrier (gid, branch)',
            'UNIQUE inbox_pkey inbox (consumer, id)',
            'UNIQUE message_meta_pkey message_meta (one)',
            'UNIQUE outbox_id outbox (route, id) WHERE kept',
            'UNIQUE outbox_pkey outbox (seq)',
            'UNIQUE parked_consumer_id_filed_key parked (consumer, id, filed)',
            'UNIQUE parked_pkey parked (no)',
            'UNIQUE relay_idle_pkey relay_idle (route)',
            'UNIQUE relay_lease_pkey relay_lease (no)',
            'UNIQUE saga_pkey saga (gid)',
            'UNIQUE saga_step_pkey saga_step (gid, branch)'
        ]) AS i (line)
        UNION ALL SELECT 'column ' || t.name || '.' || c.line
        FROM (VALUES
            ('barrier', 'at_ms bigint, branch text C, gid text C, '
                || 'phase smallint'),
            ('inbox', 'at_ms bigint, consumer text C, fingerprint bytea null, '
                || 'id text C, kind smallint, result bytea null, '
                || 'xact xid8 null'),
            ('message_meta', 'floor_ms bigint, keep_ms bigint, '
                || 'one boolean default true, version integer'),
            ('outbox', 'at_ms bigint, attempts integer default 0, body bytea, '
                || 'doubt integer default 0, doubt_ms bigint default 0, '
                || 'due_ms bigint, error text default ''''::text, '
                || 'fingerprint bytea null, headers text, id text C, '
                || 'kept boolean, key text C null, lease_ms bigint default 0, '
                || 'phase smallint, refused integer default 0, '
                || 'reply bytea null, route text C, saga text C null, '
                || 'seq bigint identity, status integer null, type text'),
            ('parked', 'at_ms bigint, attempts integer default 0, body bytea, '
                || 'consumer text C, due_ms bigint, error text, filed boolean, '
                || 'headers text, id text C, key text C null, '
                || 'no bigint identity, state smallint, type text'),
            ('relay_lease', 'at_ms bigint, no bigint identity, '
                || 'route text C, seqs bigint[], until_ms bigint'),
            ('relay_idle', 'idle boolean, route text C, '
                || 'seen_ms bigint default 0, until_ms bigint default 0'),
            ('saga', 'at_ms bigint, deadline_ms bigint, fingerprint bytea, '
                || 'gid text C, kind text C, note text default ''''::text, '
                || 'since_ms bigint, state smallint, version integer'),
            ('saga_step', 'body bytea, branch integer, cancel_to text C null, '
                || 'confirm_to text C null, error text default ''''::text, '
                || 'failed smallint default 0, gid text C, reply bytea null, '
                || 'round integer default 0, state smallint default 0, '
                || 'status integer null, try_to text C, type text')
        ) AS t (name, columns), unnest(string_to_array(t.columns, ', ')) AS c (line)
        UNION ALL SELECT 'column route_lock_' || i || '.nothing boolean null'
        FROM generate_series(0, 15) AS i
    ) || ARRAY[
        'constraint message_meta CHECK (one)',
        'constraint saga_step FOREIGN KEY (gid) REFERENCES saga(gid) '
            || 'ON DELETE CASCADE'
    ];
$f$;

-- PostgreSQL lets everybody execute what is new. refuse_1() is called with the
-- rights of the role that commits.
DO $do$
DECLARE
    v_function regprocedure;
    v_differs text;
    v_old oid;
    v_new regprocedure;
    v_role name;
BEGIN
    -- Of version 1, which took text alone, or nothing: who might call them still
    -- may.
    FOR v_old, v_new IN SELECT o.oid, n.oid
        FROM unnest(ARRAY['inbox_claim(text,text,bytea,integer,boolean)',
            'barrier_enter(text,text,text)', 'begin(text,text,bytea)',
            'saga_start(text,json,text,timestamptz)', 'outbox_stats_1()',
            'outbox_claim_1(text,integer,bigint,boolean,boolean)',
            'outbox_claim_1(text,integer,bigint,boolean,boolean,boolean)',
            'outbox_settle_1(bigint[],integer[],integer[],bigint[],integer[],'
            'integer[],integer[],bytea[],text[])'])
            AS t (name)
        JOIN pg_proc o ON o.oid = to_regprocedure('"@schema@".' || t.name)
        JOIN pg_proc n ON n.pronamespace = o.pronamespace
            AND n.proname = o.proname AND n.oid <> o.oid
    LOOP
        FOR v_role IN SELECT pg_get_userbyid(r.grantee)
            FROM pg_proc o, aclexplode(o.proacl) AS r
            WHERE o.oid = v_old AND r.grantee NOT IN (0, o.proowner)
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_new, v_role);
        END LOOP;
        EXECUTE 'DROP FUNCTION ' || v_old::regprocedure;
    END LOOP;
    FOR v_function IN SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = '"@schema@"'::regnamespace
            AND (p.prosecdef OR p.proname LIKE '%\_1')
            AND p.proname <> 'refuse_1'
    LOOP
        EXECUTE 'REVOKE ALL ON FUNCTION ' || v_function || ' FROM PUBLIC';
    END LOOP;
    v_differs := "@schema@".differs_1();
    IF v_differs <> '' THEN
        RAISE EXCEPTION 'the schema differs: %', v_differs
            USING ERRCODE = 'ON003';
    END IF;
END
$do$;

COMMIT;
