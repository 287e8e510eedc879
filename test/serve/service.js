#!/usr/bin/node
// SPDX-License-Identifier: Apache-2.0
/**
 * service.js - a service on Node whose handlers are guarded by the middleware, for
 * the scenarios of test/gateway: ONCE_TARGET=node (http) and express.
 *
 *     service.js [express] FILE SOCKET
 *
 * FILE is the route file as JSON (routes.py --json). Its handler sends the request
 * on to the scenario's upstream and answers with what comes back, byte for byte.
 */
"use strict";

const fs = require("fs");
const http = require("http");
const net = require("net");
const path = require("path");
const { execFileSync } = require("child_process");

const once = require(path.join(__dirname, "../../middleware/node/once.js"));

const NOT_FORWARDED = new Set(["connection", "content-length", "expect",
  "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"]);

const [file, socket] = process.argv.slice(-2);
const express = process.argv[2] === "express" ? require("express") : null;
const { top, locations } = JSON.parse(execFileSync("/usr/bin/python3",
  [path.join(__dirname, "routes.py"), file]));
const log = text => fs.appendFileSync(top.error_log, text + "\n");

const userOf = req => {
  const [how, text = ""] = (req.headers.authorization || "").split(" ");
  const [name, ...password] = how.toLowerCase() === "basic"
    ? Buffer.from(text, "base64").toString().split(":") : [""];
  return [name, password.join(":")];
};

const pathOf = req => decodeURIComponent(req.url.split("?")[0]);

/** Undefined: all of it is empty. */
const expand = template => req => template.replace(/\$(\w+)/g, (_, name) =>
  name === "uri" ? pathOf(req)
    : name === "remote_user" ? userOf(req)[0]
      : req.headers[name.slice(5).replace(/_/g, "-")] || "") || undefined;

/** Everything until `mark`, then the rest; or it throws. */
class Reader {
  constructor(conn) {
    this.conn = conn;
    this.buffer = Buffer.alloc(0);
    this.ended = false;
    this.wake = () => {};
    conn.on("data", d => { this.buffer = Buffer.concat([this.buffer, d]); this.wake(); });
    conn.on("end", () => { this.ended = true; this.wake(); });
    conn.on("error", () => { this.ended = true; this.wake(); });
    conn.on("close", () => { this.ended = true; this.wake(); });
  }

  async more() {
    if (this.ended) throw new Error("cut off");
    await new Promise(resolve => { this.wake = resolve; });
  }

  async line() {
    let at;
    while ((at = this.buffer.indexOf("\r\n")) < 0) await this.more();
    const line = this.buffer.subarray(0, at).toString("latin1");
    this.buffer = this.buffer.subarray(at + 2);
    return line;
  }

  async exactly(n) {
    while (this.buffer.length < n) await this.more();
    const data = this.buffer.subarray(0, n);
    this.buffer = this.buffer.subarray(n);
    return data;
  }

  async rest() {
    while (!this.ended) await new Promise(resolve => { this.wake = resolve; });
    return this.buffer;
  }
}

async function bodyOf(reader, values) {
  if (values["transfer-encoding"] === "chunked") {
    const parts = [];
    for (;;) {
      const size = parseInt(await reader.line(), 16);
      if (Number.isNaN(size)) throw new Error("bad chunk");
      if (size === 0) break;
      parts.push(await reader.exactly(size));
      if (await reader.line() !== "") throw new Error("bad chunk");
    }
    while (await reader.line() !== "");
    return Buffer.concat(parts);
  }
  if ("content-length" in values) {
    return reader.exactly(Number(values["content-length"]));
  }
  return reader.rest();
}

function connect(location) {
  return new Promise(resolve => {
    const conn = net.connect({ host: location.origin[0], port: location.origin[1] });
    conn.once("connect", () => resolve(conn));
    conn.once("error", () => resolve(null));
  });
}

async function forward(location, req, res) {
  const parts = [];
  for await (const part of req) parts.push(part);
  const body = Buffer.concat(parts);
  const conn = await connect(location);
  if (conn === null) {
    res.writeHead(502, { "Idempotency-Outcome": "not-applied" });
    res.end();
    return;
  }
  const reader = new Reader(conn);
  let late = false;
  const timer = setTimeout(() => { late = true; conn.destroy(); },
    location.timeout * 1000);
  // Of a guarded request a client that leaves ends nothing before the answer is told.
  res.on("close", () => conn.destroy());
  try {
    const lines = [`${req.method} ${req.url} HTTP/1.1`, "Connection: close",
      `Content-Length: ${body.length}`];
    for (let i = 0; i < req.rawHeaders.length; i += 2) {
      if (!NOT_FORWARDED.has(req.rawHeaders[i].toLowerCase())) {
        lines.push(`${req.rawHeaders[i]}: ${req.rawHeaders[i + 1]}`);
      }
    }
    conn.write(Buffer.concat([Buffer.from(lines.join("\r\n") + "\r\n\r\n", "latin1"),
      body]));
    const first = /^HTTP\/1\.[01] ([2-5]\d\d)( .*)?$/.exec(await reader.line());
    if (first === null) throw new Error("not HTTP");
    const values = {};
    const kept = [];
    for (let line; (line = await reader.line()) !== "";) {
      const at = line.indexOf(":");
      if (at < 0) throw new Error("bad header");
      const [name, value] = [line.slice(0, at), line.slice(at + 1).trim()];
      values[name.toLowerCase()] = value;
      if (!NOT_FORWARDED.has(name.toLowerCase())) kept.push(name, value);
    }
    const status = Number(first[1]);
    if (/^(text\/event-stream|application\/x-ndjson)/.test(values["content-type"]) &&
        !("content-length" in values)) {
      clearTimeout(timer);
      res.writeHead(status, kept);
      res.flushHeaders();
      for (;;) {
        if (reader.buffer.length > 0) {
          res.write(reader.buffer);
          reader.buffer = Buffer.alloc(0);
        }
        if (reader.ended) break;
        await new Promise(resolve => { reader.wake = resolve; });
      }
      res.end();
      return;
    }
    const data = req.method === "HEAD" || status === 204 || status === 304
      ? Buffer.alloc(0) : await bodyOf(reader, values);
    res.writeHead(status, kept);
    res.end(data);
  } catch (error) {
    throw late ? Object.assign(new Error("silent"), { code: "ETIMEDOUT" }) : error;
  } finally {
    clearTimeout(timer);
    if (res.writableEnded !== false || !res.headersSent) conn.end();
  }
}

function serviceOf(location) {
  const handler = (req, res) => forward(location, req, res);
  if (location.store === null) return (req, res) => handler(req, res).catch(() => res.destroy());
  if (location.route.probe) { // once serve has none: its scenarios are left out
    return (req, res) => { res.writeHead(501); res.end(); };
  }
  const options = { route: location.route, log,
    serve: `unix:${socket}.${location.store}`,
    bypass: location.route.store_failure === "bypass" };
  for (const name of ["scope", "key", "fingerprint"]) {
    if (location[name]) options[name] = expand(location[name]);
  }
  if (!express) return once.handler(options, handler);
  const router = express.Router();
  router.use(once(options), (req, res, next) => handler(req, res).catch(next),
    once.failed, (error, req, res, next) => res.destroy());
  return router;
}

const services = new Map(locations.map(l => [l.path, serviceOf(l)]));

function serve(req, res, next) {
  const found = locations.filter(l => req.url.split("?")[0].startsWith(l.path))
    .sort((a, b) => b.path.length - a.path.length)[0];
  const say = (status, headers = {}) => { res.writeHead(status, headers); res.end(); };
  if (!found) return say(404);
  if (found.users) {
    const known = fs.readFileSync(found.users, "ascii").split("\n");
    if (!known.includes(userOf(req).join(":{PLAIN}"))) {
      return say(401, { "WWW-Authenticate": 'Basic realm="shop"' });
    }
  }
  if (found.denied) return say(403);
  return services.get(found.path)(req, res, next);
}

let app = serve;
if (express) {
  app = express();
  app.disable("x-powered-by");
  app.use(serve);
}
const server = http.createServer({
  maxHeaderSize: 1 << 20, requestTimeout: 0,
  keepAliveTimeout: 75000, // as nginx
}, app);
const [host, port] = top.listen.split(":");
server.on("error", error => {
  fs.appendFileSync(top.error_log, error.code === "EADDRINUSE"
    ? "Address already in use\n" : `${error}\n`);
  process.exit(1);
});
server.listen(Number(port), host);
process.on("SIGQUIT", () => {
  log("gracefully shutting down");
  server.close(() => process.exit(0));
  server.closeIdleConnections();
});
process.on("SIGTERM", () => process.exit(0));
