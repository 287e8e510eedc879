// SPDX-License-Identifier: Apache-2.0
/**
 * node_kit.js - a server, services and clients for the tests of the middleware for
 * Node. ONCE_SERVE_BIN names `once serve`.
 */
"use strict";

const fs = require("fs");
const http = require("http");
const os = require("os");
const path = require("path");
const { spawn } = require("child_process");
const { after, before } = require("node:test");

const PATIENCE_MS = 20000;

const FOLDER = fs.mkdtempSync(path.join(os.tmpdir(), "once-node-"));
const SOCKET = path.join(FOLDER, "s");
const kit = { FOLDER, SOCKET, server: null, lines: [] };
const services = [];
let keys = 0;

kit.OPTIONS = { route: { scope: "off" }, serve: `unix:${SOCKET}`,
  log: line => kit.lines.push(line) };

kit.sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

/** Ends with its event; the test fails where that does not come. */
kit.until = async (what, ms = PATIENCE_MS) => {
  for (const end = performance.now() + ms; !what();) {
    if (performance.now() > end) throw new Error(`it does not come: ${what}`);
    await kit.sleep(10);
  }
};

before(async () => {
  const route = path.join(FOLDER, "uploads.json");
  fs.writeFileSync(route, '{"scope":"off","max_request":"10m"}\n');
  kit.server = spawn(process.env.ONCE_SERVE_BIN, ["--volatile", "--store", "memory:",
    "--listen", `unix:${SOCKET}`, "--define", `uploads=${route}`],
  { stdio: "ignore" });
  await kit.until(() => {
    if (kit.server.exitCode !== null) throw new Error("once-serve does not start");
    return fs.existsSync(SOCKET);
  });
});

const closings = [];
kit.closing = f => closings.push(f);

after(async () => {
  for (const close of closings) await close();
  for (const service of services) {
    if (service.closeAllConnections) service.closeAllConnections();
    service.close();
  }
  kit.server.kill("SIGKILL");
  fs.rmSync(FOLDER, { recursive: true });
});

kit.listen = async app => {
  const service = typeof app === "function" ? http.createServer(app) : app;
  services.push(service);
  await new Promise(resolve => service.listen(0, "127.0.0.1", resolve));
  return service.address().port;
};

kit.keyed = (more = {}) => ({ "Idempotency-Key": `"k${keys++}"`, ...more });

/** { status, lines, body, cut, informed, trailers }; it rejects when nothing comes. */
kit.post = (port, headers = {}, body = "", agent = false, method = "POST") =>
  new Promise((resolve, reject) => {
    const req = http.request({ port, method, headers, agent });
    const got = { status: 0, lines: [], body: "", cut: false, informed: [], trailers: {} };
    const timer = setTimeout(() => {
      reject(new Error("no answer"));
      req.destroy();
    }, PATIENCE_MS);
    const end = cut => {
      clearTimeout(timer);
      resolve({ ...got, cut });
    };
    req.on("information", info => got.informed.push(info.statusCode));
    req.on("error", () => end(true));
    req.on("response", res => {
      Object.assign(got, { status: res.statusCode, lines: res.rawHeaders });
      res.on("data", part => { got.body += part.toString("latin1"); });
      res.on("end", () => {
        got.trailers = res.trailers;
        end(false);
      });
      res.on("error", () => end(true));
    });
    req.end(body);
  });

/** A client that sends its request and leaves when `when` has come. */
kit.leave = async (port, headers, body, when) => {
  const req = http.request({ port, method: "POST", headers });
  req.on("error", () => {});
  req.end(body);
  await when;
  req.destroy();
};

module.exports = kit;
