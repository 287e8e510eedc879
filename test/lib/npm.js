// SPDX-License-Identifier: Apache-2.0
/**
 * npm.js - a package that Debian does not have, by npm, into the build's folder.
 *
 *     const { module, reason } = npm("fastify", "5.12.8");
 *     npm.js NAME VERSION      prints the folder, or why there is none (status 77)
 */
"use strict";

const fs = require("fs");
const path = require("path");
const { spawnSync } = require("child_process");

const LIMIT_MS = 240000;
const BUILD = path.resolve(process.env.ONCE_BUILD || path.join(__dirname, "../../build"));

/** Throws with npm's own words. One registry that is away is asked once. */
function folderOf(name, version) {
  const folder = path.join(BUILD, "npm", `${name}@${version}`);
  if (fs.existsSync(folder)) return folder;
  fs.mkdirSync(path.dirname(folder), { recursive: true });
  const made = fs.mkdtempSync(folder + ".");
  const done = spawnSync("npm", ["install", "--prefix", made, "--no-audit", "--no-fund",
    "--ignore-scripts", "--fetch-retries=0", `${name}@${version}`],
  { encoding: "utf8", timeout: LIMIT_MS });
  try {
    if (done.error) throw done.error;
    if (done.status !== 0) throw new Error(done.stderr.slice(-500));
    fs.renameSync(made, folder); // whole, or not there
  } catch (error) {
    fs.rmSync(made, { recursive: true });
    if (!fs.existsSync(folder)) throw error; // another test was first
  }
  return folder;
}

/** { module }, or { reason } for a test to skip with. */
function npm(name, version) {
  try {
    return { module: require(path.join(folderOf(name, version), "node_modules", name)) };
  } catch (error) {
    return { reason: `npm has no ${name}@${version}: ${error.message}` };
  }
}

module.exports = npm;
if (require.main === module) {
  try {
    console.log(folderOf(...process.argv.slice(2)));
  } catch (error) {
    console.error(error.message);
    process.exit(77);
  }
}
