-- SPDX-License-Identifier: Apache-2.0
--
-- caller.lua - calls functions by the middleware for Lua, as test_calls.py tells it: see
-- caller.py. A command is the body of a request.

local json = require("cjson").new()
local once = require "once"

local M = {}
local pay
local NAMES = {failed = "Failed", free = "Free", ["in-flight"] = "InFlight",
               mismatch = "Mismatch", refused = "Refused", unavailable = "Unavailable",
               unknown = "Unknown", unstored = "Unstored"}

function M.start(socket)
    pay = once.new{route = {scope = "off"}, serve = "unix:" .. socket}
end

local function exists(name)
    local file = io.open(name)
    return file and file:close()
end

local acts = {
    throw = function() error("the network") end,
    ["end"] = function() return nil, "closed" end,
    not_applied = function() return nil, once.NOT_APPLIED end,
    failure = function(c) error(once.failure(c.value, c.code)) end,
    unencodable = function() return function() end end,
    shape = function() return 1 / 3 end,
}

local work

local function call(c)
    return pay:call(c, function() return work(c) end)
end

function work(c)
    local file = assert(io.open(c.ledger, "a"))
    file:write(c.key, "\n")
    file:close()
    ngx.sleep((c.takes_ms or 0) / 1000)
    while c.gate and not exists(c.gate) do
        ngx.sleep(0.01)
    end
    if c.inner then
        return call(c.inner)
    end
    return (acts[c.act] or function() return c.value end)(c)
end

local function told(out, value)
    if type(value) == "string" then
        out.bytes = value
    else
        out.json = value
    end
    return out
end

function M.serve()
    ngx.req.read_body()
    local c = json.decode(ngx.req.get_body_data())
    local value, err = call(c)
    if c.act == "shape" then
        value = string.format("%.17g", value)
    end
    local out = {n = c.n}
    if err then
        out.error, out.text = NAMES[err.state], tostring(err)
        out.retry_after_ms, out.code = err.retry_after_ms, err.code
        value = err.result
    end
    ngx.print(json.encode(told(out, value)))
end

return M
