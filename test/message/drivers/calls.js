// SPDX-License-Identifier: Apache-2.0
//
// calls.js - what ../test_drivers.py asks of every driver, in node-postgres.
//
//    node calls.js HOST PORT DATABASE BODY
const { Client } = require('pg');

const [host, port, database, text] = process.argv.slice(2);
const db = new Client({ host, port: Number(port), database, user: 'once' });

async function alone(call, ...args) {
  try {
    await db.query('SELECT once.' + call, args);
    console.log('taken');
  } catch (error) {
    console.log(error.code);
  }
}

async function emit(body, key, id, cast = '') {
  await db.query(
    `SELECT once.emit('r', $1${cast}, p_key => $2, p_id => $3)`,
    [body, key, id]);
}

async function call() {
  await db.query('BEGIN');
  const { rows: [row] } = await db.query(
    `SELECT answer, result FROM once.begin('calls', $1,
       sha256(convert_to($2, 'UTF8')))`, [7, text]);
  console.log(row.answer);
  if (row.answer !== 'run') {
    console.log(row.result.toString() === text ? 'True' : 'False');
    return db.query('ROLLBACK');
  }
  await db.query('INSERT INTO effect VALUES ($1)', [text]);
  await db.query("SELECT once.finish('calls', $1, 1, $2)", [7, text]);
  return db.query('COMMIT');
}

async function main() {
  await db.connect();
  await alone("inbox_claim('billing', $1)", 'alone');
  await alone("barrier_enter($1, 'b', 'try')", 'alone');
  await alone("emit('r', $1)", text);
  await alone("saga_start('k', $1)", '[{"try": "r"}]');
  await alone("begin('calls', $1)", 'alone');
  await call();
  await call();
  await db.query('BEGIN');
  await emit(text, 'text', 'text');
  await emit(Buffer.from([...Array(256).keys()]), 'bytes', 'bytes', '::bytea');
  await emit({ a: '\\u00e9\\' }, 'json', 'json', '::jsonb');
  await emit(text, 42, 43);
  await emit(text, null, '6f1c2a9b-e04d-4735-8000-000000000001');
  await db.query("SELECT once.inbox_claim('billing', $1)",
    ['6f1c2a9b-e04d-4735-8000-000000000002']);
  await db.query('COMMIT');
  await db.end();
}

main().catch((error) => { console.error(error); process.exit(1); });
