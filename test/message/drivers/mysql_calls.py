# SPDX-License-Identifier: Apache-2.0
"""mysql_calls.py - what ../test_mysql_drivers.py asks of every driver, in PyMySQL.

    mysql_calls.py HOST PORT DATABASE USER PASSWORD BODY
"""
import json
import sys

import pymysql

host, port, database, user, password, text = sys.argv[1:]

# EXAMPLE: the functions of docs/mysql.md


def connect(**more):
    return pymysql.connect(host=host, port=int(port), user=user, password=password,
                           database=database, **more)


def alone(call, *args):
    try:
        q.execute("CALL " + call, args)
        print("taken")
    except pymysql.MySQLError as error:
        print(error.args[1].split(".")[0])


def emit(body, name):
    q.execute("CALL once_emit('r', %s, 7, %s, 't', '', 0, 0)", (body, name))
    print(q.fetchone()[0])


q = connect(autocommit=True).cursor()
alone("once_inbox_claim('c', %s, NULL, 0)", "alone")
alone("once_emit('r', %s, NULL, NULL, NULL, NULL, NULL, NULL)", text)
alone("once_begin('c', %s, NULL)", "alone")
alone("once_barrier_enter('g', %s, 'try')", "alone")

db = connect()
q = db.cursor()
for _ in range(2):
    q.execute("CALL once_begin('calls', %s, UNHEX(SHA2(%s, 256)))", (7, text))
    answer, kind, result, token = q.fetchone()
    print(answer, kind, result == text.encode())
    if answer == "run":
        q.execute("INSERT INTO effect (body) VALUES (%s)", (text,))
        q.execute("CALL once_finish('calls', %s, %s, 1, %s)", (7, token, text))
        print(q.fetchone()[0])
    db.commit()
emit(text, "text")
emit(bytes(range(256)), "bytes")
emit(text, "text")
db.commit()

place_order(db, 42, 1250)
for body in '{"order": 42, "cents": 1250}', '{"order": 42, "cents": 1250}', "{}":
    print(take(db, "m1", body))
