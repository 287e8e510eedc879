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
const { EventEmitter } = require("events");
const fs = require("fs");
const http = require("http");
const net = require("net");
const { performance } = require("perf_hooks");
const { Readable } = require("stream");

const BEGIN_MS = 1000; // how long a begin is repeated after its first failure
const ANSWER_MS = 5000; // how long an answer may take, beside what in_flight waits
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
/** Deadlines are of this clock: nobody sets it. */
const now = () => performance.now();

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
    this.name = where;
    this.where = addressOf(where);
    this.tokenFile = tokenFile;
    this.line = tokenFile ? `Authorization: Bearer ${tokenOf(tokenFile)}\r\n` : "";
    this.idle = [];
  }

  /** It is rejected after `ms`, however far it has come. */
  call(path, head, body, ms) {
    const line = Buffer.from(JSON.stringify(head) + "\n");
    const start = `POST /v1/${path} HTTP/1.1\r\nHost: once\r\n${this.line}` +
      "Content-Type: application/vnd.once\r\n" +
      `Content-Length: ${line.length + body.length}\r\n\r\n`;
    return this.exchange(Buffer.concat([Buffer.from(start), line, body]), ms);
  }

  exchange(data, ms) {
    return new Promise((resolve, reject) => {
      const socket = this.idle.pop() || net.connect(this.where);
      const parts = [];
      let size = 0, from = -1, all = -1, code = 0;
      const end = error => {
        clearTimeout(timer);
        socket.removeAllListeners();
        socket.on("error", () => {}); // an idle one may end at any time
        if (error || this.idle.length >= IDLE_MAX) {
          socket.destroy();
        } else {
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
      const timer = setTimeout(() => end(new Error(
        `it has not answered for ${Math.round(ms)} ms`)), ms);
      socket.ref();
      socket.on("error", end);
      socket.on("close", () => end(new Error("it has closed the connection")));
      socket.on("data", part => {
        parts.push(part);
        size += part.length;
        if (from < 0) {
          const text = Buffer.concat(parts).toString("latin1");
          from = text.indexOf("\r\n\r\n");
          const length = /\r\ncontent-length: *(\d+)/i.exec(text);
          if (from < 0 && size > HEADER_MAX) return end(new Error(NO_HTTP));
          if (from < 0) return undefined;
          if (length === null) return end(new Error(NO_HTTP));
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
          return end(new Error(NO_HTTP));
        }
      });
      socket.write(data);
    });
  }

  silence(path, why) {
    return `once: ${path}: no answer from once serve at ${this.name}: ${why}. ` +
      "See that it runs, and that this process may open its socket.";
  }

  /** An error text: what was tried, what the other side said, what to do. */
  refusal(path, { code, head }) {
    const what = code === 401 ? ` The token was ${this.tokenFile
      ? `the first line of ${this.tokenFile}` : "none: set tokenFile"}.` : "";
    return `once: ${path}: once serve at ${this.name} refuses this with ${code}` +
      ` ${head.error}: ${head.text}${what}`;
  }
}

const NO_HTTP = "its answer is not that of once serve";

function addressOf(where) {
  if (where.startsWith("unix:/")) return { path: where.slice(5) };
  let url = null;
  try {
    url = new URL(where);
  } catch (error) {
    // said below
  }
  if (!url || url.protocol !== "http:") {
    throw new Error(`once: serve is "${where}". It has to be unix:/PATH or ` +
      "http://ADDRESS:PORT: where once serve listens.");
  }
  return { host: url.hostname.replace(/[[\]]/g, ""), port: Number(url.port || 80) };
}

function tokenOf(file) {
  let token;
  try {
    token = fs.readFileSync(file, "ascii").split("\n")[0].trim();
  } catch (error) {
    throw new Error(`once: tokenFile cannot be read: ${error.message}`);
  }
  if (!token) throw new Error(`once: tokenFile: the first line of ${file} is empty.`);
  return token;
}

/** Every call may be repeated, until `until`. Null: the server is away. */
async function repeat({ server, log }, path, head, body, until) {
  let stop = until;
  for (let pause = 50, first = true; now() < stop; pause = Math.min(2 * pause, 1000)) {
    let why;
    try {
      const told = await server.call(path, head, body, until - now());
      if (told.code !== 503) return told;
      why = `it says ${told.head.error}: ${told.head.text}`;
    } catch (error) {
      why = error.message;
    }
    if (first) {
      log(server.silence(path, why));
      if (path.endsWith("begin")) stop = Math.min(until, now() + BEGIN_MS);
      first = false;
    }
    if (now() + pause > stop) return null;
    await sleep(pause);
    if (path.endsWith("begin")) head = { ...head, again: true };
  }
  return null;
}

/** It was not run, and will not be. Who is away finds that out himself. */
const abandon = (guard, head) =>
  guard.server.call("abandon", head, NONE, ANSWER_MS).catch(() => {});

/** Null: the server is away, and what it might have begun is abandoned. */
async function begin(guard, path, head, body, ms) {
  const told = await repeat(guard, path, head, body, now() + ms);
  if (told === null) abandon(guard, { id: head.id }); // nobody waits for that
  return told;
}

/** What became of what was begun. Null: the server is away. */
async function tell(guard, path, head, body, until) {
  const told = await repeat(guard, path, head, body, until);
  if (told && told.code !== 200) guard.log(guard.server.refusal(path, told));
  return told;
}

// ---- One request ----------------------------------------------------------------

const isStream = (name, value) => name === "x-accel-buffering" ? value === "no"
  : name === "content-type" && STREAMS.includes(value.split(";")[0].trim());

class Exchange {
  constructor(guard, head, body) {
    Object.assign(this, { guard, head, body });
  }

  /** { run }, { pass: lines to add }, or { answer }. */
  async begin(ms) {
    const told = await begin(this.guard, "begin", this.head, this.body, ms);
    if (!told) return this.guard.bypass ? { pass: [] } : { answer: UNAVAILABLE };
    const { code, head, body } = told;
    if (code !== 200) {
      this.guard.log(this.guard.server.refusal("begin", told));
      return { answer: code === 401 ? UNAVAILABLE : WRONG };
    }
    if (head.do === "send") return { answer: { ...head, body } };
    if (head.do === "pass") return { pass: head.headers || [] };
    this.run = head;
    return { run: head };
  }

  /** All that is told of one handler has the lease's time. */
  tell(path, more, body) {
    this.until = this.until || now() + this.run.lease_ms;
    return tell(this.guard, path, { ...more, token: this.run.token,
      route: this.guard.route }, body, this.until);
  }

  /** It is sent as it comes, and recorded as not kept. */
  isLong(size, headers) {
    return size > this.run.max_response || headers.some(([name, value]) =>
      isStream(name.toLowerCase(), value.trim().toLowerCase()));
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

const METHODS = ["writeHead", "flushHeaders", "write", "end", "destroy", "emit",
  "assignSocket", "setHeader", "setHeaders", "appendHeader", "removeHeader", "cork",
  "uncork", "addTrailers", "writeContinue", "writeEarlyHints", "writeProcessing",
  "writeInformation"];

const isTimeout = error => Boolean(error) &&
  (error.code === "ETIMEDOUT" || error.name === "TimeoutError");
const textOf = error => String((error && error.message) || error);

/** Raised by a parser of Fastify, whose errors of its version 4 have no code. */
const isOfFastify = error => String(error.code).startsWith("FST_ERR_") ||
  error instanceof SyntaxError;

/** A 4xx that a framework raises in place of answering: http-errors, body parsers. */
function isAnswer(error) {
  const status = error ? error.statusCode || error.status : 0;
  return status >= 400 && status < 500 && (error.expose === true || isOfFastify(error));
}

const misuse = (code, text) => Object.assign(new Error(text), { code });

/** A property that is seen otherwise, while `see` says so. */
function shadow(object, name, see) {
  const own = Object.getOwnPropertyDescriptor(object, name);
  let value = object[name];
  const proto = Object.getPrototypeOf(object);
  const read = () => own && "value" in own ? value : Reflect.get(proto, name, object);
  Object.defineProperty(object, name, {
    configurable: true, enumerable: true,
    get: () => see(read),
    set: to => {
      if (own && "value" in own) value = to;
      else Reflect.set(proto, name, to, object);
    }
  });
}

const LEAVING = new Set(["close", "end", "error", "finish"]);
const LISTENING = new Set(["on", "once", "addListener", "prependListener",
  "prependOnceListener", "off", "removeListener"]);
const CUTTING = new Set(["destroy", "destroySoon", "end", "resetAndDestroy"]);
const OPEN = { destroyed: false, closed: false, errored: null, readable: true,
  writable: true, readableEnded: false, writableEnded: false, writableFinished: false,
  readableAborted: false, writableAborted: false, readyState: "open" };
const ADDRESSES = ["remoteAddress", "remotePort", "remoteFamily", "localAddress",
  "localPort", "localFamily"];

/** The client's socket as a handler sees it: it stays open while `held` is hidden. */
function standIn(socket, held) {
  const leaving = new EventEmitter();
  const addresses = Object.fromEntries(ADDRESSES.map(name => [name, socket[name]]));
  const bound = new Map();
  const listen = name => (event, ...more) => {
    const isOff = name === "off" || name === "removeListener";
    const waits = LEAVING.has(event) && held.isHidden();
    if (waits || isOff) leaving[name](event, ...more);
    if (!waits || isOff) socket[name](event, ...more);
    return stand;
  };
  const bind = (name, f) => {
    if (LISTENING.has(name)) return listen(name);
    return (...args) => {
      if (held.isHidden() && CUTTING.has(name)) {
        held.destroy(args[0]);
        return stand;
      }
      if (held.isHidden() && name === "write") {
        throw misuse("ERR_ONCE_HELD",
          "once: no byte goes to the socket while the answer is held");
      }
      const out = f.apply(socket, args);
      return out === socket ? stand : out;
    };
  };
  const stand = new Proxy(socket, {
    get(_, name) {
      if (held.isHidden() && Object.hasOwn(OPEN, name)) return OPEN[name];
      if (Object.hasOwn(addresses, name)) return addresses[name];
      const value = Reflect.get(socket, name, socket);
      if (typeof value !== "function" || name === "constructor") return value;
      if (!bound.has(name)) bound.set(name, bind(name, value));
      return bound.get(name);
    },
    set: (_, name, value) => Reflect.set(socket, name, value, socket)
  });
  const reveal = () => {
    if (socket.destroyed) {
      process.nextTick(() => leaving.emit("close", Boolean(socket.errored)));
      return;
    }
    for (const event of leaving.eventNames()) {
      for (const f of leaving.rawListeners(event)) {
        socket[f.listener ? "once" : "on"](event, f.listener || f);
      }
    }
  };
  return { socket, stand, reveal };
}

/**
 * Keeps what the handler answers until the server has recorded it. It is "held";
 * "told" while the server is asked; "sending" if it is a stream; "over" when the
 * client has its end. In the first two it is hidden from the handler whether the
 * client is still there.
 */
class Held {
  constructor(x, req, res) {
    Object.assign(this, { x, req, res, parts: [], size: 0, state: "held", raw: null,
      headed: false, long: false, ended: false, cut: false, waiting: [], raised: null,
      left: false, isRecorded: false, isInternal: false, sockets: [], declared: null,
      sent: 0, corks: 0 });
    this.own = Object.fromEntries(METHODS.map(m => [m, res[m]]));
    for (const m of METHODS) {
      if (this.own[m]) res[m] = (...args) => this[m](...args);
    }
    const hidden = (object, name, see) => shadow(object, name, read =>
      this.isHidden() && !this.isInternal ? see(read) : read());
    for (const object of [req, res]) {
      hidden(object, "socket", read => this.socketOf(read()));
    }
    hidden(res, "destroyed", () => this.cut);
    hidden(res, "_closed", () => false);
    hidden(res, "closed", () => false);
    hidden(res, "headersSent", () => this.headed);
    hidden(res, "writableEnded", () => this.ended);
    this.keepRequest();
    this.keepSignal();
  }

  isHidden() {
    return this.state === "held" || this.state === "told";
  }

  socketOf(socket) {
    if (!socket) return socket;
    const known = this.sockets.find(s => s.socket === socket || s.stand === socket);
    if (!known) this.sockets.push(standIn(socket, this));
    return (known || this.sockets[this.sockets.length - 1]).stand;
  }

  /** All of the body is here: a client that leaves takes none of it away. */
  keepRequest() {
    const { destroy } = this.req;
    this.req.destroy = error => {
      if (!this.isHidden() || !error || error.code !== "ECONNRESET") {
        return destroy.call(this.req, error);
      }
      this.aborted = () => destroy.call(this.req, error);
      return this.req;
    };
  }

  /** Node 24 and later: what stood before may have asked for it. */
  keepSignal() {
    const { signal } = this.req;
    if (!(signal instanceof AbortSignal)) return;
    const seen = new AbortController();
    const abort = () => seen.abort(signal.reason);
    Object.defineProperty(this.req, "signal", { configurable: true, enumerable: true,
      value: seen.signal });
    this.revealSignal = () => {
      if (signal.aborted) abort();
      else signal.addEventListener("abort", abort);
    };
  }

  emit(event, ...args) {
    if (event === "close" && this.isHidden()) {
      this.left = true;
      return false;
    }
    if (event === "finish") this.isFinished = true;
    if ((event === "socket" || event === "timeout") && this.isHidden()) {
      args[0] = this.socketOf(args[0]);
    }
    return this.own.emit.call(this.res, event, ...args);
  }

  /** What has wrapped the response before may call its other methods. */
  inside(work) {
    this.isInternal = true;
    try {
      work();
    } finally {
      this.isInternal = false;
    }
  }

  /** A pipelined request gets the socket when it is its turn. */
  assignSocket(socket) {
    this.inside(() => this.own.assignSocket.call(this.res, socket));
  }

  /** The answer is told: from now on it is seen what became of the client. */
  reveal() {
    for (const { reveal } of this.sockets) reveal();
    if (this.aborted) this.aborted();
    if (this.revealSignal) this.revealSignal();
    if (!this.left) return;
    process.nextTick(() => {
      // Its answer is recorded, and so has left it.
      if (this.isRecorded && !this.isFinished) this.res.emit("finish");
      this.res.emit("close");
    });
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

  lineOf(name) {
    const line = this.headers().find(([n]) => n.toLowerCase() === name);
    return line && line[1];
  }

  refuseLate() {
    if (this.headed && this.isHidden()) {
      throw misuse("ERR_HTTP_HEADERS_SENT", "The head of the answer was written before");
    }
  }

  setHeader(...args) {
    this.refuseLate();
    return this.own.setHeader.apply(this.res, args);
  }

  setHeaders(...args) {
    this.refuseLate();
    return this.own.setHeaders.apply(this.res, args);
  }

  appendHeader(...args) {
    this.refuseLate();
    return this.own.appendHeader.apply(this.res, args);
  }

  removeHeader(...args) {
    this.refuseLate();
    return this.own.removeHeader.apply(this.res, args);
  }

  writeHead(status, ...more) {
    this.refuseLate();
    const given = more.find(m => typeof m === "object" && m !== null);
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
    this.res.statusCode = status;
    this.status = status;
    this.headed = true;
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

  // No byte may leave before the server has answered, not even of a 1xx. Trailers
  // are not recorded, so they are not sent.
  writeContinue() {}

  writeProcessing() {}

  writeInformation() {}

  writeEarlyHints(hints, done) {
    if (done) process.nextTick(done);
  }

  addTrailers() {}

  // They are of the socket, to which nothing is written yet.
  cork() {
    if (this.isHidden()) this.corks += 1;
    else this.own.cork.call(this.res);
  }

  uncork() {
    if (this.corks > 0 && !this.isInternal) this.corks -= 1;
    else if (!this.isHidden()) this.own.uncork.call(this.res);
  }

  write(data, encoding, done) {
    if (this.isInternal) return this.own.write.call(this.res, data, encoding, done);
    if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
    const part = typeof data === "string" ? Buffer.from(data, encoding)
      : Buffer.from(data);
    if (this.state === "sending") return this.send(part, done);
    if (this.state === "over" || this.ended) {
      if (done) {
        process.nextTick(done, misuse("ERR_STREAM_WRITE_AFTER_END", "write after end"));
      }
      return false;
    }
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

  /** Of a stream. It is as long as it has said, or it is cut off. */
  send(part, done) {
    this.sent += part.length;
    if (this.declared !== null && this.sent > this.declared) {
      this.fail(new Error("the answer is longer than its Content-Length"));
      return false;
    }
    return this.own.write.call(this.res, part, done);
  }

  end(data, encoding, done) {
    if (typeof data === "function") [data, done] = [undefined, data];
    if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
    if (data !== undefined && data !== null) this.write(data, encoding);
    if (this.state === "held") this.implicitHead();
    if (done) this.res.once("finish", done);
    if (this.state === "sending") this.endStream();
    else if (this.state === "held") this.endHeld();
    else if (this.state === "told") this.ended = true; // of a stream, or of none
    return this.res;
  }

  endStream() {
    if (this.declared !== null && this.sent < this.declared) {
      this.fail(new Error("the answer is shorter than its Content-Length"));
      return;
    }
    this.state = "over";
    this.inside(() => this.own.end.call(this.res));
  }

  endHeld() {
    if (this.isErrorPage()) {
      this.fail(this.raised.error);
      return;
    }
    this.ended = true;
    const body = Buffer.concat(this.parts);
    this.tell(this.x.end(this.status, this.headers(), body));
  }

  /** What a framework answers for an exception says nothing of what was done. */
  isErrorPage() {
    return this.raised !== null && !isAnswer(this.raised.error) &&
      this.lineOf("idempotency-outcome") === undefined;
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
      this.x.guard.log(`once: the handler broke: ${textOf(error)}`);
      this.cut = true;
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
    if (this.isErrorPage()) {
      this.fail(this.raised.error);
      return;
    }
    this.long = true;
    const length = this.lineOf("content-length");
    this.declared = length === undefined ? null : Number(length);
    this.tell(this.x.end(this.status, this.headers(), null));
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
      this.isRecorded = Boolean(answer.own);
      this.inside(() => send(this.res, answer, this.own));
      this.reveal();
      // Of a stream its source is not needed any more.
      if (this.long && !this.left) this.res.emit("close");
    } catch (error) { // it is recorded, but Node does not send such a line
      this.state = "over";
      this.x.guard.log(`once: ${textOf(error)}`);
      this.reveal();
      this.own.destroy.call(this.res);
    }
    return undefined;
  }

  startStream(answer) {
    this.state = "sending";
    sendHead(this.res, answer, this.own,
      this.declared === null ? undefined : this.declared);
    this.reveal();
    let room = true;
    for (const part of this.parts) {
      if (this.state === "sending") room = this.send(part);
    }
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

/** Somebody has read of the body, or does so beside: not all of it comes here. */
function isTaken(req) {
  const has = Number(req.headers["content-length"]) > 0 ||
    req.headers["transfer-encoding"] !== undefined;
  return has && (Readable.isDisturbed(req) || req.listenerCount("data") > 0 ||
    req.listenerCount("readable") > 0);
}

const TAKEN = "something before once() reads the request's body. A request without " +
  "its body would be the same as others of its key. Mount once() before body " +
  "parsers, or compute a fingerprint";

/** The whole body, or more than `most` bytes of it. */
async function bodyOf(req, most) {
  if (isTaken(req)) throw new Error(TAKEN);
  const body = await read(req, most);
  const length = req.headers["content-length"];
  if (body.length <= most && length !== undefined && Number(length) !== body.length) {
    throw new Error(TAKEN);
  }
  return body;
}

function setHeader(req, name, value) {
  const lower = name.toLowerCase();
  const distinct = req.headersDistinct; // Node makes it of the raw lines, once
  for (let i = req.rawHeaders.length - 2; i >= 0; i -= 2) {
    if (req.rawHeaders[i].toLowerCase() === lower) req.rawHeaders.splice(i, 2);
  }
  delete req.headers[lower];
  if (distinct) delete distinct[lower];
  if (value === undefined) return;
  req.headers[lower] = value;
  if (distinct) distinct[lower] = [value];
  req.rawHeaders.push(name, value);
}

// ---- Frameworks that answer for an exception ----------------------------------------

/** An error handler answers for it. Its 500 says nothing of what was done. */
function noteRaised(req, error) {
  const held = req[HELD];
  if (held) held.raised = { error };
}

const watched = new WeakSet();

/** Express 4 and 5: error handlers, and of 4 the promises that nobody looks at. */
function watchLayers(layers) {
  if (watched.has(layers)) return;
  watched.add(layers);
  for (const name of ["handle_error", "handleError"]) {
    const own = layers[name];
    if (!own) continue;
    layers[name] = function handleError(error, req, res, next) {
      noteRaised(req, error);
      return own.call(this, error, req, res, next);
    };
  }
  const { handleRequest, handle_request: old } = layers;
  if (handleRequest) {
    layers.handleRequest = function handle(req, res, next) {
      if (req[HELD]) req[HELD].raised = null; // it was dealt with
      return handleRequest.call(this, req, res, next);
    };
  }
  if (old) {
    layers.handle_request = function handle(req, res, next) {
      if (!req[HELD] || this.handle.length > 3) return old.call(this, req, res, next);
      req[HELD].raised = null;
      try {
        const promise = this.handle(req, res, next);
        if (promise && typeof promise.then === "function") {
          promise.then(undefined, error => next(error || new Error("rejected")));
        }
      } catch (error) {
        next(error);
      }
      return undefined;
    };
  }
}

/** Once for each application, and those that it is mounted in. */
function watchExpress(app) {
  if (!app || watched.has(app)) return;
  watched.add(app);
  const router = app._router || app.router; // of Express 4, of Express 5
  const [layer] = (router && router.stack) || [];
  const layers = layer && Object.getPrototypeOf(layer);
  if (!layers || !(layers.handle_error || layers.handleError)) {
    watched.delete(app);
    throw new Error("this is not Express 4 or 5: the middleware cannot see what its " +
      "error handlers answer for. Use once.handler()");
  }
  watchLayers(layers);
  if (app.parent) watchExpress(app.parent);
  else app.use(once.failed); // after all else
}

// ---- The middleware ---------------------------------------------------------------

const COMPUTED = ["scope", "key", "fingerprint", "label"];

/** What a program computes is a text, or there is none. */
function textFrom(name, value) {
  if (value === undefined || value === null) return undefined;
  if (typeof value === "string" && value !== "") return value;
  throw new TypeError(`${name} has returned ${value === "" ? "an empty text"
    : `a value of type ${Array.isArray(value) ? "array" : typeof value}`}. ` +
    "It has to return a text that is not empty, or undefined where there is none");
}

function checkFunctions(options, names) {
  for (const name of names) {
    if (options[name] !== undefined && typeof options[name] !== "function") {
      throw new TypeError(`once: ${name} is a value of type ${typeof options[name]}. ` +
        "It has to be a function that returns a text");
    }
  }
}

function guardOf(options) {
  const { route = {}, bypass = false, log = console.error } = options;
  const given = typeof route === "string" ? {} : route;
  checkFunctions(options, [...COMPUTED, "log"]);
  if (bypass && (given.lost !== "takeover" || given.store_failure !== "bypass")) {
    throw new Error("once: bypass needs a route with lost: \"takeover\" and " +
      "store_failure: \"bypass\"");
  }
  if (!options.scope && typeof route !== "string" && given.scope !== "off") {
    throw new Error("once: there is no scope. Give a function that returns who has " +
      "authenticated, or route: { scope: \"off\" }");
  }
  return { route, bypass, log, known: null, learning: null, isAway: false,
    server: new Server(options.serve, options.tokenFile) };
}

/** What the server says of the route, once it does; it throws where it refuses it. */
async function learn(guard) {
  if (guard.known) return guard.known;
  guard.learning = guard.learning ||
    guard.server.call("route", { route: guard.route }, NONE, ANSWER_MS)
      .catch(error => {
        if (!guard.isAway) guard.log(guard.server.silence("route", error.message));
        guard.isAway = true; // a begin will say it again
        return null;
      });
  const told = await guard.learning;
  guard.learning = null;
  if (told) guard.isAway = false;
  if (told && told.code === 422) throw new Error(guard.server.refusal("route", told));
  if (told && told.code !== 200) guard.log(guard.server.refusal("route", told));
  if (told && told.code === 200) guard.known = told.head;
  return guard.known || { max_request: BODY_MAX, wait_ms: 0 };
}

/** Puts a request before the server; its handler gets `next`. */
class Guard {
  constructor(options) {
    this.options = options;
    this.guard = guardOf(options);
  }

  /** What is computed, of `subject`: the request as its framework has it. */
  async headOf(req, subject, isRead) {
    const head = { id: newId(), method: req.method,
      target: req.originalUrl || req.url, headers: [], route: this.guard.route };
    for (let i = 0; i < req.rawHeaders.length; i += 2) {
      head.headers.push([req.rawHeaders[i], req.rawHeaders[i + 1]]);
    }
    for (const name of COMPUTED) {
      if (!this.options[name]) continue;
      head[name] = textFrom(name, await this.options[name](subject));
    }
    const needs = isRead && (head.fingerprint === undefined ||
      this.guard.route.key_json && head.key === undefined);
    if (needs) throw new Error(TAKEN);
    return head;
  }

  async begin(req, res, subject) {
    const { guard, options } = this;
    if (req.httpVersionMajor > 1) {
      throw new Error("the middleware does not support HTTP/2. Use http or https, and " +
        "HTTP/2 in the proxy before it");
    }
    watchExpress(req.app);
    res[OUTER] = { ...res.getHeaders() };
    const isRead = isTaken(req);
    if (isRead && !options.fingerprint) throw new Error(TAKEN);
    const asked = now();
    const { max_request: most, wait_ms: waits } = await learn(guard);
    const ms = waits + ANSWER_MS - (now() - asked);
    if (!isRead && !res._sent100 && res._expect_continue) res.writeContinue();
    const whole = isRead ? NONE : await bodyOf(req, most);
    const over = whole.length > most;
    const body = over ? whole.subarray(0, most + 1) : whole;
    const x = new Exchange(guard, await this.headOf(req, subject, isRead), body);
    const told = await x.begin(ms);
    if (told.run && over) { // its route takes more since a restart
      guard.log("once: the body is longer than max_request of this middleware");
      await abandon(guard, { token: told.run.token, route: guard.route });
      told.answer = WRONG;
    }
    return { x, told, isRead, over, whole };
  }

  async guarded(req, res, next, subject) {
    const { x, told, isRead, over, whole } = await this.begin(req, res, subject);
    for (const name of INTERNAL) setHeader(req, name);
    if (told.answer) {
      send(res, told.answer);
      req.resume(); // what is left of a body that is too long
      return;
    }
    if (over) req.unshift(whole); // what is not guarded gets all of it
    else if (!isRead) rewind(req, whole);
    if (told.pass) {
      for (const [name, value] of told.pass) res.setHeader(name, value);
    } else {
      setHeader(req, "Idempotency-Attempt", String(told.run.attempt));
      setHeader(req, "Idempotency-Record", told.run.record);
      if (told.run.key) setHeader(req, "Idempotency-Key", told.run.key);
      req[HELD] = new Held(x, req, res);
    }
    next();
  }

  run(req, res, next, subject = req) {
    this.guarded(req, res, next, subject).catch(error => {
      this.guard.log(`once: ${textOf(error)}`);
      if (req[HELD]) req[HELD].fail(error);
      else if (res.headersSent || req.destroyed && !req.complete) res.destroy();
      else {
        send(res, WRONG);
        req.resume();
      }
    });
  }
}

/**
 * Middleware for Express and Connect. `scope`: who has authenticated, of the
 * request; `route`: the options of the directives, or a name that the server
 * knows; `key`, `fingerprint`, `label`: computed of the request; `bypass`: requests
 * pass while the server is away; `serve`, `tokenFile`: where it is; `log`: gets
 * lines. A route that the server refuses ends the process when it starts.
 */
function once(options) {
  const guard = new Guard(options);
  learn(guard.guard).catch(error => setImmediate(() => { throw error; }));
  return (req, res, next) => guard.run(req, res, next);
}

/** For http.createServer(): a handler that throws, or whose promise is rejected,
 * is an unknown outcome; an error that is a time-out is a 504. */
once.handler = (options, handler) => {
  const middleware = once(options);
  return (req, res) => middleware(req, res, async () => {
    try {
      await handler(req, res);
    } catch (error) {
      if (req[HELD]) {
        req[HELD].fail(error);
        return;
      }
      (options.log || console.error)(`once: the handler broke: ${textOf(error)}`);
      res.destroy();
    }
  });
};

/** An error handler: what a handler throws is an unknown outcome. Express needs it
 * not; others have it before each error handler of their own. */
once.failed = (error, req, res, next) => {
  if (req[HELD] && !isAnswer(error)) req[HELD].fail(error);
  else next(error);
};

/** A plugin of Fastify, for what is registered after it. `scope` and the others are
 * functions of Fastify's request. */
once.fastify = async (app, options) => {
  const guard = new Guard(options);
  await learn(guard.guard);
  app.addHook("onRequest", (request, reply, done) => {
    // They are this client's, as CORS is, and not of what is recorded.
    for (const [name, value] of Object.entries(reply.getHeaders())) {
      reply.raw.setHeader(name, value);
    }
    guard.run(request.raw, reply.raw, done, request);
  });
  app.addHook("onError", (request, reply, error, done) => {
    noteRaised(request.raw, error);
    done();
  });
};
once.fastify[Symbol.for("skip-override")] = true;
once.fastify[Symbol.for("fastify.display-name")] = "once";

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
  const computed = ["key", "fingerprint", "label"].filter(name => options[name]);
  checkFunctions(options, ["key", "fingerprint", "label", "log"]);
  if (!options.key) throw new TypeError("once: call: there is no key function");
  if (typeof options.group !== "string" || options.group === "") {
    throw new TypeError("once: call: group has to be a text that is not empty");
  }
  const guard = { log, server: new Server(options.serve, options.tokenFile) };
  const times = { lease_ms: leaseMs, run_ms: runMs, keep_ms: keepMs };
  const waits = options.waitMs ? { wait_ms: options.waitMs } : {};

  async function end(path, token, { head, body = NONE } = {}, until = now() + leaseMs) {
    const told = await tell(guard, path, { ...times, ...head, token }, body, until);
    return told && told.code !== 200 && path === "call/end"
      ? end("broken", token, {}, until) : told; // it cannot be carried
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
      head[name] = textFrom(name, await options[name].apply(this, args));
      // None in place of a fingerprint would be any.
      if (head[name] === undefined) {
        throw new TypeError(`${name} has returned none. It has to return a text`);
      }
    }
    const told = await begin(guard, "call/begin", head, NONE,
      (options.waitMs || 0) + ANSWER_MS);
    if (!told) throw new once.Unavailable();
    if (told.code !== 200) throw new once.Refused({ message: told.head.text });
    return told.head.do === "run" ? run(told.head.token, () => work.apply(this, args))
      : resultOf(told);
  };
};

once.HELD = HELD;
module.exports = once;
