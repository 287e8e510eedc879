// SPDX-License-Identifier: Apache-2.0
/**
 * node_frameworks.js - the middleware inside the real frameworks: Debian's Express 4,
 * and Express 5 and Fastify by npm.
 */
"use strict";

const assert = require("assert");
const fs = require("fs");
const path = require("path");
const { test } = require("node:test");

const once = require("../../middleware/node/once.js");
const npm = require("../lib/npm.js");
const kit = require("./node_kit.js");

const { OPTIONS, keyed, leave, listen, post, sleep } = kit;

function own(name) {
  try {
    return { module: require(name) };
  } catch (error) {
    return { reason: error.message };
  }
}

const EXPRESS = { "Express 4": own("express"), "Express 5": npm("express", "5.3.0") };
const FASTIFY = npm("fastify", parseInt(process.versions.node, 10) < 20 ? "4.29.1" : "5.12.8");

/** Raised by the framework's parsers in place of answering. */
const refusal = () => Object.assign(new Error("no such order"),
  { status: 404, statusCode: 404, expose: true });
/** As of an HTTP client that was told 404 by another service. */
const foreign = () => Object.assign(new Error("the bank says 404"),
  { status: 404, statusCode: 404 });

async function isUnknown(port, status = 502) {
  const headers = keyed();
  const first = await post(port, headers);
  assert.deepEqual([first.status, /outcome-unknown/.test(first.body)], [status, true]);
  const again = await post(port, headers);
  assert.deepEqual([again.status, /outcome-unknown/.test(again.body)], [409, true]);
}

async function isRecorded(port, status, body) {
  const headers = keyed();
  for (const replayed of [false, true]) {
    const got = await post(port, headers);
    assert.deepEqual([got.status, got.body], [status, body]);
    assert.equal(got.lines.includes("Idempotent-Replayed"), replayed);
  }
}

/** Its client leaves while it sleeps; the repeat gets what it answered. */
async function survivesLeaving(port, started, body) {
  const headers = keyed();
  await leave(port, headers, "", started);
  for (;;) {
    const got = await post(port, headers);
    if (got.status !== 409 || !got.body.includes("in-flight")) {
      assert.deepEqual([got.status, got.body], [200, body]);
      return;
    }
    await sleep(20);
  }
}

function begun() {
  const made = {};
  made.promise = new Promise(resolve => { made.resolve = resolve; });
  return made;
}

const FILE = path.join(kit.FOLDER, "answer.txt");
const writeFile = () => fs.writeFileSync(FILE, "of a file");

// ---- Express ------------------------------------------------------------------------

for (const [version, { module: express, reason }] of Object.entries(EXPRESS)) {
  const named = (name, f) => test(`${version}: ${name}`, { skip: reason || false }, f);

  /** An application whose handler is `f`, and that `more` adds to. */
  const appOf = (f, more = () => {}) => {
    const app = express();
    app.set("env", "test"); // it prints no stacks
    app.use(once(OPTIONS));
    app.post("/", f);
    more(app);
    return app;
  };
  const boom = () => { throw new Error("after the charge"); };
  const answers = (error, req, res, next) => {
    void next;
    res.status(error.status || 500).json({ error: "something broke" });
  };

  named("an exception is unknown by Express' own handler", async () =>
    isUnknown(await listen(appOf(boom))));

  named("an exception is unknown when the program's handler answers for it",
    async () => isUnknown(await listen(appOf(boom, app => app.use(answers)))));

  named("an error that is passed to next() is unknown", async () =>
    isUnknown(await listen(appOf((req, res, next) => setImmediate(next, new Error("x")),
      app => app.use(answers)))));

  named("a promise that is rejected is unknown", async () =>
    isUnknown(await listen(appOf(async () => { await sleep(1); boom(); },
      app => app.use(answers)))));

  named("a promise that is rejected with nothing is unknown", async () =>
    isUnknown(await listen(appOf(() => Promise.reject(undefined)))));

  named("an exception in a router with a handler of its own is unknown", async () => {
    const router = express.Router();
    router.post("/", boom);
    router.use(answers);
    const app = express();
    app.use(once(OPTIONS), router);
    await isUnknown(await listen(app));
  });

  named("an exception in a mounted application is unknown", async () => {
    const app = express();
    app.set("env", "test");
    app.use("/", appOf(boom));
    app.use(answers);
    await isUnknown(await listen(app));
  });

  named("an exception after half of the answer is unknown", async () =>
    isUnknown(await listen(appOf((req, res) => {
      res.status(201);
      res.write("half");
      boom();
    }, app => app.use(answers)))));

  named("an exception after the answer takes nothing back", async () =>
    isRecorded(await listen(appOf((req, res) => {
      res.status(201).send("whole");
      boom();
    })), 201, "whole"));

  named("an exception that is a time-out is a 504", async () =>
    isUnknown(await listen(appOf(() => {
      throw Object.assign(new Error("late"), { code: "ETIMEDOUT" });
    }, app => app.use(answers))), 504));

  named("a status of another service's answer is no answer", async () =>
    isUnknown(await listen(appOf(() => { throw foreign(); },
      app => app.use(answers)))));

  named("a 4xx that is raised to be answered is recorded", async () =>
    isRecorded(await listen(appOf(() => { throw refusal(); }, app => app.use(answers))),
      404, '{"error":"something broke"}'));

  named("an error handler may say what was done", async () =>
    isRecorded(await listen(appOf(boom, app => app.use((error, req, res, next) => {
      void next;
      res.set("Idempotency-Outcome", "applied");
      res.status(500).send("charged, and no receipt");
    }))), 500, "charged, and no receipt"));

  named("an error that a handler has dealt with is none", async () =>
    isRecorded(await listen(appOf((req, res, next) => next(new Error("no cache")),
      app => {
        app.use((error, req, res, next) => next());
        app.use((req, res) => res.send("without a cache"));
      })), 200, "without a cache"));

  named("once.failed before the program's handler is unknown, too", async () =>
    isUnknown(await listen(appOf(boom, app => app.use(once.failed, answers)))));

  named("what is not guarded is answered by the program's handler", async () => {
    const port = await listen(appOf(boom, app => app.use(answers)));
    assert.equal((await post(port)).status, 500);
  });

  named("a body that is no JSON is its parser's 400", async () => {
    const app = express();
    app.set("env", "test");
    app.use(once(OPTIONS), express.json());
    app.post("/", (req, res) => res.send("ran"));
    app.use(answers);
    const got = await post(await listen(app),
      keyed({ "Content-Type": "application/json" }), "{");
    assert.equal(got.status, 400);
  });

  for (const [name, answer] of Object.entries({
    "res.send()": res => res.send("of a file"),
    "res.sendFile()": res => res.sendFile(FILE),
    "a pipe": res => fs.createReadStream(FILE, { highWaterMark: 2 }).pipe(res) })) {
    named(`a client that leaves loses no answer by ${name}`, async () => {
      writeFile();
      const started = begun();
      const port = await listen(appOf(async (req, res) => {
        started.resolve();
        await sleep(200);
        answer(res);
      }));
      await survivesLeaving(port, started.promise, "of a file");
    });
  }

  named("a file that is gone is unknown: its error is not to be shown", async () =>
    isUnknown(await listen(appOf((req, res) => res.sendFile("/nowhere")))));
}

// ---- Fastify ------------------------------------------------------------------------

const fastified = (name, f) => test(`Fastify: ${name}`, { skip: FASTIFY.reason || false }, f);

/** Listens; `f` adds to the application after the guard. */
async function fastify(f, options = OPTIONS) {
  const app = FASTIFY.module();
  await app.register(once.fastify, options);
  await f(app);
  await app.ready();
  return app;
}

const serveFastify = async (handler, more = () => {}) => {
  const app = await fastify(async made => {
    await more(made);
    made.post("/", handler);
  });
  await app.listen({ port: 0, host: "127.0.0.1" });
  kit.closing(() => app.close());
  return app.server.address().port;
};

const charge = async () => { throw new Error("after the charge"); };
const answered = app => app.setErrorHandler((error, request, reply) =>
  reply.code(error.status || 500).send({ error: "something broke" }));

fastified("an exception is unknown by Fastify's own handler", async () =>
  isUnknown(await serveFastify(charge)));

fastified("an exception is unknown when the program's handler answers for it",
  async () => isUnknown(await serveFastify(charge, answered)));

fastified("an error that is sent is unknown", async () =>
  isUnknown(await serveFastify((request, reply) => reply.send(new Error("x")))));

fastified("an error of a hook after the handler is unknown", async () =>
  isUnknown(await serveFastify(async () => "x", app =>
    app.addHook("onSend", async () => { throw new Error("x"); }))));

fastified("an exception within an inner plugin with its handler is unknown", async () => {
  const app = await fastify(async made => {
    made.register(async inner => {
      answered(inner);
      inner.post("/", charge);
    });
  });
  await app.listen({ port: 0, host: "127.0.0.1" });
  kit.closing(() => app.close());
  await isUnknown(app.server.address().port);
});

fastified("a status of another service's answer is no answer", async () =>
  isUnknown(await serveFastify(async () => { throw foreign(); }, answered)));

fastified("a 4xx that is raised to be answered is recorded", async () =>
  isRecorded(await serveFastify(async () => { throw refusal(); }, answered), 404,
    '{"error":"something broke"}'));

fastified("a body that is no JSON is its parser's 400", async () => {
  const port = await serveFastify(async () => "ran");
  const got = await post(port, keyed({ "Content-Type": "application/json" }), "{");
  assert.equal(got.status, 400);
});

fastified("the handler gets the body, and a repeat the answer", async () => {
  const port = await serveFastify(async request => ({ got: request.body }));
  const headers = keyed({ "Content-Type": "application/json" });
  for (let i = 0; i < 2; i++) {
    const got = await post(port, headers, '{"a":1}');
    assert.deepEqual([got.status, got.body], [200, '{"got":{"a":1}}']);
  }
  assert.equal((await post(port, headers, '{"a":2}')).status, 422);
});

for (const [name, answer] of Object.entries({
  "a text": () => "of a file",
  "a stream": () => fs.createReadStream(FILE, { highWaterMark: 2 }) })) {
  fastified(`a client that leaves loses no answer that is ${name}`, async () => {
    writeFile();
    const started = begun();
    const port = await serveFastify(async (request, reply) => {
      started.resolve();
      await sleep(200);
      return reply.send(answer());
    });
    await survivesLeaving(port, started.promise, "of a file");
  });
}

fastified("no hook learns that a client left before its answer is told", async () => {
  writeFile();
  const started = begun();
  let aborts = 0;
  const port = await serveFastify(async () => {
    started.resolve();
    await sleep(200);
    assert.equal(aborts, 0);
    return "of a file";
  }, app => app.addHook("onRequestAbort", (request, done) => {
    aborts += 1;
    done();
  }));
  await survivesLeaving(port, started.promise, "of a file");
});

fastified("scope is a function of Fastify's request", async () => {
  const app = FASTIFY.module();
  app.decorateRequest("user", null);
  app.addHook("onRequest", async request => { request.user = request.headers.user; });
  await app.register(once.fastify, { ...OPTIONS, route: {}, scope: r => r.user });
  app.post("/", async request => request.user);
  await app.listen({ port: 0, host: "127.0.0.1" });
  kit.closing(() => app.close());
  const { port } = app.server.address();
  const headers = keyed();
  for (const user of ["a", "b"]) {
    assert.equal((await post(port, { ...headers, User: user })).body, user);
  }
  assert.equal((await post(port, headers)).status, 401);
});

fastified("lines of a hook before it are each client's own", async () => {
  const app = FASTIFY.module();
  app.addHook("onRequest", async (request, reply) => {
    reply.header("X-Origin", request.headers.origin);
  });
  await app.register(once.fastify, OPTIONS);
  app.post("/", async (request, reply) => reply.header("X-Own", "1").send("x"));
  await app.listen({ port: 0, host: "127.0.0.1" });
  kit.closing(() => app.close());
  const { port } = app.server.address();
  const headers = keyed();
  for (const origin of ["a", "b"]) {
    const { lines } = await post(port, { ...headers, Origin: origin });
    const line = name => lines[lines.findIndex(l => l.toLowerCase() === name) + 1];
    assert.deepEqual([line("x-origin"), line("x-own")], [origin, "1"]);
  }
});

fastified("trailers and early hints are not sent", async () => {
  const port = await serveFastify(async (request, reply) => {
    reply.raw.writeEarlyHints({ link: "</a>; rel=preload" });
    reply.trailer("X-Sum", async () => "1");
    return reply.send("x");
  });
  const headers = keyed();
  for (let i = 0; i < 2; i++) {
    const got = await post(port, headers);
    assert.deepEqual([got.status, got.body, got.informed, got.trailers, got.cut],
      [200, "x", [], {}, false]);
  }
});

fastified("inject() works", async () => {
  const app = await fastify(async made => {
    made.post("/", async request => ({ got: request.body }));
  });
  const request = { method: "POST", url: "/", headers: keyed(), payload: { a: 1 } };
  for (let i = 0; i < 2; i++) {
    const got = await app.inject(request);
    assert.deepEqual([got.statusCode, got.body], [200, '{"got":{"a":1}}']);
  }
  await app.close();
});

fastified("a wrong route fails when it starts", async () => {
  const app = FASTIFY.module();
  app.register(once.fastify, { ...OPTIONS, route: { scope: "off", finall: "2xx" } });
  await assert.rejects(app.ready(), /finall/);
});

