// SPDX-License-Identifier: Apache-2.0
/**
 * node_clock.js - the middleware for Node while somebody sets the clock: a server
 * that fails at the right moment, and test/lib/clockshim.c in this process's child.
 */
"use strict";

const assert = require("assert");
const fs = require("fs");
const http = require("http");
const os = require("os");
const path = require("path");
const { spawn, spawnSync } = require("child_process");
const { after, before, test } = require("node:test");

const HOUR_MS = 3600000;
const FOLDER = fs.mkdtempSync(path.join(os.tmpdir(), "once-clock-"));
const SHIM = path.join(FOLDER, "shim.so");
const CLOCK = path.join(FOLDER, "clock");
const SOCKET = path.join(FOLDER, "s");

const set = ms => {
  const data = Buffer.alloc(16);
  data.writeBigInt64LE(BigInt(ms));
  const fd = fs.openSync(CLOCK, fs.existsSync(CLOCK) ? "r+" : "w");
  fs.writeSync(fd, data, 0, 16, 0);
  fs.closeSync(fd);
};

/** Says what begins and ends; `end` fails until `heals`. */
const told = { ends: 0, heals: Infinity };

function answer(req, res, text) {
  const head = JSON.parse(text.slice(0, text.indexOf("\n")));
  const say = value => {
    const line = JSON.stringify(value) + "\n";
    res.writeHead(200, { "Content-Length": line.length });
    res.end(line);
  };
  if (req.url === "/v1/route") return say({ max_request: 1024, wait_ms: 0 });
  if (req.url === "/v1/begin") {
    return say({ do: "run", token: "t", attempt: 1, record: "r", key: "k",
      lease_ms: 20000, run_ms: 60000, max_response: 1024 });
  }
  told.ends += 1;
  if (told.ends <= told.heals) return req.socket.destroy();
  return say({ do: "own", status: head.status, headers: head.headers });
}

const fake = http.createServer(async (req, res) => {
  let text = "";
  for await (const part of req) text += part;
  answer(req, res, text);
});

before(async () => {
  const done = spawnSync("cc", ["-shared", "-fPIC", "-O", "-o", SHIM,
    path.join(__dirname, "../lib/clockshim.c"), "-ldl"], { encoding: "utf8" });
  assert.equal(done.status, 0, done.stderr);
  await new Promise(resolve => fake.listen(SOCKET, resolve));
});

after(() => {
  fake.closeAllConnections();
  fake.close();
  fs.rmSync(FOLDER, { recursive: true });
});

const CHILD = `
  const http = require("http");
  const once = require(${JSON.stringify(path.join(__dirname,
    "../../middleware/node/once.js"))});
  const service = http.createServer(once.handler({ route: { scope: "off" },
    serve: process.argv[1], log() {} }, (req, res) => res.end("done")));
  service.listen(0, "127.0.0.1", () => {
    const was = Date.now();
    const req = http.request({ port: service.address().port, method: "POST" }, res => {
      console.log(res.statusCode, Date.now() - was);
      process.exit(0);
    });
    req.end();
    console.log("begun");
  });`;

/** [status, how far its wall clock went]. */
function ask(serve, afterMs, ahead) {
  set(0);
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ["-e", CHILD, serve], { env: { ...process.env,
      LD_PRELOAD: SHIM, ONCE_CLOCKSHIM: CLOCK }, stdio: ["ignore", "pipe", "inherit"] });
    const timer = setTimeout(() => {
      child.kill("SIGKILL");
      reject(new Error("the request hangs"));
    }, 60000);
    let text = "";
    child.stdout.on("data", part => {
      if (!text) setTimeout(set, afterMs, ahead);
      text += part;
    });
    child.on("close", () => {
      clearTimeout(timer);
      resolve(text.split("\n")[1].split(" ").map(Number));
    });
  });
}

test("a clock set back holds no request while the server is away", async () => {
  const [status, went] = await ask(`unix:${FOLDER}/none`, 300, -HOUR_MS);
  assert.equal(status, 503);
  assert.ok(went < -HOUR_MS / 2, `the clock was not set: ${went}`);
});

test("a clock set ahead takes no answer away that the server records", async () => {
  Object.assign(told, { ends: 0, heals: 4 });
  const [status, went] = await ask(`unix:${SOCKET}`, 200, HOUR_MS);
  assert.equal(status, 200);
  assert.ok(went > HOUR_MS / 2, `the clock was not set: ${went}`);
});

test("a clock set back does not lengthen the lease", async () => {
  Object.assign(told, { ends: 0, heals: Infinity });
  const [status] = await ask(`unix:${SOCKET}`, 300, -HOUR_MS);
  assert.equal(status, 502);
});
