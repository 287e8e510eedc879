-- SPDX-License-Identifier: Apache-2.0
--
-- service.lua - content handlers that are guarded by the middleware. Each sends the
-- request on to the scenario's upstream and answers with what comes back, byte for
-- byte. An answer that is cut off or no HTTP is an error that it throws.
--
-- service_lua.py writes the nginx.conf that calls it.

local json = require "cjson.safe"
local once = require "once"

local NOT_FORWARDED = {connection = true, ["content-length"] = true, expect = true,
                       ["keep-alive"] = true, te = true, trailer = true,
                       ["transfer-encoding"] = true, upgrade = true}
local CUT = "the upstream was sent the request, and did not answer whole"

-- The value, or throws: "timeout" as it is, all else as a cut.
local function whole(value, err)
    if value == nil then
        error(err == "timeout" and err or CUT, 0)
    end
    return value
end

-- ---- The request ------------------------------------------------------------

local function request_body()
    local name = ngx.req.get_body_file()
    if not name then
        return ngx.req.get_body_data() or ""
    end
    local file = assert(io.open(name, "rb"))
    local data = file:read("*a")
    file:close()
    return data
end

local function request_text()
    local body = request_body()
    local lines = {ngx.req.get_method() .. " " .. ngx.var.request_uri .. " HTTP/1.1",
                   "Connection: close"}
    for name, value in pairs(ngx.req.get_headers(0, true)) do
        for _, one in ipairs(type(value) == "table" and value or {value}) do
            if not NOT_FORWARDED[name:lower()] then
                lines[#lines + 1] = name .. ": " .. one
            end
        end
    end
    lines[#lines + 1] = "Content-Length: " .. #body
    return table.concat(lines, "\r\n") .. "\r\n\r\n" .. body
end

-- ---- The answer ---------------------------------------------------------------

-- Only a head that is whole and HTTP counts.
local function read_head(next_line)
    local status = whole(next_line()):match("^HTTP/1%.[01] ([2-5]%d%d)[^\r\n]*\r$")
    local headers, values = {}, {}
    local line = whole(status and next_line())
    while line ~= "\r" do
        local name, value = line:match("^([^:]*):[ \t]*(.-)[ \t\r]*$")
        whole(name)
        if not NOT_FORWARDED[name:lower()] then
            headers[#headers + 1] = {name, value}
        end
        values[name:lower()] = value
        line = whole(next_line())
    end
    return tonumber(status), headers, values
end

local function read_chunk(sock, next_line)
    local size = tonumber(whole(whole(next_line()):match("^(%x+)\r$")), 16)
    if size > 0 then
        local part = whole(sock:receive(size))
        whole(whole(sock:receive(2)) == "\r\n" or nil)
        return part
    end
    repeat until whole(next_line()) == "\r" -- trailers
end

-- A function that returns the next part of the body, and nil at its end.
local function body_parts(sock, next_line, values, is_stream)
    local ended = false
    return function()
        local part
        if ended then
            return nil
        elseif values["transfer-encoding"] == "chunked" then
            part = read_chunk(sock, next_line)
        elseif values["content-length"] then
            part = whole(sock:receive(tonumber(whole(values["content-length"]:match("^%d+$")))))
            ended = true
        elseif is_stream then
            local err
            part, err = sock:receiveany(65536)
            whole(part or err == "closed" or nil, err)
        else
            part = whole(sock:receive("*a"))
            ended = true
        end
        ended = ended or not part
        return part or nil
    end
end

-- ---- A location -------------------------------------------------------------------

local function forward(location)
    local sock = ngx.socket.tcp()
    local ms = location.timeout_ms
    sock:settimeouts(ms, ms, ms)
    if not sock:connect(location.host, location.port) then
        return 502, {["Idempotency-Outcome"] = "not-applied"}, ""
    end
    whole(sock:send(request_text()))
    local next_line = sock:receiveuntil("\n")
    local status, headers, values = read_head(next_line)
    if ngx.req.get_method() == "HEAD" or status == 204 or status == 304 then
        return status, headers, ""
    end
    local is_stream = (values["content-type"] or ""):find("^text/event%-stream") ~= nil
    if is_stream then
        sock:settimeout(3600000)
    end
    return status, headers, body_parts(sock, next_line, values, is_stream)
end

-- "$http_x_a/$remote_user" of this request; nil if it is empty.
local function expand(template)
    return template and function()
        local text = template:gsub("%$([%w_]+)", function(name)
            return ngx.var[name] or ""
        end)
        return text ~= "" and text or nil
    end
end

local function answer_unguarded(location)
    ngx.req.read_body()
    local status, headers, parts = forward(location)
    ngx.status = status
    for _, pair in ipairs(headers) do
        ngx.header[pair[1]] = pair[2]
    end
    for part in type(parts) == "function" and parts or function() end do
        ngx.print(part)
    end
end

local handlers = {}
local M = {}

local function handler_of(location)
    if not location.serve then
        return function() answer_unguarded(location) end
    end
    local made, guard = pcall(once.new, {
        route = location.route, serve = location.serve,
        bypass = location.route.store_failure == "bypass",
        scope = expand(location.scope), key = expand(location.key),
        fingerprint = expand(location.fingerprint)})
    if not made then -- scenarios have routes that once serve does not
        ngx.log(ngx.ERR, guard)
        return function() return ngx.exit(500) end
    end
    return function()
        guard:run(function() return forward(location) end)
    end
end

function M.load(file)
    local read = assert(io.open(file, "r"))
    local locations = assert(json.decode(read:read("*a")))
    read:close()
    for _, location in ipairs(locations) do
        handlers[location.path] = handler_of(location)
    end
end

function M.serve(path)
    handlers[path]()
end

return M
