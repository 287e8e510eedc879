#!/usr/bin/node
// SPDX-License-Identifier: Apache-2.0
/**
 * express_app.js - the application of test/frameworks with Express: Debian's, or by
 * npm where EXPRESS names a version.
 */
"use strict";

const { Readable, pipeline } = require("stream");

const common = require("./node_common.js");
const npm = require("../../lib/npm.js");

process.env.NODE_PATH = "/usr/share/nodejs:/usr/share/javascript"; // of Debian
require("module")._initPaths();
const { EXPRESS } = process.env;
const { module: express, reason } = EXPRESS ? npm("express", EXPRESS)
  : { module: require("express") };
if (!express) {
  console.error(reason);
  process.exit(77);
}

const { once } = common;
const app = express();
const guard = once(common.options);
const printed = once(common.printed);

// Outside of the guard.
app.use((req, res, next) => {
  const { outer } = common.doOf(req);
  if (!outer) return next();
  return common.readOuter(req, outer).then(() => next(), next);
});

const pick = (req, res, next) =>
  (common.doOf(req).fingerprint ? printed : guard)(req, res, next);

/** What a body parser or a route raises in place of answering: http-errors. */
const refusal = () => Object.assign(new Error("refused"),
  { status: 422, statusCode: 422, expose: true });

function answer(req, res, r, d, body) {
  const extra = d.extra || [];
  if (extra.includes("trailers")) {
    res.setHeader("Trailer", "X-Sum");
    res.addTrailers({ "X-Sum": "1" });
  }
  if (d.answer === "error") throw refusal();
  if (d.answer === "empty") {
    r.finished(204, "");
    return res.sendStatus(204);
  }
  res.status(201).type("json");
  if (d.answer === "file") {
    const file = common.fileOf(r, body);
    r.finished(201, body);
    return res.sendFile(file);
  }
  if (d.answer === "short") {
    res.set("Content-Length", String(body.length + 10));
    return res.end(body);
  }
  if (extra.includes("flush")) res.flushHeaders();
  if (d.answer === "stream") {
    return pipeline(Readable.from(common.parts(body, r, 201)), res, () => {});
  }
  r.finished(201, body);
  return extra.includes("flush") ? res.end(body) : res.send(body);
}

const inner = express.Router();

// Express 4 does not look at the promise.
inner.all("/", async (req, res) => {
  const d = common.doOf(req);
  const r = common.runOf(req, res);
  const body = await common.work(res, r, d);
  if (body === null) return;
  await common.extra(res, d);
  answer(req, res, r, d, body);
});

const json = (res, status, value, finished = () => {}) => {
  const body = JSON.stringify(value);
  finished(status, body);
  res.status(status).type("json").send(body);
};

/** An answer by the framework's own way. */
const refused = (error, req, res) =>
  json(res, 422, { error: error.message }, common.runOf(req, res).finished);

// Inside the guard, and outside of it.
for (const [router, member] of [[inner, "inner_catch"], [app, "catch"]]) {
  if (router === app) app.use("/pay", pick, inner);
  if (router === app) app.all("/plain", guard, (req, res) => res.send("plain"));
  router.use((error, req, res, next) => {
    if (error.expose) refused(error, req, res);
    else if (common.doOf(req)[member] && !res.headersSent) {
      json(res, 500, { error: "something broke" });
    } else next(error);
  });
}

process.env.NODE_ENV = "test"; // Express prints no stacks
app.listen(Number(process.env.APP_PORT), "127.0.0.1", common.ready);
