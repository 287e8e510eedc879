# SPDX-License-Identifier: Apache-2.0
"""calls.py - what ../test_drivers.py asks of every driver, in psycopg2 or psycopg.

    calls.py psycopg2|psycopg HOST PORT DATABASE BODY
"""
import importlib
import sys
import uuid

name, host, port, database, text = sys.argv[1:]
driver = importlib.import_module(name)
if name == "psycopg2":
    from psycopg2.extras import Json, register_uuid
    register_uuid()
else:
    from psycopg.types.json import Jsonb as Json
conn = driver.connect(host=host, port=port, dbname=database, user="once")
q = conn.cursor()


def state_of(error):
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def alone(call, *args):
    try:
        q.execute("SELECT once." + call, args)
        print("taken")
    except driver.Error as error:
        print(state_of(error))


def emit(body, key, id_, cast=""):
    q.execute("SELECT once.emit('r', %s" + cast + ", p_key => %s, p_id => %s)",
              (body, key, id_))


conn.autocommit = True
alone("inbox_claim('billing', %s)", "alone")
alone("barrier_enter(%s, 'b', 'try')", "alone")
alone("emit('r', %s)", text)
alone("saga_start('k', %s)", '[{"try": "r"}]')
alone("begin('calls', %s)", "alone")

conn.autocommit = False
for answer in ("run", "replay"):
    q.execute("SELECT answer, result FROM once.begin('calls', %s, sha256("
              "convert_to(%s, 'UTF8')))", (7, text))
    said, result = q.fetchone()
    print(said)
    if said == "run":
        q.execute("INSERT INTO effect VALUES (%s)", (text,))
        q.execute("SELECT once.finish('calls', %s, 1, %s)", (7, text))
        conn.commit()
    else:
        print(bytes(result).decode() == text)
        conn.rollback()

emit(text, "text", "text")
emit(bytes(range(256)), "bytes", "bytes")
emit(Json({"a": "\\u00e9\\"}), "json", "json", "::jsonb")
emit(text, 42, 43)
emit(text, None, uuid.UUID("6f1c2a9b-e04d-4735-8000-000000000001"))
q.execute("SELECT once.inbox_claim('billing', %s)",
          (uuid.UUID("6f1c2a9b-e04d-4735-8000-000000000002"),))
conn.commit()
