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

// Before what reads bodies. Who calls? Here this header says so: take yours from
// the session.
app.use(once({ scope: req => req.get("X-Customer") }));
app.use(express.json());

app.post("/charge", (req, res) => {
  const { order, amount } = req.body;
  fs.appendFileSync(ledger, `${order} ${amount}\n`);
  res.status(201).json({ order, charged: amount });
});

app.use(once.failed);

app.listen(Number(port), "127.0.0.1");
