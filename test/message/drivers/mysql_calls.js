// SPDX-License-Identifier: Apache-2.0
//
// mysql_calls.js - what ../test_mysql_drivers.py asks of every driver, in node-mysql.
//
//    node mysql_calls.js HOST PORT DATABASE USER PASSWORD BODY
const util = require('util');
const mysql = require('mysql');

const [host, port, database, user, password, text] = process.argv.slice(2);
const db = mysql.createConnection(
  { host, port: Number(port), database, user, password });
const ask = util.promisify(db.query).bind(db);

// EXAMPLE: the functions of docs/mysql.md

async function alone(call, ...args) {
  try {
    await ask('CALL ' + call, args);
    console.log('taken');
  } catch (error) {
    console.log(error.sqlMessage.split('.')[0]);
  }
}

async function emit(body, name) {
  const [[row]] = await ask(
    "CALL once_emit('r', ?, 7, ?, 't', '', 0, 0)", [body, name]);
  console.log(row.id === null ? 'None' : row.id);
}

async function call() {
  await ask('BEGIN');
  const [[row]] = await ask(
    "CALL once_begin('calls', ?, UNHEX(SHA2(?, 256)))", [7, text]);
  const same = row.result !== null && row.result.toString() === text;
  console.log(row.answer, row.kind === null ? 'None' : row.kind,
    same ? 'True' : 'False');
  if (row.answer === 'run') {
    await ask('INSERT INTO effect (body) VALUES (?)', [text]);
    const [[end]] = await ask(
      "CALL once_finish('calls', ?, ?, 1, ?)", [7, row.token, text]);
    console.log(end.answer);
  }
  await ask('COMMIT');
}

async function main() {
  await alone("once_inbox_claim('c', ?, NULL, 0)", 'alone');
  await alone('once_emit(?, ?, NULL, NULL, NULL, NULL, NULL, NULL)', 'r', text);
  await alone("once_begin('c', ?, NULL)", 'alone');
  await alone("once_barrier_enter('g', ?, 'try')", 'alone');
  await call();
  await call();
  await ask('BEGIN');
  await emit(text, 'text');
  await emit(Buffer.from([...Array(256).keys()]), 'bytes');
  await emit(text, 'text');
  await ask('COMMIT');
  await placeOrder(db, 42, 1250);
  for (const body of ['{"order": 42, "cents": 1250}',
    '{"order": 42, "cents": 1250}', '{}']) {
    console.log(await take(db, 'm1', body) ? 'True' : 'False');
  }
  db.end();
}

main().catch((error) => { console.error(error); process.exit(1); });
