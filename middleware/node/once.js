// SPDX-License-Identifier: Apache-2.0
/**
 * once - the contract of Idempotency-Key for Node services, by `once serve`.
 *
 *     app.use(once({ scope: req => req.auth.tenant }));            // Express
 *     http.createServer(once.handler({ scope: req => ... }, f));   // http
 *     const charge = once.call({ group: "charge", key: order => order.id },
 *       async order => { ... });                                   // a function
 *
 * It stands before body parsers, which get the body as a stream again. A request
 * goes to the server before the handler runs, and the handler's answer before the
 * client gets it. The server decides; this file carries. It refuses to send a byte
 * of an answer before the server has said that it is durable. The same holds for a
 * function and its result.
 */
"use strict";

const crypto = require("crypto");
const fs = require("fs");
const net = require("net");
const { Readable } = require("stream");

const BEGIN_MS = 1000; // how long a begin is repeated
const WAIT_MS = 620000; // how long an answer may take: in_flight has up to 600 s
const IDLE_MAX = 64; // connections that wait for work; busy ones have no bound
const BODY_MAX = 1048576; // of a request that is guarded
const HEADER_MAX = 65536; // of an answer of the server
const STREAMS = ["text/event-stream", "application/x-ndjson"];
const INTERNAL = new Set(["idempotency-attempt", "idempotency-outcome",
  "idempotency-probe", "idempotency-record", "idempotency-recorded-status",
  "idempotency-status", "idempotent-replayed"]);

const HELD = Symbol("once"); // of a request: its answer that is held
const OUTER = Symbol("once.outer");

const NONE = Buffer.alloc(0);

const newId = () => crypto.randomBytes(16).toString("hex");
/** The program is wrong: no handler runs. */
const WRONG = { status: 500, headers: [], body: NONE };
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

function problem(code, status, title, detail, state, marker) {
  const body = { type: "urn:problem-type:once:" + code, title, status, detail,
    code, retryable: true, safe_new_key: false, state,
    error: { type: "api_error", code, message: detail } };
  const headers = [["Content-Type", "application/problem+json"],
    ["Cache-Control", "no-store"], ["Idempotency-Status", marker]];
  if (status === 503) headers.push(["Retry-After", "1"]);
  return { status, headers, body: Buffer.from(JSON.stringify(body)) };
}

const UNAVAILABLE = problem("store-unavailable", 503,
  "The idempotency store is unavailable",
  "Nothing was done now. Send the same key again after the time in Retry-After.",
  "any", "unavailable");
const UNKNOWN = problem("outcome-unknown", 502,
  "The outcome of this request is not known",
  "It may have taken effect. Do not use a new key: find out first.",
  "indeterminate", "indeterminate");

// ---- The server ---------------------------------------------------------------

/** One call at a time on a connection; resolves with { code, head, body }. */
class Server {
  constructor(where, tokenFile) {
    where = where || process.env.ONCE_SERVE || "unix:/run/once/serve.sock";
    tokenFile = tokenFile || process.env.ONCE_SERVE_TOKEN_FILE;
    const url = where.startsWith("unix:") ? null : new URL(where);
    this.where = url ? { host: url.hostname.replace(/[[\]]/g, ""), port: Number(url.port || 80) }
      : { path: where.slice(5) };
    this.line = tokenFile ? "Authorization: Bearer " +
      fs.readFileSync(tokenFile, "ascii").split("\n")[0].trim() + "\r\n" : "";
    this.idle = [];
  }

  call(path, head, body) {
    const line = Buffer.from(JSON.stringify(head) + "\n");
    const start = `POST /v1/${path} HTTP/1.1\r\nHost: once\r\n${this.line}` +
      "Content-Type: application/vnd.once\r\n" +
      `Content-Length: ${line.length + body.length}\r\n\r\n`;
    return this.exchange(Buffer.concat([Buffer.from(start), line, body]));
  }

  exchange(data) {
    return new Promise((resolve, reject) => {
      const socket = this.idle.pop() || net.connect(this.where);
      const parts = [];
      let size = 0, from = -1, all = -1, code = 0;
      const end = error => {
        socket.removeAllListeners();
        socket.on("error", () => {}); // an idle one may end at any time
        if (error || this.idle.length >= IDLE_MAX) {
          socket.destroy();
        } else {
          socket.setTimeout(0);
          socket.unref();
          socket.once("close", () => {
            this.idle = this.idle.filter(s => s !== socket);
          });
          this.idle.push(socket);
        }
        if (error) {
          // The others have ended, too, if the server was restarted.
          this.idle.splice(0).forEach(s => s.destroy());
          reject(error);
        }
      };
      socket.ref();
      socket.setTimeout(WAIT_MS, () => end(new Error("no answer")));
      socket.on("error", end);
      socket.on("close", () => end(new Error("the connection ended")));
      socket.on("data", part => {
        parts.push(part);
        size += part.length;
        if (from < 0) {
          const text = Buffer.concat(parts).toString("latin1");
          from = text.indexOf("\r\n\r\n");
          const length = /\r\ncontent-length: *(\d+)/i.exec(text);
          if (from < 0 && size > HEADER_MAX) return end(new Error("no answer"));
          if (from < 0) return undefined;
          if (length === null) return end(new Error("no Content-Length"));
          code = Number(text.slice(9, 12));
          from += 4;
          all = from + Number(length[1]);
        }
        if (size < all) return undefined;
        const message = Buffer.concat(parts).subarray(from, all);
        const feed = message.indexOf(10);
        try {
          const head = JSON.parse(message.subarray(0, feed).toString());
          end();
          return resolve({ code, head, body: message.subarray(feed + 1) });
        } catch (error) {
          return end(error);
        }
      });
      socket.write(data);
    });
  }
}

/** Every call may be repeated. Null: the server is away, for so long since that was
 * seen. */
async function repeat({ server, log }, path, head, body, ms) {
  let until = 0;
  for (let pause = 50; ; pause = Math.min(2 * pause, 1000)) {
    try {
      const told = await server.call(path, head, body);
      if (told.code !== 503) return told;
    } catch (error) {
      log(`once: ${path}: ${error.message}`);
    }
    until = until || Date.now() + ms;
    if (Date.now() + pause > until) return null;
    await sleep(pause);
    if (path.endsWith("begin")) head = { ...head, again: true };
  }
}

/** It was not run, and will not be. Who is away finds that out himself. */
const abandon = (guard, head) =>
  guard.server.call("abandon", head, NONE).catch(() => {});

/** Null: the server is away, and what it might have begun is abandoned. */
async function begin(guard, path, head, body) {
  const told = await repeat(guard, path, head, body, BEGIN_MS);
  if (told === null) await abandon(guard, { id: head.id });
  return told;
}

/** What became of what was begun. Null: the server is away. */
async function tell(guard, path, head, body, leaseMs) {
  const told = await repeat(guard, path, head, body, leaseMs);
  if (told && told.code !== 200) guard.log(`once: ${path}: ${told.head.text}`);
  return told;
}

// ---- One request ----------------------------------------------------------------

class Exchange {
  constructor(guard, head, body) {
    Object.assign(this, { guard, head, body });
  }

  /** { run }, { pass: lines to add }, or { answer }. */
  async begin() {
    const told = await begin(this.guard, "begin", this.head, this.body);
    if (!told) return this.guard.bypass ? { pass: [] } : { answer: UNAVAILABLE };
    const { code, head, body } = told;
    if (code !== 200) {
      this.guard.log(`once: begin: ${head.text}`);
      return { answer: code === 401 ? UNAVAILABLE : WRONG };
    }
    if (head.do === "send") return { answer: { ...head, body } };
    if (head.do === "pass") return { pass: head.headers || [] };
    this.run = head;
    return { run: head };
  }

  tell(path, more, body) {
    return tell(this.guard, path, { ...more, token: this.run.token,
      route: this.guard.route }, body, this.run.lease_ms);
  }

  /** It is sent as it comes, and recorded as not kept. */
  isLong(size, headers) {
    return size > this.run.max_response || headers.some(([name, value]) =>
      name.toLowerCase() === "content-type" &&
      STREAMS.includes(value.split(";")[0].trim().toLowerCase()));
  }

  /** What the client gets; `own`: it is the handler's. Body null: a stream. */
  async end(status, headers, body) {
    const told = await this.tell("end", body === null
      ? { status, headers, stream: true } : { status, headers },
    body || NONE);
    if (told && told.code === 422) return this.broken(502);
    if (!told || told.code !== 200) return UNKNOWN;
    const own = told.head.do === "own";
    return { ...told.head, own, body: own ? body || NONE : told.body };
  }

  /** The handler ended without an answer: what it did is not known. */
  async broken(status) {
    const told = await this.tell("broken", { status }, NONE);
    return told && told.code === 200 && told.head.do === "send"
      ? { ...told.head, body: told.body } : UNKNOWN;
  }
}

// ---- The response, held ---------------------------------------------------------

const METHODS = ["writeHead", "flushHeaders", "write", "end", "destroy",
  "writeContinue", "writeEarlyHints", "writeProcessing"];

const isTimeout = error => Boolean(error) &&
  (error.code === "ETIMEDOUT" || error.name === "TimeoutError");
const textOf = error => String((error && error.message) || error);

/**
 * Keeps what the handler answers until the server has recorded it. It is "held";
 * "told" while the server is asked; "sending" if it is a stream; "over" when the
 * client has its end.
 */
class Held {
  constructor(x, res) {
    Object.assign(this, { x, res, parts: [], size: 0, state: "held", raw: null,
      headed: false, long: false, ended: false, cut: false, waiting: [] });
    this.own = Object.fromEntries(METHODS.map(m => [m, res[m]]));
    for (const m of METHODS) {
      if (this.own[m]) res[m] = (...args) => this[m](...args);
    }
  }

  headers() {
    const lines = this.raw ? [...this.raw] : [];
    const set = new Set(lines.map(([name]) => name.toLowerCase()));
    for (const name of this.res.getRawHeaderNames()) {
      if (set.has(name.toLowerCase()) || isOuter(this.res, name)) continue;
      for (const value of [].concat(this.res.getHeader(name))) {
        lines.push([name, String(value)]);
      }
    }
    return lines;
  }

  writeHead(status, ...more) {
    const given = more.find(m => typeof m === "object" && m !== null);
    this.headed = true;
    this.res.statusCode = status;
    if (Array.isArray(given) && !Array.isArray(given[0])) {
      this.raw = [];
      for (let i = 0; i < given.length; i += 2) {
        this.raw.push([String(given[i]), String(given[i + 1])]);
      }
    } else if (given) {
      for (const [name, value] of Array.isArray(given) ? given
        : Object.entries(given)) {
        this.res.setHeader(name, value);
      }
    }
    this.streamIfLong();
    return this.res;
  }

  /** As Node does it: what has wrapped writeHead (a session) adds its lines now. */
  implicitHead() {
    if (!this.headed) this.res.writeHead(this.res.statusCode);
  }

  flushHeaders() {
    this.implicitHead();
    this.streamIfLong();
  }

  // No byte may leave before the server has answered, not even of a 1xx.
  writeContinue() {}

  writeProcessing() {}

  writeEarlyHints(hints, done) {
    if (done) process.nextTick(done);
  }

  write(data, encoding, done) {
    if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
    const part = typeof data === "string" ? Buffer.from(data, encoding)
      : Buffer.from(data);
    if (this.state === "sending") return this.own.write.call(this.res, part, done);
    if (this.state === "over") return false;
    this.implicitHead();
    this.parts.push(part);
    this.size += part.length;
    this.streamIfLong();
    // Its source waits while the server is asked, or all of it would be here.
    if (this.state === "told") {
      if (done) this.waiting.push(done);
      return false;
    }
    if (done) process.nextTick(done);
    return true;
  }

  end(data, encoding, done) {
    if (typeof data === "function") [data, done] = [undefined, data];
    if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
    if (data !== undefined && data !== null) this.write(data, encoding);
    if (this.state === "held") this.implicitHead();
    if (done) this.res.once("finish", done);
    if (this.state === "sending") {
      this.state = "over";
      this.own.end.call(this.res);
    } else if (this.state === "held") {
      this.ended = true;
      const body = Buffer.concat(this.parts);
      this.tell(this.x.end(this.res.statusCode, this.headers(), body));
    } else if (this.state === "told") {
      this.ended = true; // of a stream, before its head was recorded
    }
    return this.res;
  }

  /** The handler cuts its client off. */
  destroy(error) {
    if (this.state === "over") this.own.destroy.call(this.res, error);
    else this.fail(error);
    return this.res;
  }

  /** The handler has thrown. What it has answered before that stands. */
  fail(error) {
    if (this.state === "held") {
      this.tell(this.x.broken(isTimeout(error) ? 504 : 502));
    } else if (this.state === "sending") {
      this.state = "over";
      this.own.destroy.call(this.res);
    } else if (this.state === "told" && !this.ended) {
      this.cut = true; // of a stream, before its head was recorded
    }
  }

  streamIfLong() {
    if (this.state !== "held" || !this.x.isLong(this.size, this.headers())) return;
    this.long = true;
    this.tell(this.x.end(this.res.statusCode, this.headers(), null));
  }

  async tell(telling) {
    this.state = "told";
    try {
      const answer = await telling.catch(error => {
        this.x.guard.log(`once: ${textOf(error)}`);
        return UNKNOWN;
      });
      if (this.long && answer.own) return this.startStream(answer);
      this.state = "over";
      send(this.res, answer, this.own);
      if (this.long) this.res.emit("close"); // its source is not needed any more
    } catch (error) { // it is recorded, but Node does not send such a line
      this.state = "over";
      this.x.guard.log(`once: ${textOf(error)}`);
      this.own.destroy.call(this.res);
    }
    return undefined;
  }

  startStream(answer) {
    this.state = "sending";
    sendHead(this.res, answer, this.own);
    let room = true;
    for (const part of this.parts) room = this.own.write.call(this.res, part);
    if (this.parts.length === 0) this.own.flushHeaders.call(this.res);
    this.parts = [];
    if (this.cut) return this.fail();
    if (this.ended) return this.end();
    for (const done of this.waiting) done();
    if (room) this.res.emit("drain"); // else Node says so
    return undefined;
  }
}

/** Set by what stands before once(), for this client: sent, and not recorded. */
function isOuter(res, name) {
  const was = (res[OUTER] || {})[name.toLowerCase()];
  return was !== undefined && String(was) === String(res.getHeader(name));
}

/** By setHeader(): what has wrapped writeHead() often does not take lines. */
function sendHead(res, answer, own, size) {
  for (const name of res.getHeaderNames()) {
    if (!isOuter(res, name)) res.removeHeader(name);
  }
  const lines = new Map();
  for (const [name, value] of answer.headers) {
    const lower = name.toLowerCase();
    if (!lines.has(lower)) lines.set(lower, [name, []]);
    lines.get(lower)[1].push(value);
  }
  lines.delete("content-length");
  for (const [name, values] of lines.values()) {
    res.setHeader(name, values.length > 1 ? values : values[0]);
  }
  if (size !== undefined) res.setHeader("Content-Length", String(size));
  res.statusCode = answer.status;
  own.writeHead.call(res, answer.status);
}

function send(res, answer, own = res) {
  sendHead(res, answer, own,
    [204, 304].includes(answer.status) ? undefined : answer.body.length);
  own.end.call(res, answer.body);
}

// ---- The request ------------------------------------------------------------------

/** Reads it, until there is more than is allowed: that is a 413. */
async function read(req, most) {
  const parts = [];
  let size = 0;
  for await (const part of req.iterator({ destroyOnReturn: false })) {
    parts.push(part);
    size += part.length;
    if (size > most) break;
  }
  return Buffer.concat(parts);
}

/** The same request, with its body still to be read. */
function rewind(req, body) {
  Readable.call(req, {});
  req.push(body);
  req.push(null);
}

/** All of the body is here: a client that leaves takes none of it away. */
function keepBody(req) {
  const destroy = req.destroy;
  req.destroy = error => error && error.code === "ECONNRESET" && !req.readableEnded
    ? req : destroy.call(req, error);
}

/** Without its body a request would be the same as others of its key. */
function isTaken(req) {
  const has = Number(req.headers["content-length"]) > 0 ||
    req.headers["transfer-encoding"] !== undefined;
  return has && Readable.isDisturbed(req);
}

function setHeader(req, name, value) {
  const lower = name.toLowerCase();
  for (let i = req.rawHeaders.length - 2; i >= 0; i -= 2) {
    if (req.rawHeaders[i].toLowerCase() === lower) req.rawHeaders.splice(i, 2);
  }
  delete req.headers[lower];
  if (value === undefined) return;
  req.headers[lower] = value;
  req.rawHeaders.push(name, value);
}

/**
 * Middleware for Express and Connect. `scope`: who has authenticated, of the
 * request; `route`: the options of the directives, or a name that the server
 * knows; `key`, `fingerprint`, `label`: computed of the request; `bypass`: requests
 * pass while the server is away; `serve`, `tokenFile`: where it is; `log`: gets
 * lines.
 */
function once(options) {
  const { route = {}, bypass = false, log = console.error } = options;
  const given = typeof route === "string" ? {} : route;
  if (bypass && (given.lost !== "takeover" || given.store_failure !== "bypass")) {
    throw new Error("bypass needs lost=takeover and store_failure=bypass");
  }
  if (!options.scope && typeof route !== "string" && given.scope !== "off") {
    throw new Error("scope: who is the caller? Or route: { scope: \"off\" }");
  }
  const guard = { route, bypass, log,
    server: new Server(options.serve, options.tokenFile) };
  let known = 0;
  const computed = ["scope", "key", "fingerprint", "label"].filter(
    name => options[name]);

  /** Bytes of a body that are read: the server knows its routes. */
  async function limit() {
    if (known) return known;
    const { code, head } = await guard.server.call("route", { route }, NONE)
      .catch(() => ({ code: 0 }));
    if (code === 200) known = head.max_request;
    return known || BODY_MAX;
  }

  async function guarded(req, res, next) {
    res[OUTER] = { ...res.getHeaders() };
    if (isTaken(req) && !options.fingerprint) {
      throw new Error("the body was read before: once() stands before body parsers");
    }
    const most = await limit();
    const whole = await read(req, most);
    const over = whole.length > most;
    const body = over ? whole.subarray(0, most + 1) : whole;
    const head = { id: newId(), method: req.method,
      target: req.originalUrl || req.url, headers: [], route };
    for (let i = 0; i < req.rawHeaders.length; i += 2) {
      head.headers.push([req.rawHeaders[i], req.rawHeaders[i + 1]]);
    }
    for (const name of computed) {
      const value = await options[name](req);
      if (value !== undefined && value !== null) head[name] = String(value);
    }
    const x = new Exchange(guard, head, body);
    const told = await x.begin();
    for (const name of INTERNAL) setHeader(req, name);
    if (told.run && over) { // its route takes more since a restart
      log("once: the body is longer than max_request of this middleware");
      await abandon(guard, { token: told.run.token, route });
      told.answer = WRONG;
    }
    if (told.answer) {
      send(res, told.answer);
      req.resume(); // what is left of a body that is too long
      return;
    }
    if (over) req.unshift(whole); // what is not guarded gets all of it
    else rewind(req, body);
    if (told.pass) {
      for (const [name, value] of told.pass) res.setHeader(name, value);
    } else {
      setHeader(req, "Idempotency-Attempt", String(told.run.attempt));
      setHeader(req, "Idempotency-Record", told.run.record);
      if (told.run.key) setHeader(req, "Idempotency-Key", told.run.key);
      keepBody(req);
      req[HELD] = new Held(x, res);
    }
    next();
  }

  return (req, res, next) => {
    guarded(req, res, next).catch(error => {
      log(`once: ${textOf(error)}`);
      if (req[HELD]) req[HELD].fail(error);
      else if (res.headersSent || req.destroyed && !req.complete) res.destroy();
      else {
        send(res, WRONG);
        req.resume();
      }
    });
  };
}

/** For http.createServer(): a handler that throws, or whose promise is rejected,
 * is an unknown outcome; an error that is a time-out is a 504. */
once.handler = (options, handler) => {
  const middleware = once(options);
  return (req, res) => middleware(req, res, async () => {
    try {
      await handler(req, res);
    } catch (error) {
      (options.log || console.error)(`once: the handler broke: ${textOf(error)}`);
      if (req[HELD]) req[HELD].fail(error);
      else res.destroy();
    }
  });
};

/** For Express, after all routes: what a handler throws is an unknown outcome. */
once.failed = (error, req, res, next) => {
  if (req[HELD]) req[HELD].fail(error);
  else next(error);
};

// ---- Calls ------------------------------------------------------------------------

// What a function throws is not what its caller gets: passed on by a function that
// has called another one, it would say that *that* one has done nothing.

/** A function throws it: it has done nothing, and will not. */
once.NotApplied = class NotApplied extends Error {};

/** A function throws it: it has failed, and each repeat is told so. */
once.Failure = class Failure extends Error {
  constructor(result = null, code = 1) {
    super("a failure");
    Object.assign(this, { result, code });
  }
};

/** A call has no result. */
class CallError extends Error {
  constructor(text, more) {
    super(text);
    Object.assign(this, { name: new.target.name }, more);
  }
}
once.CallError = CallError;

for (const [name, text] of Object.entries({
  Failed: "The function has failed: that is recorded, with result and code.",
  Free: "The function has done nothing. The key is free.",
  InFlight: "Another call with this key runs. See retryAfterMs.",
  Mismatch: "The key is that of a call with another fingerprint. Nothing was run.",
  Refused: "The server refuses the call. Nothing was run.",
  Unavailable: "The server is away. Nothing was done now.",
  Unknown: "It was begun, and its outcome is not known: find out first.",
  Unstored: "An operator has resolved it without a result." })) {
  Object.assign(once, { [name]: class extends CallError {
    constructor(more) { super(text, more); }
  } });
}

const JSON_TYPE = "application/json";
const STATES = { mismatch: "Mismatch", indeterminate: "Unknown", unstored: "Unstored" };

/** A Buffer or Uint8Array is the result as it is, and all else is JSON. */
function encode(kind, code, value = null) {
  if (value instanceof Uint8Array) {
    return { head: { kind, code, type: "application/octet-stream" },
      body: Buffer.from(value) };
  }
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError("once: the result is no JSON");
  return { head: { kind, code, type: JSON_TYPE }, body: Buffer.from(text) };
}

/** The first caller gets it from its bytes, too, as each repeat does. */
function resultOf({ head, body }) {
  if (head.do === "in-flight") {
    throw new once.InFlight({ retryAfterMs: head.retry_after_ms || 1000 });
  }
  if (STATES[head.do]) throw new once[STATES[head.do]]();
  if (head.do !== "replay") {
    throw new once.Refused({ message: "The server says what is not known here." });
  }
  const value = head.type === JSON_TYPE ? JSON.parse(body.toString()) : body;
  if (head.kind === "failure") throw new once.Failed({ result: value, code: head.code });
  return value;
}

/** What the function did, as an answer to record; or throws. */
async function outcomeOf(work) {
  try {
    return encode("success", 0, await work());
  } catch (error) {
    if (!(error instanceof once.Failure)) throw error;
    return { ...encode("failure", Math.max(error.code | 0, 1), error.result),
      cause: error };
  }
}

/**
 * A function that runs at most once for group and key; each other call gets its
 * first result, or a CallError. `key`, `fingerprint` and `label` compute texts of the
 * arguments. The result is a Buffer, or what JSON has.
 */
once.call = (options, work) => {
  const { leaseMs = 30000, runMs = 60000, keepMs = 86400000, log = console.error } = options;
  const guard = { log, server: new Server(options.serve, options.tokenFile) };
  const times = { lease_ms: leaseMs, run_ms: runMs, keep_ms: keepMs };
  const waits = options.waitMs ? { wait_ms: options.waitMs } : {};
  const computed = ["key", "fingerprint", "label"].filter(name => options[name]);

  async function end(path, token, { head, body = NONE } = {}) {
    const told = await tell(guard, path, { ...times, ...head, token }, body, leaseMs);
    // It cannot be carried.
    return told && told.code !== 200 && path === "call/end" ? end("broken", token) : told;
  }

  async function run(token, f) {
    const outcome = await outcomeOf(f).catch(cause => ({ cause }));
    const { head, body, cause } = outcome;
    if (cause instanceof once.NotApplied) {
      const told = await end("abandon", token);
      throw new once[told && told.code === 200 ? "Free" : "Unavailable"]({ cause });
    }
    const told = await (head ? end("call/end", token, outcome) : end("broken", token));
    if (told && told.head.do === "none") {
      return resultOf({ head: { ...head, do: "replay" }, body });
    }
    if (told && told.head.do === "replay") return resultOf(told);
    throw new once.Unknown({ cause });
  }

  return async function guarded(...args) {
    const head = { ...times, ...waits, group: options.group, id: newId() };
    for (const name of computed) {
      head[name] = await options[name].apply(this, args);
      if (typeof head[name] !== "string") throw new TypeError(`once: ${name} is no text`);
    }
    const told = await begin(guard, "call/begin", head, NONE);
    if (!told) throw new once.Unavailable();
    if (told.code !== 200) throw new once.Refused({ message: told.head.text });
    return told.head.do === "run" ? run(told.head.token, () => work.apply(this, args))
      : resultOf(told);
  };
};

once.HELD = HELD;
module.exports = once;
