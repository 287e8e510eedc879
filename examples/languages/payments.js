// SPDX-License-Identifier: Apache-2.0
/**
 * payments.js - charges cards, with Express. Each charge is a line of a ledger.
 *
 *     node payments.js LEDGER PORT
 */
"use strict";

const fs = require("fs");
const express = require("express");
const once = require("../../middleware/node/once.js");

const [, , ledger, port] = process.argv;
const app = express();

// Mount it before body parsers. In this example a header names the caller, which
// anybody can send. Take yours from what has authenticated, as the session.
app.use(once({ scope: req => req.get("X-Customer") }));
app.use(express.json());

app.post("/charge", (req, res) => {
  const { order, amount } = req.body;
  fs.appendFileSync(ledger, `${order} ${amount}\n`);
  res.status(201).json({ order, charged: amount });
});

app.listen(Number(port), "127.0.0.1");
