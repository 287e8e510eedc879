#!/usr/bin/node
// SPDX-License-Identifier: Apache-2.0
/**
 * fastify_app.js - the application of test/frameworks with Fastify, by npm. Without
 * it, it ends with 77.
 */
"use strict";

const fs = require("fs");
const { Readable } = require("stream");

const common = require("./node_common.js");
const npm = require("../../lib/npm.js");

const { module: fastify, reason } = npm("fastify", process.env.FASTIFY || "5.12.8");
if (!fastify) {
  console.error(reason);
  process.exit(77);
}

const { once } = common;
const rewriteUrl = request => request.url === "/pay" &&
  common.doOf(request).fingerprint ? "/pay-printed" : request.url;

const app = fastify({ rewriteUrl });

// Fastify reads of a body only what it has a parser for.
app.addContentTypeParser("*", { parseAs: "buffer" }, (request, body, done) => done(null, body));

// Outside of the guard.
app.decorateRequest("read", null);
app.addHook("onRequest", async request => {
  const { outer } = common.doOf(request);
  if (outer) request.read = await common.readOuter(request.raw, outer);
});

// It gives back to Fastify's parsers what was read, as a program does that reads
// there; to Node's request it cannot.
app.addHook("preParsing", async (request, reply, payload) => {
  if (request.read === null) return payload;
  return Readable.from((async function* whole() {
    yield request.read;
    if (!payload.readableEnded) yield* payload;
  })());
});

const refusal = () => Object.assign(new Error("refused"),
  { status: 422, statusCode: 422, expose: true });

function json(reply, status, value, finished = () => {}) {
  const body = JSON.stringify(value);
  finished(status, body);
  return reply.code(status).type("application/json").send(body);
}

/** Of the error handler inside the guard, and of the one outside of it. */
const handlerOf = member => (error, request, reply) => {
  if (error.expose) {
    return json(reply, 422, { error: error.message },
      common.runOf(request.raw, reply.raw).finished);
  }
  if (common.doOf(request)[member]) return json(reply, 500, { error: "something broke" });
  throw error;
};

function answer(reply, r, d, body) {
  if ((d.extra || []).includes("trailers")) {
    reply.trailer("X-Sum", async () => "1");
  }
  if (d.answer === "error") throw refusal();
  if (d.answer === "empty") {
    r.finished(204, "");
    return reply.code(204).send();
  }
  reply.code(201).type("application/json");
  if (d.answer === "file") {
    const file = common.fileOf(r, body);
    r.finished(201, body);
    return reply.header("Content-Length", String(body.length))
      .send(fs.createReadStream(file));
  }
  if (d.answer === "short") {
    return reply.header("Content-Length", String(body.length + 10))
      .send(Readable.from([body]));
  }
  if (d.answer === "stream") {
    return reply.send(Readable.from(common.parts(body, r, 201)));
  }
  r.finished(201, body);
  return reply.send(body);
}

async function pay(request, reply) {
  const d = common.doOf(request);
  const r = common.runOf(request.raw, reply.raw);
  const body = await common.work(reply.raw, r, d);
  if (body === null) return reply.hijack();
  await common.extra(reply.raw, d);
  return answer(reply, r, d, body);
}

app.setErrorHandler(handlerOf("catch"));

// A guard with a fingerprint of its own, and one without: each is a path within.
const guards = [[common.options, ""], [common.printed, "-printed"]];
for (const [options, suffix] of guards) {
  app.register(async scope => {
    await scope.register(once.fastify, options);
    scope.register(async inside => {
      inside.setErrorHandler(handlerOf("inner_catch"));
      inside.all(`/pay${suffix}`, pay);
      inside.all(`/plain${suffix}`, async () => "plain");
    });
  });
}

app.listen({ port: Number(process.env.APP_PORT), host: "127.0.0.1" })
  .then(common.ready);
