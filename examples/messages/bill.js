// SPDX-License-Identifier: Apache-2.0
const { createHash } = require('crypto');
const { Client } = require('pg');

async function main() {
  const body = require('fs').readFileSync(0);
  const db = new Client(process.env.DB);
  await db.connect();
  await db.query('BEGIN');
  const { rows: [{ answer }] } = await db.query(
    'SELECT once.inbox_claim($1, $2, $3, $4) AS answer',
    [process.env.ONCE_CONSUMER, process.env.ONCE_ID,
      createHash('sha256').update(body).digest(), process.env.ONCE_ATTEMPT]);
  if (answer === 'run') {
    const { order, cents } = JSON.parse(body);
    await db.query('INSERT INTO invoice (order_id, cents) VALUES ($1, $2)',
      [order, cents]);
  }
  await db.query('COMMIT');
  await db.end();
}

main().catch((error) => { console.error(error.message); process.exit(1); });
