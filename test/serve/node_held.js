// SPDX-License-Identifier: Apache-2.0
/**
 * node_held.js - what a handler sees of its client, and what it may send, while its
 * answer is held; what is computed of a request; and a body that was read before.
 */
"use strict";

const assert = require("assert");
const fs = require("fs");
const http = require("http");
const http2 = require("http2");
const net = require("net");
const path = require("path");
const { spawnSync } = require("child_process");
const { pipeline, Readable } = require("stream");
const { test } = require("node:test");

const once = require("../../middleware/node/once.js");
const kit = require("./node_kit.js");

const { OPTIONS, keyed, leave, listen, post, sleep, until } = kit;
const MIB = 1048576;
const guarded = (handler, more = {}) => listen(once.handler({ ...OPTIONS, ...more }, handler));

function promised() {
  const made = {};
  made.promise = new Promise(resolve => { made.resolve = resolve; });
  return made;
}

const saidOf = lines => lines.map(l => l.replace(/^once: /, "")).join("\n");

// ---- A client that leaves -----------------------------------------------------------

/** Runs `answer` after its client has left; returns what it saw, and the repeat. */
async function afterLeaving(answer) {
  const started = promised(), left = promised();
  const seen = [];
  let runs = 0;
  const inner = once.handler(OPTIONS, async (req, res) => {
    runs += 1;
    const note = what => {
      if (["held", "told"].includes(req[once.HELD].state)) seen.push(what);
    };
    if (req.signal) req.signal.addEventListener("abort", () => note("req signal"));
    for (const event of ["close", "aborted", "error"]) {
      req.on(event, () => note(`req ${event}`));
      req.socket.on(event, () => note(`socket ${event}`));
      res.on(event, () => note(`res ${event}`));
    }
    res.socket.once("close", () => note("res.socket close"));
    const address = req.socket.remoteAddress;
    started.resolve();
    await left.promise;
    await sleep(100);
    const state = { destroyed: res.destroyed, closed: res.closed, ended: res.writableEnded,
      signalled: Boolean(req.signal && req.signal.aborted),
      gone: req.socket.destroyed, writable: res.socket.writable, aborted: req.aborted,
      address: req.socket.remoteAddress === address };
    if (state.signalled || res.destroyed || res.closed || res.writableEnded || state.gone ||
        !state.writable || state.aborted || !state.address) seen.push(state);
    await answer(res);
  });
  const port = await listen((req, res) => {
    void req.signal; // Node 24 and later
    inner(req, res);
  });
  const headers = keyed();
  await leave(port, headers, "hello", started.promise);
  left.resolve();
  let got;
  for (;;) { // 409 in-flight until it is recorded
    got = await post(port, headers, "hello");
    if (got.status !== 409 || !got.body.includes("in-flight")) break;
    await sleep(50);
  }
  return { seen, got, runs };
}

const ANSWERS = {
  "ends at once": res => res.end("whole"),
  "pipes": res => {
    Readable.from((async function* slow() {
      for (const part of ["wh", "o", "le"]) {
        await sleep(30);
        yield part;
      }
    })()).pipe(res);
  },
  "uses pipeline": res => new Promise((resolve, reject) => {
    const file = path.join(kit.FOLDER, "file");
    fs.writeFileSync(file, "whole");
    pipeline(fs.createReadStream(file, { highWaterMark: 2 }), res,
      error => error ? reject(error) : resolve());
  })
};

for (const [name, answer] of Object.entries(ANSWERS)) {
  test(`a handler that ${name} does not learn that its client left`, async () => {
    let failed = null;
    const { seen, got, runs } = await afterLeaving(res =>
      Promise.resolve(answer(res)).catch(error => { failed = error; }));
    assert.deepEqual([seen, got.status, got.body, runs, failed], [[], 200, "whole", 1, null]);
  });
}

test("a handler learns that its client left when its answer is told", async () => {
  const started = promised(), closed = promised();
  let response;
  const port = await guarded(async (req, res) => {
    response = res;
    let finished = false;
    res.on("finish", () => { finished = true; });
    res.on("close", () => closed.resolve([res.destroyed, finished]));
    const { socket } = req;
    started.resolve();
    await sleep(200);
    assert.equal(socket.destroyed, false);
    res.end("x");
    await closed.promise;
    assert.equal(socket.destroyed, true);
  });
  await leave(port, keyed(), "", started.promise);
  assert.deepEqual(await closed.promise, [true, true]);
  assert.equal(response.closed, true);
});

test("a stream whose client left stops when it is recorded", async () => {
  const started = promised(), ended = promised();
  const port = await guarded(async (req, res) => {
    started.resolve();
    await sleep(200);
    pipeline(new Readable({ read() { this.push(Buffer.alloc(MIB / 8)); } }), res,
      error => ended.resolve(error.code));
  });
  await leave(port, keyed(), "", started.promise);
  assert.equal(await ended.promise, "ERR_STREAM_PREMATURE_CLOSE");
});

test("pipelined requests get their answers in order, also when the first is slow",
  async () => {
    const port = await guarded(async (req, res) => {
      await sleep(req.url === "/1" ? 300 : 0);
      res.end(`answer of ${req.url}`);
    });
    const socket = net.connect(port, "127.0.0.1");
    let text = "";
    socket.on("data", part => { text += part; });
    for (const n of [1, 2, 3]) {
      socket.write(`POST /${n} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: pipe-${n}\r\n` +
        "Content-Length: 0\r\n\r\n");
    }
    await until(() => text.includes("/3"));
    socket.destroy();
    assert.deepEqual(text.match(/answer of \/\d/g), [1, 2, 3].map(n => `answer of /${n}`));
  });

for (const [name, cut] of Object.entries({
  "res.destroy()": (req, res) => res.destroy(),
  "req.destroy()": (req, res) => req.destroy(),
  "socket.destroy()": (req, res) => res.socket.destroy(),
  "socket.end()": req => req.socket.end() })) {
  test(`${name} of a handler is an unknown outcome`, async () => {
    const port = await guarded(cut);
    const headers = keyed();
    assert.equal((await post(port, headers)).status, 502);
    const again = await post(port, headers);
    assert.equal(again.status, 409);
    assert.match(again.body, /outcome-unknown/);
  });
}

test("a time-out of the response is the handler's to answer", async () => {
  const port = await guarded((req, res) => {
    res.setTimeout(50, () => {
      res.statusCode = 503;
      res.end("late");
    });
  });
  const got = await post(port, keyed());
  assert.deepEqual([got.status, got.body], [503, "late"]);
});

test("a server that is shut down lets handlers end, and answers", async () => {
  const started = promised(), go = promised();
  const service = http.createServer(once.handler(OPTIONS, async (req, res) => {
    started.resolve();
    await go.promise;
    res.end("done");
  }));
  const answer = post(await listen(service), keyed());
  await started.promise;
  service.close();
  service.closeIdleConnections();
  go.resolve();
  const got = await answer;
  assert.deepEqual([got.status, got.body], [200, "done"]);
});

test("a client that the server's shutdown cuts off finds its answer", async () => {
  const started = promised(), go = promised(), done = promised();
  const app = once.handler(OPTIONS, async (req, res) => {
    started.resolve();
    await go.promise;
    res.on("close", done.resolve);
    res.end("done");
  });
  const service = http.createServer(app);
  const headers = keyed();
  const answer = post(await listen(service), headers);
  await started.promise;
  service.closeAllConnections();
  assert.ok((await answer).cut);
  go.resolve();
  await done.promise;
  assert.equal((await post(await listen(app), headers)).body, "done");
});

// ---- What is sent beside the body ---------------------------------------------------

test("nothing leaves before the record, and nothing is taken for the body", async () => {
  const port = await guarded(async (req, res) => {
    res.writeContinue();
    res.writeProcessing();
    if (res.writeInformation) res.writeInformation(110, { a: "b" });
    await new Promise(resolve =>
      res.writeEarlyHints({ link: "</a>; rel=preload" }, resolve));
    assert.throws(() => res.socket.write("HTTP/1.1 200 OK\r\n\r\n"), /held/);
    res.setHeader("Trailer", "X-Sum");
    res.cork();
    res.flushHeaders();
    res.write("o");
    res.addTrailers({ "X-Sum": "1" });
    res.uncork();
    await sleep(50);
    res.end("k");
  });
  const headers = keyed();
  for (const turn of [1, 2]) {
    const got = await post(port, headers);
    assert.deepEqual([turn, got.status, got.body, got.informed, got.trailers, got.cut],
      [turn, 200, "ok", [], {}, false]);
    assert.ok(!got.lines.some(l => /^trailer$/i.test(l)));
  }
});

test("a handler that calls writeContinue() gets the body of a client that waits",
  async () => {
    const service = http.createServer();
    const app = once.handler(OPTIONS, async (req, res) => {
      res.writeContinue();
      let size = 0;
      for await (const part of req) size += part.length;
      res.end(String(size));
    });
    service.on("checkContinue", app);
    const port = await listen(service);
    const got = await new Promise(resolve => {
      const req = http.request({ port, method: "POST",
        headers: keyed({ Expect: "100-continue", "Content-Length": "5" }) });
      req.on("continue", () => req.end("hello"));
      req.on("response", res => res.on("data", d => resolve(String(d))));
      req.flushHeaders();
    });
    assert.equal(got, "5");
  });

test("the head is written once, as Node has it", async () => {
  const port = await guarded((req, res) => {
    res.setHeader("X-A", "1");
    assert.equal(res.headersSent, false);
    res.writeHead(201);
    res.statusCode = 500;
    assert.equal(res.headersSent, true);
    for (const late of [() => res.writeHead(500), () => res.setHeader("X-B", "2"),
      () => res.removeHeader("X-A")]) {
      assert.throws(late, { code: "ERR_HTTP_HEADERS_SENT" });
    }
    res.end("a");
    assert.equal(res.writableEnded, true);
    assert.equal(res.write("b", () => {}), false);
    res.end("c");
  });
  const got = await post(port, keyed());
  assert.deepEqual([got.status, got.body], [201, "a"]);
});

for (const length of [2, 4]) {
  test(`an answer of 3 bytes that says ${length} is broken`, async () => {
    const port = await guarded((req, res) => {
      res.writeHead(200, { "Content-Length": length });
      res.end("abc");
    });
    const headers = keyed();
    assert.equal((await post(port, headers)).status, 502);
    assert.equal((await post(port, headers)).status, 409);
  });
  test(`a long answer that says ${length - 3} bytes more breaks off`, async () => {
    const port = await guarded((req, res) => {
      res.writeHead(200, { "Content-Length": 2 * MIB + length - 3 });
      Readable.from([Buffer.alloc(MIB), Buffer.alloc(MIB)]).pipe(res);
    });
    assert.ok((await post(port, keyed())).cut);
  });
}

test("a long answer keeps its Content-Length", async () => {
  const port = await guarded((req, res) => {
    res.writeHead(200, { "Content-Length": 2 * MIB });
    res.end(Buffer.alloc(2 * MIB));
  });
  const got = await post(port, keyed());
  assert.deepEqual([got.cut, got.body.length], [false, 2 * MIB]);
  assert.ok(got.lines.includes(String(2 * MIB)));
});

test("HTTP/2 is refused, and why", async () => {
  const port = await listen(http2.createServer(once.handler(OPTIONS,
    (req, res) => res.end("x"))).on("session", s => s.unref()));
  kit.lines.length = 0;
  const client = http2.connect(`http://127.0.0.1:${port}`);
  const status = await new Promise((resolve, reject) => {
    const stream = client.request({ ":method": "POST", "idempotency-key": "h2" });
    stream.on("response", headers => resolve(headers[":status"]));
    stream.on("error", reject);
    stream.end();
  });
  client.destroy();
  assert.equal(status, 500);
  assert.match(saidOf(kit.lines), /does not support HTTP\/2/);
});

// ---- A body that was read before ----------------------------------------------------

const READERS = {
  "the whole of it": async req => { for await (const part of req) void part; },
  "three bytes": req => new Promise(resolve => {
    req.once("readable", () => resolve(req.read(3)));
  }),
  "three bytes, given back": req => new Promise(resolve => {
    req.once("readable", () => resolve(req.unshift(req.read(3))));
  }),
  "it by a listener": req => { req.on("data", () => {}); },
  "it by a listener for a moment": async req => {
    const f = () => {};
    req.on("data", f);
    await sleep(50);
    req.off("data", f);
    req.pause();
  },
  "it by a pipe": req => { req.pipe(new (require("stream").PassThrough)()); },
  "nothing, and throws it away": async req => { req.resume(); await sleep(50); }
};

for (const [name, reader] of Object.entries(READERS)) {
  for (const chunked of [false, true]) {
    test(`a request is refused when something has read ${name}, chunked ${chunked}`,
      async () => {
        let runs = 0;
        const inner = once.handler(OPTIONS, (req, res) => { runs += 1; res.end(); });
        const port = await listen(async (req, res) => {
          await reader(req);
          inner(req, res);
        });
        kit.lines.length = 0;
        const headers = keyed(chunked ? { "Transfer-Encoding": "chunked" } : {});
        assert.equal((await post(port, headers, "an order")).status, 500);
        assert.equal(runs, 0);
        assert.match(saidOf(kit.lines), /before once\(\) reads the request's body/);
      });
    test(`a program's own fingerprint lets it through: ${name}, chunked ${chunked}`,
      async () => {
        const inner = once.handler({ ...OPTIONS, fingerprint: req => req.headers.print },
          (req, res) => res.end("ran"));
        const port = await listen(async (req, res) => {
          await reader(req);
          inner(req, res);
        });
        const headers = keyed(chunked ? { "Transfer-Encoding": "chunked" } : {});
        const send = more => post(port, { ...headers, ...more }, "an order");
        assert.equal((await send({})).status, 500); // it has computed none
        assert.equal((await send({ Print: "a" })).body, "ran");
        assert.equal((await send({ Print: "b" })).status, 422);
      });
  }
}

test("a listener before a first request, while the server is asked, is seen", async () => {
  // The chunks come while once() asks for the route.
  for (let i = 0; i < 5; i++) {
    const inner = once.handler(OPTIONS, (req, res) => res.end("ran"));
    const port = await listen((req, res) => {
      req.resume();
      inner(req, res);
    });
    const got = await post(port, keyed(), "an order");
    assert.equal(got.status, 500);
  }
});

test("a key of the body's JSON is not taken from a body that is not there", async () => {
  let runs = 0;
  const inner = once.handler({ ...OPTIONS, fingerprint: () => "f",
    route: { scope: "off", key_json: "/id" } },
  (req, res) => { runs += 1; res.end(); });
  const port = await listen(async (req, res) => {
    for await (const part of req) void part;
    inner(req, res);
  });
  assert.equal((await post(port, { "Content-Type": "application/json" },
    '{"id":"a"}')).status, 500);
  assert.equal(runs, 0);
});

// ---- What is computed of a request --------------------------------------------------

for (const name of ["scope", "key", "fingerprint", "label"]) {
  for (const value of [{ id: 1 }, 7, "", ["a"], true, Buffer.from("a")]) {
    const shown = JSON.stringify(value);
    test(`${name} that returns ${shown} is an error`, async () => {
      let runs = 0;
      const port = await guarded((req, res) => { runs += 1; res.end(); },
        { [name]: () => value });
      kit.lines.length = 0;
      assert.equal((await post(port, keyed(), "x")).status, 500);
      assert.equal(runs, 0);
      assert.match(saidOf(kit.lines), new RegExp(`${name} has returned`));
    });
  }
}

test("a promise of a text is awaited, and undefined is no scope: 401", async () => {
  const options = { route: {}, scope: async req => req.headers.user };
  const port = await guarded((req, res) => res.end("ran"), options);
  assert.equal((await post(port, keyed({ User: "a" }))).body, "ran");
  assert.equal((await post(port, keyed())).status, 401);
});

test("an option that is no function is an error at once", () => {
  assert.throws(() => once({ ...OPTIONS, scope: "tenant" }), /scope is a value of type/);
  assert.throws(() => once.call({ group: "g", key: "k" }, () => 1), /key is a value/);
  assert.throws(() => once.call({ group: 7, key: () => "k" }, () => 1), /group/);
  assert.throws(() => once.call({ group: "g" }, () => 1), /key function/);
  assert.throws(() => once({ ...OPTIONS, serve: "/run/x" }), /unix:\/PATH/);
  assert.throws(() => once({ ...OPTIONS, tokenFile: "/nowhere" }), /tokenFile/);
});

for (const value of ["", undefined, 7, {}]) {
  test(`a call with the key ${JSON.stringify(value)} runs nothing`, async () => {
    let runs = 0;
    const f = once.call({ group: "g", key: () => value, serve: OPTIONS.serve },
      () => { runs += 1; });
    await assert.rejects(f(), TypeError);
    assert.equal(runs, 0);
  });
}

// ---- The server ---------------------------------------------------------------------

const SCRIPT = `
  const http = require("http");
  const once = require(${JSON.stringify(require.resolve("../../middleware/node/once.js"))});
  once({ route: JSON.parse(process.argv[1]), scope: () => "a",
    serve: process.argv[2] });
  http.createServer().listen(0, () => setTimeout(() => process.exit(0), 3000));`;

for (const [name, route] of [["member", { finall: "2xx" }], ["value", { ttl: "soon" }]]) {
  test(`a wrong ${name} of a route ends the process when it starts`, () => {
    const done = spawnSync(process.execPath,
      ["-e", SCRIPT, JSON.stringify(route), OPTIONS.serve], { encoding: "utf8" });
    assert.equal(done.status, 1);
    assert.match(done.stderr, /once: route: once serve at unix:.* refuses this with 422/);
    assert.ok(done.stderr.includes(Object.keys(route)[0]));
  });
}

test("a server that is away is named, with what was tried", async () => {
  const lines = [];
  const port = await guarded((req, res) => res.end("x"),
    { serve: "unix:/nowhere/serve.sock", log: line => lines.push(line) });
  assert.equal((await post(port, keyed())).status, 503);
  assert.deepEqual(lines.map(l => l.split(":")[1]), [" route", " begin"]);
  assert.match(lines[1], /unix:\/nowhere\/serve\.sock: connect ENOENT .*See that it runs/);
});

test("a server that stands still when a service starts holds no request", async () => {
  kit.server.kill("SIGSTOP");
  try {
    const port = await guarded((req, res) => res.end("ran"));
    const answers = await Promise.all([post(port, keyed()), post(port)]);
    assert.deepEqual(answers.map(a => a.status), [503, 503]);
  } finally {
    kit.server.kill("SIGCONT");
  }
});

test("a handler that cuts off the socket of a time-out is unknown", async () => {
  const port = await guarded((req, res) => {
    res.setTimeout(50, socket => socket.destroy());
  });
  assert.equal((await post(port, keyed())).status, 502);
});

test("a server that stands still holds no request", async () => {
  const started = promised(), go = promised();
  const app = once.handler({ ...OPTIONS, route: { scope: "off", lease: "2s" } },
    async (req, res) => {
      if (req.url === "/slow") {
        started.resolve();
        await go.promise;
      }
      res.end("ran");
    });
  const port = await listen(app);
  const slow = keyed(), fresh = keyed();
  assert.equal((await post(port)).body, "ran"); // it has asked for its route
  const ended = new Promise(resolve => {
    const req = http.request({ port, path: "/slow", method: "POST", headers: slow });
    req.on("response", res => resolve(res.resume().statusCode));
    req.end();
  });
  await started.promise;
  kit.server.kill("SIGSTOP");
  let answers;
  try {
    go.resolve();
    answers = await Promise.all([ended, post(port, fresh), post(port, {}),
      post(port, {}, "", false, "GET")]);
  } finally {
    kit.server.kill("SIGCONT");
  }
  assert.deepEqual([answers[0], ...answers.slice(1).map(a => a.status)],
    [502, 503, 503, 503]);
  for (;;) { // what was not run is free, as the 503 has said
    const got = await post(port, fresh);
    if (got.status === 200) break;
    assert.match(got.body, /in-flight/);
    await sleep(50);
  }
});
