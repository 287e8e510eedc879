// SPDX-License-Identifier: Apache-2.0
/**
 * node_middleware.js - what handlers of Node may do that no scenario of
 * test/gateway does: test_node.py runs it, with ONCE_SERVE_BIN.
 */
"use strict";

const assert = require("assert");
const http = require("http");
const { PassThrough, Readable } = require("stream");
const { test } = require("node:test");

const once = require("../../middleware/node/once.js");
const kit = require("./node_kit.js");

const { OPTIONS, keyed, listen, post, sleep } = kit;
const MIB = 1048576;
const STREAM = { "Content-Type": "text/event-stream" };

const guarded = handler => listen(once.handler(OPTIONS, handler));

async function sizeOf(source) {
  let size = 0;
  for await (const part of source) size += part.length;
  return size;
}

const count = async (req, res) => res.end(String(await sizeOf(req)));

test("a handler may pipe its request", async () => {
  const port = await guarded(async (req, res) =>
    res.end(String(await sizeOf(req.pipe(new PassThrough())))));
  assert.equal((await post(port, keyed(), "hello")).body, "5");
});

test("a body over max_request is whole where nothing is guarded", async () => {
  const got = await post(await guarded(count), {}, Buffer.alloc(3 * MIB));
  assert.equal(got.body, String(3 * MIB));
});

test("a route with a name takes what the server says", async () => {
  const port = await listen(once.handler({ ...OPTIONS, route: "uploads" }, count));
  const headers = keyed();
  assert.equal((await post(port, headers, Buffer.alloc(11 * MIB))).status, 413);
  const got = await post(port, headers, Buffer.alloc(3 * MIB)); // the key is free
  assert.equal(got.body, String(3 * MIB));
});

test("what stands before once() sets lines for its client alone", async () => {
  const inner = once.handler(OPTIONS, (req, res) => {
    res.setHeader("X-Own", "1");
    res.setHeader("X-Both", "inner");
    res.end("x");
  });
  const port = await listen((req, res) => {
    res.setHeader("X-Outer", req.headers.origin);
    res.setHeader("X-Both", "outer");
    inner(req, res);
  });
  const headers = keyed();
  for (const origin of ["a", "b"]) {
    const got = await post(port, { ...headers, Origin: origin }, "x");
    const line = name => got.lines.filter((_, i) => i % 2 === 1 &&
      got.lines[i - 1].toLowerCase() === name).join();
    assert.deepEqual(["x-outer", "x-both", "x-own"].map(line),
      [origin, "inner", "1"]);
  }
});

test("a connection goes on after a 413", async () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const port = await guarded(count);
  const long = await post(port, keyed(), Buffer.alloc(8 * MIB), agent);
  assert.equal(long.status, 413);
  assert.equal((await post(port, keyed(), "x", agent)).body, "1");
  agent.destroy();
});

for (const isGuarded of [true, false]) {
  for (const error of [new Error("x"), undefined, null, "text"]) {
    test(`a process lives when a handler throws ${error}, guarded ${isGuarded}`, async () => {
      const port = await guarded(async () => { throw error; });
      const got = await post(port, isGuarded ? keyed() : {});
      assert.ok(got.cut || got.status === 502);
      assert.ok(await post(port, keyed()));
    });
  }
}

test("a time-out of fetch is a 504", async () => {
  const port = await guarded(async () => {
    await new Promise((_, reject) => {
      const signal = AbortSignal.timeout(10);
      signal.onabort = () => reject(signal.reason);
      setTimeout(() => {}, 100); // keeps the loop, as a socket would
    });
  });
  assert.equal((await post(port, keyed())).status, 504);
});

test("a line that Node does not send ends one connection only", async () => {
  const port = await guarded((req, res) => {
    res.writeHead(200, ["X-A", "a\u0001b"]);
    res.end("hi");
  });
  assert.ok((await post(port, keyed())).cut);
  assert.ok((await post(port, keyed())).cut);
});

test("a stream whose handler breaks at once is cut off", async () => {
  const port = await guarded((req, res) => {
    res.writeHead(200, STREAM);
    res.write("data: 1\n\n");
    throw new Error("x");
  });
  assert.ok((await post(port, keyed())).cut);
});

test("an answer stands when its handler throws after it", async () => {
  const port = await guarded(async (req, res) => {
    res.end("done");
    await sleep(50);
    throw new Error("x");
  });
  const got = await post(port, keyed());
  assert.deepEqual([got.status, got.body], [200, "done"]);
});

test("a source waits while the server is asked", async () => {
  let made = 0;
  const port = await guarded((req, res) => {
    kit.server.kill("SIGSTOP");
    new Readable({ read() {
      made += 1;
      this.push(made > 50 ? null : Buffer.alloc(MIB));
    } }).pipe(res);
  });
  const answer = post(port, keyed());
  await sleep(500);
  const before = made;
  kit.server.kill("SIGCONT");
  assert.equal((await answer).body.length, 50 * MIB);
  assert.ok(before < 10, `${before} MiB`);
});

test("no 103 leaves before the server has answered", async () => {
  const port = await guarded((req, res) => {
    res.writeEarlyHints({ link: "</a>; rel=preload" });
    res.end("hi");
  });
  const got = await post(port, keyed());
  assert.deepEqual([got.informed, got.body], [[], "hi"]);
});

/** What sessions and loggers do: a line is added when the head is written. */
function onHead(res, add) {
  const own = res.writeHead;
  res.writeHead = function writeHead(status, ...more) {
    add();
    return own.call(this, status, ...more.filter(m => !Array.isArray(m)));
  };
}

test("what has wrapped writeHead() before is called, and breaks nothing", async () => {
  const service = once.handler(OPTIONS, (req, res) => {
    res.setHeader("Set-Cookie", ["a=1", "b=2"]);
    res.end("hi");
  });
  const port = await listen((req, res) => {
    onHead(res, () => res.setHeader("X-Late", "1"));
    service(req, res);
  });
  const { lines } = await post(port, keyed());
  for (const value of ["a=1", "b=2"]) assert.ok(lines.includes(value));
  assert.ok(lines.includes("X-Late"));
});

test("what a handler has wrapped is called, too, and recorded", async () => {
  const port = await guarded((req, res) => {
    onHead(res, () => res.setHeader("X-Late", "1"));
    res.end("hi");
  });
  const headers = keyed();
  assert.ok((await post(port, headers)).lines.includes("X-Late"));
  assert.ok((await post(port, headers)).lines.includes("X-Late"));
});

test("a client that leaves takes no body from its handler", async () => {
  let said;
  const port = await guarded(async (req, res) => {
    await sleep(300);
    said = await sizeOf(req).catch(error => error.message);
    res.end();
  });
  const req = http.request({ port, method: "POST", headers: keyed() });
  req.on("error", () => {});
  req.end("hello");
  await sleep(100);
  req.destroy();
  while (said === undefined) await sleep(20);
  assert.equal(said, 5);
});

let express = null;
try {
  express = require("express");
} catch (error) {
  // the tests below are left out
}

test("a request whose body was read before is refused", { skip: !express },
  async () => {
    const app = express();
    app.use(express.text(), once(OPTIONS), (req, res) => res.send(req.body));
    const headers = keyed({ "Content-Type": "text/plain" });
    assert.equal((await post(await listen(app), headers, "pay")).status, 500);
  });

test("an error of Express is an unknown outcome by once.failed",
  { skip: !express }, async () => {
    const app = express();
    app.use(once(OPTIONS), express.json());
    app.post("/", () => { throw new Error("x"); });
    app.use(once.failed);
    assert.equal((await post(await listen(app), keyed())).status, 502);
  });
