// SPDX-License-Identifier: Apache-2.0
/**
 * service.js - POST, 201 and 300 bytes; for test/bench/serve.py.
 *
 *     node service.js plain|guarded PORT
 */
"use strict";

const http = require("http");
const once = require("../../../middleware/node/once.js");

const [, , kind, port] = process.argv;

function handler(req, res) {
  req.resume();
  req.on("end", () => {
    res.writeHead(201, { "Content-Type": "application/json" });
    res.end("a".repeat(300));
  });
}

http.createServer(kind === "plain" ? handler :
  once.handler({ scope: () => "u1" }, handler)).listen(Number(port), "127.0.0.1");
