// SPDX-License-Identifier: Apache-2.0
/**
 * node_common.js - what the applications of Node do alike: see ../README.md for the
 * header `Do`, and for what is logged.
 */
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const path = require("path");

const once = require("../../../middleware/node/once.js");

const LARGE = 300 * 1024;
const LOG = fs.openSync(process.env.APP_LOG, "a");
const common = { once };

common.options = { scope: req => req.headers["x-user"],
  route: { in_flight: "wait=2s", run: "10s", max_request: "256k", max_response: "256k" } };
common.printed = { ...common.options, fingerprint: req => req.headers["x-print"] };

common.sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
common.doOf = req => JSON.parse(req.headers.do || "{}");

common.log = line => fs.writeSync(LOG, JSON.stringify(line) + "\n");

/** Reads of a body before the middleware, as a logger does that is mounted too early. */
common.readOuter = async (req, how) => {
  if (how === "peek") {
    const part = await new Promise(resolve => {
      const look = () => {
        const got = req.read(3) || req.read();
        if (got !== null || req.readableEnded) resolve(got);
        else req.once("readable", look);
      };
      req.once("end", () => resolve(null));
      req.once("readable", look);
    });
    return part;
  }
  const parts = []; // "restore": Node has no way to put a body back
  for await (const part of req) parts.push(part);
  return Buffer.concat(parts);
};

/** One run of the handler: what it logs. */
common.runOf = (req, res) => {
  const key = String(req.headers["idempotency-key"]).replace(/^"|"$/g, "");
  const run = crypto.randomBytes(8).toString("hex");
  const log = (event, more = {}) => common.log({ event, key, run, ...more });
  const r = { isCancelled: false };
  const gone = () => {
    const held = req[once.HELD]; // the answer may have been told by then
    if (held && !r.isCancelled && ["held", "told"].includes(held.state)) {
      log("disconnect");
    }
  };
  req.once("aborted", gone);
  const { socket } = req; // it is the next request's, too
  socket.once("close", gone);
  res.once("close", () => {
    gone();
    socket.removeListener("close", gone);
  });
  const finished = (status, body) => log("finished", { status,
    body: crypto.createHash("sha256").update(body).digest("hex") });
  const raise = error => {
    log("raised");
    throw error;
  };
  Object.assign(r, { key, run, log, finished, raise });
  return r;
};

/** What comes before the answer: { body }, or it raises. */
common.work = async (res, r, d) => {
  if (d.before === "raise") r.raise(new Error("before the effect"));
  const n = crypto.randomBytes(8).toString("hex");
  if (d.effect !== false) r.log("effect", { n });
  for (let ms = d.sleep_ms || 0; ms > 0; ms -= 10) await common.sleep(Math.min(ms, 10));
  if (d.after === "raise") r.raise(new Error("after the effect"));
  if (d.after === "timeout") {
    r.raise(Object.assign(new Error("too late"), { code: "ETIMEDOUT", status: 503 }));
  }
  if (d.after === "cancel") {
    r.log("raised");
    r.isCancelled = true;
    res.destroy(new Error("cancelled"));
    return null;
  }
  const body = JSON.stringify({ key: r.key, n });
  return d.answer === "large" ? body + "x".repeat(LARGE - body.length) : body;
};

common.extra = async (res, d) => {
  const extra = d.extra || [];
  if (extra.includes("early_hints")) {
    await new Promise(done => res.writeEarlyHints({ link: "</a.css>; rel=preload" }, done));
  }
  if (extra.includes("continue")) res.writeContinue();
};

/** Three parts with pauses; the last one is logged as it is made. */
common.parts = async function* parts(body, r, status) {
  const third = Math.ceil(body.length / 3);
  for (let i = 0; i < 3; i++) {
    if (i > 0) await common.sleep(20);
    if (i === 2) r.finished(status, body);
    yield body.slice(i * third, (i + 1) * third);
  }
};

common.fileOf = (r, body) => {
  const file = path.join(path.dirname(process.env.APP_LOG), `file-${r.run}`);
  fs.writeFileSync(file, body);
  return file;
};

common.ready = () => console.log("ready");

module.exports = common;
