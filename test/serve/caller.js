// SPDX-License-Identifier: Apache-2.0
/*
 * caller.js - calls functions by the middleware for Node, as test_calls.py tells it:
 * see caller.py.
 *
 *     caller.js SOCKET
 */
"use strict";

const fs = require("fs");
const path = require("path");
const readline = require("readline");
const util = require("util");

const once = require(path.join(__dirname, "../../middleware/node/once.js"));

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const made = new Map();

function act(c) {
  switch (c.act) {
  case "throw": throw new Error("the network");
  case "end": return Promise.reject(undefined); // a throw that is no Error
  case "not_applied": throw new once.NotApplied("the queue is full");
  case "failure": throw new once.Failure(c.value, c.code);
  case "unencodable": return () => 1;
  case "shape": return { date: new Date(0), none: undefined };
  case "bytes": return Buffer.from(c.value);
  default: return c.value;
  }
}

async function work(c) {
  fs.appendFileSync(c.ledger, c.key + "\n");
  await sleep(c.takes_ms || 0);
  while (c.gate && !fs.existsSync(c.gate)) await sleep(10);
  return c.inner ? guarded(c.inner)(c.inner) : act(c);
}

function guarded(c) {
  const options = { group: c.group, waitMs: c.wait_ms, leaseMs: c.lease_ms,
    runMs: c.run_ms, keepMs: c.keep_ms, serve: "unix:" + process.argv[2] };
  const name = JSON.stringify([options, "fingerprint" in c]);
  if (!made.has(name)) {
    if ("fingerprint" in c) options.fingerprint = d => d.fingerprint;
    made.set(name, once.call({ ...options, key: d => d.key }, work));
  }
  return made.get(name);
}

const told = value => Buffer.isBuffer(value) ? { bytes: value.toString() } : { json: value };

function failed(error) {
  return { error: error.name, text: error.message, retry_after_ms: error.retryAfterMs,
    code: error.code, ...(error instanceof once.Failed ? told(error.result) : {}) };
}

readline.createInterface({ input: process.stdin }).on("line", async line => {
  const c = JSON.parse(line);
  let out;
  try {
    const value = await guarded(c)(c);
    out = told(c.act === "shape" ? util.inspect(value) : value);
  } catch (error) {
    out = failed(error);
  }
  console.log(JSON.stringify({ ...out, n: c.n }));
});
