-- SPDX-License-Identifier: Apache-2.0
--
-- app.lua - the application of test/frameworks: what is around the guard, and the
-- handler. See `start`.

local ffi = require "ffi"
local json = require "cjson.safe"
local once = require "once"

ffi.cdef [[
    unsigned char *SHA256(const unsigned char *data, size_t n, unsigned char *sum);
]]
local crypto = ffi.load("libcrypto.so.3")

local LARGE = 307200
local M = {}

local log_path = assert(os.getenv("APP_LOG"))

local function request_do()
    return json.decode(ngx.var.http_do or "{}") or {}
end

local guard = once.new{
    scope = function() return ngx.var.http_x_user end,
    fingerprint = function()
        return request_do().fingerprint and ngx.var.http_x_print or nil
    end,
    route = {in_flight = "wait=2s", run = "10s", max_request = "256k", max_response = "256k"}}

local random = assert(io.open("/dev/urandom", "rb"))
random:setvbuf("no")

local function hex_of(bytes)
    return (bytes:gsub(".", function(c) return string.format("%02x", c:byte()) end))
end

local function sum_of(text)
    local sum = ffi.new("unsigned char[32]")
    crypto.SHA256(text, #text, sum)
    return hex_of(ffi.string(sum, 32))
end

-- ---- One run ------------------------------------------------------------------

local Run = {}
Run.__index = Run

local function new_run()
    return setmetatable({what = request_do(), key = ngx.var.http_idempotency_key,
                         id = hex_of(random:read(16))}, Run)
end

function Run:says(event, more)
    more = more or {}
    more.event, more.key, more.run = event, self.key, self.id
    local file = assert(io.open(log_path, "a"))
    file:write(json.encode(more), "\n")
    file:close()
end

function Run:finished(status, body)
    self:says("finished", {status = status, body = sum_of(body)})
end

function Run:raises(why)
    self:says("raised")
    error(why, 0)
end

-- A file's parts, as the next part each time.
function Run:file(body)
    local name = os.tmpname()
    local file = assert(io.open(name, "w+b"))
    file:write(body)
    file:seek("set")
    os.remove(name)
    return function()
        local part = file:read(16)
        if not part then
            file:close()
        end
        return part
    end
end

function Run:stream(body)
    local third, at = math.floor(#body / 3), 0
    return function()
        at = at + 1
        if at > 3 then
            return nil
        elseif at == 3 then
            self:finished(201, body)
        else
            ngx.sleep(0.02)
        end
        return body:sub((at - 1) * third + 1, at < 3 and at * third or #body)
    end
end

function Run:answer()
    local body = json.encode{key = self.key, n = hex_of(random:read(16))}
    local headers, answer = {["Content-Type"] = "application/json"}, self.what.answer
    if answer == "stream" then
        headers["X-Accel-Buffering"] = "no"
        return 201, headers, self:stream(body)
    elseif answer == "short" then
        headers["Content-Length"] = #body + 10
        return 201, headers, body
    end
    local status = answer == "empty" and 204 or answer == "error" and 422 or 201
    body = answer == "empty" and "" or body
    if answer == "large" then
        body = body .. (" "):rep(LARGE - #body)
    end
    self:finished(status, body)
    return status, headers, answer == "file" and self:file(body) or body
end

local function handle()
    local run = new_run()
    local what = run.what
    ngx.on_abort(function() run:says("disconnect") end)
    if what.before == "raise" then
        run:raises("before")
    end
    if what.effect ~= false then
        run:says("effect", {n = hex_of(random:read(16))})
    end
    if what.sleep_ms then
        ngx.sleep(what.sleep_ms / 1000)
    end
    if what.after == "raise" or what.after == "timeout" then
        run:raises(what.after == "raise" and "after" or "timeout")
    end
    return run:answer()
end

-- ---- What is around it ------------------------------------------------------------

-- Reads as lua-resty-upload does, by the request's socket. A chunked body has none.
local function read_by_socket(size)
    local sock = size and ngx.req.socket()
    if sock then
        sock:receive(size)
    else
        ngx.req.discard_body()
    end
end

function M.outer()
    local how, size = request_do().outer, tonumber(ngx.var.http_content_length)
    if how == "read" then
        read_by_socket(size)
    elseif how == "peek" then
        read_by_socket(size and math.min(size, 3))
    elseif how == "restore" then
        ngx.req.read_body()
        local body = ngx.req.get_body_data()
        if body then
            ngx.req.set_body_data(body)
        end
    end
end

function M.pay()
    if request_do().inner_catch then
        guard:capture("/inner")
    else
        guard:run(handle)
    end
end

-- A location that writes itself. Its errors become nginx's own 500.
function M.inner()
    local status, headers, body = handle()
    ngx.status = status
    for name, value in pairs(headers) do
        ngx.header[name] = value
    end
    for part in type(body) == "function" and body or function() end do
        ngx.print(part)
        ngx.flush()
    end
    if type(body) == "string" then
        ngx.print(body)
    end
end

function M.ready()
    io.stdout:write("ready\n")
    io.stdout:flush()
end

return M
