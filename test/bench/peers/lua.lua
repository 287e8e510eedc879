-- SPDX-License-Identifier: Apache-2.0
--
-- lua.lua - the textbook gateway for Idempotency-Key, in nginx with Lua over
-- Redis. It is what Once is measured beside, and no part of Once.
--
--     SET key "pending <sum of the request>" NX EX 30
--        taken         send it to the upstream, SET key <sum and answer> EX 86400
--        not taken     GET key: another request  422,  pending  409,
--                               an answer        that answer
--
-- What such gateways do not promise, and neither does this one:
--
--     - Redis acknowledges before anything is on a disk, and may lose the last
--       seconds, or all of it: the key is free then, and a repeat is executed.
--     - The lock ends by itself after 30 s. A request that takes longer is
--       executed again by its repeat, and the later answer is kept.
--     - An answer that Redis did not take is sent anyway; its repeat finds the
--       lock, and after 30 s is executed again. So does the repeat of a request
--       whose gateway died.
--     - After an answer of 500 and more, and after none, the key is free again,
--       though the upstream may have done its work.
--
-- Raw RESP over a cosocket: Debian's package of a Redis client for nginx brings
-- twenty other modules with it.
local M = {}

local LOCK_S, KEEP_S, IDLE_MS, POOL = "30", "86400", 3600000, 256
local KEPT = { "Content-Type", "Location", "X-Charge-Id" }

-- A reply of Redis: a line, a text, or nil and what went wrong. `false`: nil.
local function reply(sock)
    local line, err = sock:receive("*l")
    if not line then
        return nil, err
    end
    local kind, rest = line:sub(1, 1), line:sub(2)
    if kind == "+" or kind == ":" then
        return rest
    end
    if kind ~= "$" then
        return nil, rest
    end
    if rest == "-1" then
        return false
    end
    local text
    text, err = sock:receive(tonumber(rest) + 2)
    return text and text:sub(1, -3), err
end

local function redis(...)
    local sock = ngx.socket.tcp()
    local ok, err = sock:connect(M.redis[1], M.redis[2])
    if not ok then
        return nil, err
    end
    local words = { "*" .. select("#", ...) }
    for _, word in ipairs({ ... }) do
        words[#words + 1] = "$" .. #word
        words[#words + 1] = word
    end
    words[#words + 1] = ""
    ok, err = sock:send(table.concat(words, "\r\n"))
    if not ok then
        return nil, err
    end
    local got
    got, err = reply(sock)
    if got ~= nil then
        sock:setkeepalive(IDLE_MS, POOL)
    end
    return got, err
end

-- Sum of the request, status, headers in lines; an empty line; the body.
local function write(sum, answer)
    local lines = { sum, tostring(answer.status) }
    for _, name in ipairs(KEPT) do
        lines[#lines + 1] = answer.header[name] or ""
    end
    return table.concat(lines, "\n") .. "\n\n" .. answer.body
end

local function read(kept)
    -- A header that was not there is an empty line, too: count lines.
    local lines, at = {}, 1
    for _ = 1, 2 + #KEPT do
        local from = kept:find("\n", at, true)
        lines[#lines + 1] = kept:sub(at, from - 1)
        at = from + 1
    end
    local answer = { status = tonumber(lines[2]), header = {},
        body = kept:sub(at + 1) }
    for i, name in ipairs(KEPT) do
        if lines[2 + i] ~= "" then
            answer.header[name] = lines[2 + i]
        end
    end
    return answer
end

local function send(answer)
    ngx.status = answer.status
    for _, name in ipairs(KEPT) do
        ngx.header[name] = answer.header[name]
    end
    ngx.header["Content-Length"] = #answer.body
    ngx.print(answer.body)
end

local function upstream()
    return ngx.location.capture("/.upstream" .. ngx.var.uri, {
        method = ngx["HTTP_" .. ngx.req.get_method()],
        args = ngx.var.args, always_forward_body = true })
end

local function repeated(name, sum)
    local kept = redis("GET", name)
    if kept == nil then
        return ngx.exit(503)
    end
    if not kept or kept == "pending " .. sum then
        return ngx.exit(409)
    end
    if kept:sub(1, #sum) ~= sum then
        return ngx.exit(422)
    end
    ngx.header["Idempotency-Status"] = "replayed"
    send(read(kept))
end

function M.answer()
    local key = ngx.var.http_idempotency_key
    if not key then
        return ngx.exit(400)
    end
    ngx.req.read_body()
    local sum = ngx.md5(ngx.req.get_method() .. " " .. ngx.var.request_uri ..
        "\n" .. (ngx.req.get_body_data() or ""))
    local name = M.prefix .. key
    local taken, err = redis("SET", name, "pending " .. sum, "NX", "EX", LOCK_S)
    if taken == nil then
        ngx.log(ngx.ERR, "redis: ", err)
        return ngx.exit(503)
    end
    if not taken then
        return repeated(name, sum)
    end
    local answer = upstream()
    if answer.status >= 500 then
        redis("DEL", name)
    else
        redis("SET", name, write(sum, answer), "EX", KEEP_S)
    end
    ngx.header["Idempotency-Status"] = "new"
    send(answer)
end

return M
