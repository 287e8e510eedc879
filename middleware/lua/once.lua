-- SPDX-License-Identifier: Apache-2.0
--
-- once - the contract of Idempotency-Key for OpenResty, by `once serve`.
--
--     -- In a location with auth_basic, which checks the password.
--     local guard = require("once").new{scope = function() return ngx.var.remote_user end}
--
--     guard:capture("/inner/pay")       answers with what that location says, or
--     guard:run(function()              with what the function returns
--         return 201, {["Content-Type"] = "text/plain"}, "made\n"
--     end)
--     local receipt, err = guard:call({group = "charge", key = id}, function() ... end)
--
-- A request goes to the server before the handler runs, and the handler's answer
-- before the client gets it. The server decides; this file carries. It refuses to
-- send a byte of an answer before the server has said that it is durable. The same
-- holds for a function and its result.
--
-- It runs in the content phase: in filters there are no cosockets.

local ffi = require "ffi"
local json = require("cjson.safe").new() -- others may change the settings of theirs
local add_header = require("ngx.resp").add_header

local ngx = ngx
local byte, char, find, gsub = string.byte, string.char, string.find, string.gsub
local lower, match, sub = string.lower, string.match, string.sub

local BEGIN_S = 1            -- how long a begin is repeated after its first failure
local ANSWER_S = 5           -- how long an answer may take, beside what it waits for
local ABANDON_S = 60         -- how long a server is told what was begun and not answered
local ABANDONS_MAX = 64      -- of a worker, at a time
local IDLE_MAX = 64          -- connections of a worker that wait for work; busy ones have no bound

local STREAMS = {["text/event-stream"] = true, ["application/x-ndjson"] = true}
local INTERNAL = {"Idempotency-Attempt", "Idempotency-Outcome", "Idempotency-Probe",
                  "Idempotency-Record", "Idempotency-Recorded-Status",
                  "Idempotency-Status", "Idempotent-Replayed"}
-- nginx would answer 304 or 412 in the place of an answer of 200.
local CONDITIONS = {"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}
-- Lines of one connection. nginx writes its own.
local HOP = {["connection"] = true, ["keep-alive"] = true, ["transfer-encoding"] = true}

-- ---- Time -------------------------------------------------------------------

-- nginx has no clock for Lua that nobody sets. The names are our own: others may have
-- declared theirs.
ffi.cdef [[
    struct once_timespec { long s; long ns; };
    int once_clock_gettime(int clock, struct once_timespec *t) __asm__("clock_gettime");
]]
local MONOTONIC = ({Linux = 1, OSX = 6, BSD = 4})[ffi.os]
local timespec = ffi.new("struct once_timespec[1]")

-- In seconds.
local function now()
    assert(ffi.C.once_clock_gettime(MONOTONIC, timespec) == 0, "once: there is no clock")
    return tonumber(timespec[0].s) + tonumber(timespec[0].ns) / 1e9
end

-- ---- Texts ------------------------------------------------------------------

-- In a message each character of a header line stands for one byte.
local function characters_of(bytes)
    return (gsub(bytes, "[\128-\255]", function(c)
        local b = byte(c)
        return char(b < 192 and 194 or 195, b % 64 + 128)
    end))
end

local function bytes_of(characters)
    return (gsub(characters, "([\194\195])([\128-\191])", function(a, b)
        return char((byte(a) - 192) * 64 + byte(b) - 128)
    end))
end

local function each_pair(lines, convert)
    local out = {}
    for i, pair in ipairs(lines or {}) do
        out[i] = {convert(pair[1]), convert(pair[2])}
    end
    return out
end

-- Of a message. cjson would write an empty list as an object.
local function pairs_of(lines)
    return #lines > 0 and each_pair(lines, characters_of) or nil
end

-- {{name, value}, ...} of a table of names, whose values may be lists.
local function lines_of(headers)
    local out = {}
    for name, value in pairs(headers or {}) do
        if type(name) == "number" then -- a pair already
            name, value = value[1], value[2]
        end
        for _, one in ipairs(type(value) == "table" and value or {value}) do
            out[#out + 1] = {tostring(name), tostring(one)}
        end
    end
    return out
end

-- Unbuffered: a worker must not have what its parent has read.
local random = assert(io.open("/dev/urandom", "rb"))
random:setvbuf("no")

local function new_id()
    local bytes = random:read(16)
    assert(bytes and #bytes == 16, "once: no random numbers")
    return (gsub(bytes, ".", function(c) return string.format("%02x", byte(c)) end))
end

-- ---- What the client gets -----------------------------------------------------

local function problem(code, status, title, detail, state, again)
    local body = string.format(
        '{"type":"urn:problem-type:once:%s","title":"%s","status":%d,"detail":"%s","code":"%s",' ..
        '"retryable":true,"safe_new_key":false,"state":"%s",' ..
        '"error":{"type":"api_error","code":"%s","message":"%s"}}',
        code, title, status, detail, code, state, code, detail)
    return {status = status, body = body, headers = {
        {"Content-Type", "application/problem+json"}, {"Cache-Control", "no-store"},
        {"Idempotency-Status", again}, status == 503 and {"Retry-After", "1"} or nil}}
end

local UNAVAILABLE = problem(
    "store-unavailable", 503, "The idempotency store is unavailable",
    "Nothing was done now. Send the same key again after the time in Retry-After.",
    "any", "unavailable")
local UNKNOWN = problem(
    "outcome-unknown", 502, "The outcome of this request is not known",
    "It may have taken effect. Do not use a new key: find out first.",
    "indeterminate", "indeterminate")
local WRONG = {status = 500, headers = {}, body = ""}

local function reply_of(reply, body)
    return {status = reply.status, headers = each_pair(reply.headers, bytes_of), body = body}
end

-- Sends an answer: its head, what is there of its body, and then the rest. A rest that
-- is not as long as it said breaks off for the client.
local function send(answer)
    if ngx.headers_sent then
        error("once: the handler has written to the client itself")
    end
    for _, name in ipairs(CONDITIONS) do
        ngx.req.clear_header(name)
    end
    ngx.status = answer.status
    ngx.header["Content-Type"] = nil -- none of nginx's own
    local size = not answer.rest and #answer.body or nil
    for _, pair in ipairs(answer.headers) do
        local name = lower(pair[1])
        if name == "content-length" then
            -- Of a HEAD it tells of what is not here.
            size = (answer.rest or ngx.req.get_method() == "HEAD") and pair[2] or size
        elseif not HOP[name] then
            -- nginx would leave a line without a value out.
            add_header(pair[1], pair[2] ~= "" and pair[2] or " ")
        end
    end
    if answer.status ~= 204 and answer.status ~= 304 then
        ngx.header["Content-Length"] = size
    end
    ngx.send_headers()
    local part, here, sent = answer.body, true, 0
    while part and here do
        here = part == "" or ngx.print(part) and (not answer.rest or ngx.flush(true))
        sent = sent + #part
        part = here and answer.rest and answer.rest()
    end
    if here and answer.declared and sent ~= answer.declared then
        error("once: the handler's body has " .. sent .. " bytes after Content-Length: " ..
              answer.declared)
    end
end

-- ---- The server -----------------------------------------------------------------

local function server_of(where, token_file)
    where = where or os.getenv("ONCE_SERVE") or "unix:/run/once/serve.sock"
    token_file = token_file or os.getenv("ONCE_SERVE_TOKEN_FILE")
    local address, line = {where}, ""
    if sub(where, 1, 5) ~= "unix:" then
        local host, port = match(gsub(where, "^http://", ""), "^(.+):(%d+)/?$")
        if not host then
            error("once: serve is '" .. where .. "': it has to be unix:PATH or HOST:PORT", 3)
        end
        address = {host, tonumber(port)}
    end
    if token_file then
        local file, err = io.open(token_file, "r")
        if not file then
            error("once: the token file: " .. err, 3)
        end
        line = "Authorization: Bearer " .. match(file:read("*l") or "", "^%s*(.-)%s*$") .. "\r\n"
        file:close()
    end
    return {where = where, address = address, start = " HTTP/1.1\r\nHost: once\r\n" .. line ..
        "Content-Type: application/vnd.once\r\nContent-Length: "}
end

local function call_text(server, path, head, body)
    local line = assert(json.encode(head)) .. "\n"
    return {"POST /v1/", path, server.start, #line + #body, "\r\n\r\n", line, body}
end

local NO_ANSWER = "what came is no answer of once serve"

-- code, head, body; or nil and why.
local function read_answer(receive)
    local line, err = receive("*l")
    local code, size = line and match(line, "^HTTP/1%.1 (%d%d%d)"), nil
    while line and line ~= "" do
        line, err = receive("*l")
        size = line and match(lower(line), "^content%-length:%s*(%d+)$") or size
    end
    if not line or not code or not size then
        return nil, err or NO_ANSWER
    end
    local data
    data, err = receive(tonumber(size))
    if not data then
        return nil, err
    end
    local at = find(data, "\n", 1, true)
    local head = at and json.decode(sub(data, 1, at - 1))
    if type(head) ~= "table" then
        return nil, NO_ANSWER
    end
    return tonumber(code), head, sub(data, at + 1)
end

-- The same, until a time. A third value says that the connection was an idle one, which
-- has ended.
local function ask(server, path, head, body, until_s)
    local sock = ngx.socket.tcp()
    local function limit()
        sock:settimeout(math.max(1, math.ceil(1000 * (until_s - now()))))
    end
    limit()
    local ok, err = sock:connect(unpack(server.address))
    if not ok then
        return nil, err, false
    end
    local was_idle = sock:getreusedtimes() > 0
    local code, reply, rest
    limit()
    ok, reply = sock:send(call_text(server, path, head, body))
    if ok then
        code, reply, rest = read_answer(function(what)
            limit()
            return sock:receive(what)
        end)
    end
    if code then
        sock:setkeepalive(0, IDLE_MAX)
        return code, reply, rest
    end
    sock:close()
    return nil, reply, was_idle
end

-- Every call may be repeated. nil: there is no answer within the time, which counts from
-- the call: a server that is stopped accepts connections, and never answers. After the
-- first failure no new attempt begins when `more` seconds are over. After a restart all
-- idle connections have ended: to find that out takes no time.
local function repeated(server, path, head, body, within, more)
    local until_s, pause = now() + within, 0.05
    local begin_until
    while true do
        local code, reply, rest = ask(server, path, head, body, until_s)
        if code and code ~= 503 then
            return code, reply, rest
        end
        if not code then
            ngx.log(ngx.WARN, "once: ", path, ": no answer from once serve at ", server.where,
                    ": ", reply, ". Check that it runs there and that nginx's user may ",
                    "connect to it.")
        end
        if code or not rest then
            begin_until = begin_until or math.min(until_s, now() + more)
            if now() + pause > begin_until then
                return nil
            end
            ngx.sleep(pause)
            pause = math.min(2 * pause, 1)
        elseif now() > until_s then
            return nil
        end
        head.again = find(path, "begin$") and true or nil
    end
end

local abandons = 0 -- under way in this worker

-- It was not run, and will not be. A server that stood still reads what was begun when it
-- goes on, so it is told for a minute; nobody waits for longer than a second.
local function abandon(server, id)
    if ask(server, "abandon", {id = id}, "", now() + BEGIN_S) or abandons >= ABANDONS_MAX then
        return
    end
    abandons = abandons + 1
    local begun = ngx.timer.at(0, function()
        local until_s = now() + ABANDON_S
        while now() < until_s and not ngx.worker.exiting() and
              not ask(server, "abandon", {id = id}, "", until_s) do
            ngx.sleep(BEGIN_S / 2)
        end
        abandons = abandons - 1
    end)
    abandons = begun and abandons or abandons - 1
end

-- The same; what a server might have begun that is away is abandoned.
local function begun(server, path, head, body, wait)
    local code, reply, rest = repeated(server, path, head, body, wait + ANSWER_S, BEGIN_S)
    if not code then
        abandon(server, head.id)
    end
    return code, reply, rest
end

-- ---- The server, when nginx starts --------------------------------------------------

-- init_by_lua has no cosockets, and a route that cannot be has to be told there. So this
-- is a connection that blocks, for five seconds at most, where ffi has Linux.
ffi.cdef [[
    struct once_unix { unsigned short family; char path[108]; };
    struct once_inet { unsigned short family; unsigned char port[2], address[4], zero[8]; };
    struct once_timeval { long s, us; };
    int once_socket(int family, int type, int protocol) __asm__("socket");
    int once_connect(int fd, const void *to, unsigned size) __asm__("connect");
    int once_setsockopt(int fd, int level, int name, const void *value, unsigned size)
        __asm__("setsockopt");
    ssize_t once_send(int fd, const void *data, size_t n, int flags) __asm__("send");
    ssize_t once_recv(int fd, void *data, size_t n, int flags) __asm__("recv");
    int once_close(int fd) __asm__("close");
]]
local AF_UNIX, AF_INET, SOCK_CLOEXEC_STREAM, MSG_NOSIGNAL = 1, 2, 0x80001, 0x4000
local SOL_SOCKET, SO_RCVTIMEO, SO_SNDTIMEO = 1, 20, 21

-- nil: it is a name of a host, or too long.
local function sockaddr_of(address)
    if not address[2] then
        local path = sub(address[1], 6)
        return #path < 108 and ffi.new("struct once_unix", AF_UNIX, path) or nil
    end
    local a, b, c, d = match(address[1], "^(%d+)%.(%d+)%.(%d+)%.(%d+)$")
    local port = address[2]
    return a and ffi.new("struct once_inet", AF_INET, {math.floor(port / 256), port % 256},
                         {tonumber(a), tonumber(b), tonumber(c), tonumber(d)}) or nil
end

-- What read_answer() reads with.
local function receiver(fd)
    local buffer, data = ffi.new("char[4096]"), ""
    return function(what)
        while true do
            local at = what == "*l" and find(data, "\r\n", 1, true) or
                type(what) == "number" and #data >= what and what
            if at then
                local out = sub(data, 1, what == "*l" and at - 1 or at)
                data = sub(data, (what == "*l" and at + 2 or at + 1))
                return out
            end
            local n = tonumber(ffi.C.once_recv(fd, buffer, 4096, 0))
            if n <= 0 then
                return nil, "closed"
            end
            data = data .. ffi.string(buffer, n)
        end
    end
end

-- As ask().
local function ask_at_start(server, path, head)
    local to = ffi.os == "Linux" and sockaddr_of(server.address)
    local fd = to and ffi.C.once_socket(to.family, SOCK_CLOEXEC_STREAM, 0) or -1
    if fd < 0 then
        return nil
    end
    local limit = ffi.new("struct once_timeval", ANSWER_S, 0)
    for _, name in ipairs{SO_RCVTIMEO, SO_SNDTIMEO} do
        ffi.C.once_setsockopt(fd, SOL_SOCKET, name, limit, ffi.sizeof(limit))
    end
    local text = table.concat(call_text(server, path, head, ""))
    local code, reply
    if ffi.C.once_connect(fd, to, ffi.sizeof(to)) == 0 and
       ffi.C.once_send(fd, text, #text, MSG_NOSIGNAL) == #text then
        code, reply = read_answer(receiver(fd))
    end
    ffi.C.once_close(fd)
    return code, reply
end

-- ---- An exchange -----------------------------------------------------------------

local Guard = {}
Guard.__index = Guard

-- A program that is wrong: nothing runs, and the log says why.
local function refuse(why)
    ngx.log(ngx.ERR, "once: ", why)
    return WRONG
end

-- Asks, and returns what the client gets (an answer), or nil and the server's "run", or
-- nil, nil and lines to add: it is not guarded.
local function begin(guard, head, body, wait)
    local code, reply, rest = begun(guard.server, "begin", head, body, wait)
    if not code then
        guard.limits = nil -- the next server may have another route of this name
    end
    if not code and guard.bypass then
        return nil, nil, {}
    elseif not code then
        return UNAVAILABLE
    elseif code == 401 then
        ngx.log(ngx.ERR, "once: begin: once serve refuses the token: see token_file")
        return UNAVAILABLE
    elseif code ~= 200 then
        return refuse("begin: once serve refuses it: " .. tostring(reply.text))
    end
    if reply["do"] == "send" then
        return reply_of(reply, rest)
    elseif reply["do"] == "pass" then
        return nil, nil, each_pair(reply.headers, bytes_of)
    elseif reply["do"] ~= "run" then
        return refuse("begin: the server says '" .. tostring(reply["do"]) ..
                      "', which is not known here")
    end
    return nil, reply
end

-- The server's reply and its body; or nil, and the code if it was refused.
local function tell(guard, run, path, head, body)
    head.token, head.route = run.token, guard.route
    head.lease_ms, head.keep_ms = run.lease_ms, run.keep_ms
    local lease = run.lease_ms / 1000
    local code, reply, rest = repeated(guard.server, path, head, body, lease, lease)
    if code == 200 then
        return reply, rest
    end
    if code then
        ngx.log(ngx.ERR, "once: ", path, ": once serve refuses it: ", tostring(reply.text))
    end
    return nil, code
end

-- The handler ended without an answer: what it did is not known.
local function broken(guard, run, why)
    local late = type(why) == "string" and find(why, "timeout$")
    local reply, rest = tell(guard, run, "broken", {status = late and 504 or 502}, "")
    if not reply then
        return UNKNOWN
    elseif reply["do"] == "send" then
        return reply_of(reply, rest)
    end
    error(why, 0) -- a dry run: as without Once
end

-- What the client gets for the handler's answer.
local function finish(guard, run, answer)
    local head = {status = answer.status, stream = answer.rest and true or nil}
    head.stream = head.stream or #answer.body > run.max_response or nil
    head.headers = pairs_of(answer.headers)
    local reply, rest = tell(guard, run, "end", head, head.stream and "" or answer.body)
    if not reply and rest == 422 then -- it cannot be carried
        return broken(guard, run, "once: the answer was refused")
    elseif not reply then
        return UNKNOWN
    elseif reply["do"] == "send" then
        return reply_of(reply, rest)
    elseif reply["do"] == "own" then
        answer.status, answer.headers = reply.status, each_pair(reply.headers, bytes_of)
    end
    return answer
end

-- What a body is said to be: whether it is a stream, and its length.
local function kind_of(headers)
    local is_stream, declared = false, nil
    for _, pair in ipairs(headers) do
        local name, value = lower(pair[1]), lower(pair[2])
        if name == "content-type" then
            is_stream = is_stream or STREAMS[match(value, "^%s*([^;%s]*)")] or false
        elseif name == "x-accel-buffering" then
            is_stream = is_stream or value == "no"
        elseif name == "content-length" then
            declared = tonumber(value)
        end
    end
    return is_stream, declared
end

-- Runs the handler and holds its answer. What is longer than `most`, and a stream,
-- has a `rest`.
local function hold(handler, most)
    local status, headers, body = handler()
    if type(status) ~= "number" or status % 1 ~= 0 or ngx.headers_sent then
        error("once: a handler returns status, headers and body, and writes nothing", 0)
    end
    local answer = {status = status, headers = lines_of(headers)}
    if body == nil or type(body) == "string" or type(body) == "number" then
        answer.body = tostring(body or "")
        return answer
    elseif type(body) ~= "function" then
        error("once: a body is a text or a function, and not a " .. type(body), 0)
    end
    local parts, size, stream = {}, 0, nil
    stream, answer.declared = kind_of(answer.headers)
    if ngx.req.get_method() == "HEAD" then
        answer.declared = nil
    end
    while not stream do
        local part = body()
        if part == nil then
            break
        end
        parts[#parts + 1] = part
        size = size + #part
        stream = size > most
    end
    answer.body, answer.rest = table.concat(parts), stream and body or nil
    return answer
end

-- What would answer the client before the outcome is recorded is an error while an answer
-- is held, in all light threads of the request. (Who has kept ngx.say in a local before
-- this file was loaded escapes.)
local holding = 0 -- requests of this worker

for _, name in ipairs{"eof", "exec", "exit", "flush", "print", "redirect", "say",
                      "send_headers"} do
    local original = ngx[name]
    ngx[name] = function(...)
        if holding > 0 and ngx.ctx.once_holds then
            error("once: ngx." .. name .. "() in a handler: it has to return status, " ..
                  "headers and body", 2)
        end
        return original(...)
    end
end

-- As pcall().
local function held(handler, most)
    holding, ngx.ctx.once_holds = holding + 1, true
    local ok, answer = pcall(hold, handler, most)
    holding, ngx.ctx.once_holds = holding - 1, nil
    return ok, answer
end

-- ---- A request ---------------------------------------------------------------------

-- One byte more than is allowed is a 413 by the server.
local function body_of(most)
    local data, name = ngx.req.get_body_data(), ngx.req.get_body_file()
    if not data and name then
        local file = assert(io.open(name, "rb"))
        data = file:read(most + 1)
        file:close()
    end
    return data and sub(data, 1, most + 1) or ""
end

-- What is wrong with a body that another phase has discarded, or read by a socket.
-- Without it a request would be the same as others of its key.
local function missing(size, most)
    local declared = tonumber(ngx.var.http_content_length)
    local gone = declared and size < math.min(declared, most)
    if size == 0 and not declared and ngx.var.http_transfer_encoding then
        -- Of an empty body in chunks nginx counts five bytes, and of a discarded one none.
        gone = tonumber(ngx.var.request_length) <= #ngx.req.raw_header()
    end
    return gone and "the body was read or discarded before: " .. size .. " bytes are left. " ..
        "Call no ngx.req.discard_body() and no ngx.req.socket() before, or give a fingerprint"
end

-- A table, a number or a boolean would be one text for many callers.
local function compute(guard, head)
    for name, computed in pairs(guard.computed) do
        local value = computed()
        if value ~= nil and (type(value) ~= "string" or value == "") then
            return "the function for " .. name .. " returned " ..
                (value == "" and "an empty text" or "a " .. type(value)) ..
                ": it has to return a text that is not empty, or nil"
        end
        head[name] = value
    end
end

local function head_of(guard)
    return {id = new_id(), method = characters_of(ngx.req.get_method()),
            target = characters_of(ngx.var.request_uri), route = guard.route,
            headers = pairs_of(lines_of(ngx.req.get_headers(0)))}
end

local function prepare_handler(run)
    for _, name in ipairs(INTERNAL) do
        ngx.req.clear_header(name)
    end
    if run then
        ngx.req.set_header("Idempotency-Attempt", run.attempt)
        ngx.req.set_header("Idempotency-Record", run.record)
        if run.key then
            ngx.req.set_header("Idempotency-Key", run.key)
        end
    end
end

-- What the server says of the route: how much of a body is read, and how long a begin
-- waits. Or nil and what the client gets; nil and nil: it is not guarded.
local function limits(guard)
    if guard.limits then
        return guard.limits
    end
    local code, reply = repeated(guard.server, "route", {route = guard.route}, "", ANSWER_S,
                                 BEGIN_S)
    if code == 200 and type(reply.max_request) == "number" then
        guard.limits = {most = reply.max_request, wait = (reply.wait_ms or 0) / 1000}
        return guard.limits
    elseif code and code ~= 401 then
        return nil, refuse("the route: once serve refuses it: " .. tostring(reply.text))
    end
    return nil, not guard.bypass and UNAVAILABLE or nil
end

-- What the client gets before any handler runs; or nil and what `begin` says.
local function start(guard)
    -- HTTP/2 resets a stream whose body is not read.
    ngx.req.read_body()
    local limit, answer = limits(guard)
    if not limit then
        return answer, nil, {}
    end
    local head, body = head_of(guard), body_of(limit.most)
    local wrong = compute(guard, head)
    if not wrong and not head.fingerprint then
        wrong = missing(#body, limit.most)
    end
    if wrong then
        return refuse(wrong)
    end
    return begin(guard, head, body, limit.wait)
end

local function do_nothing() end

-- Runs `handler` at most once, and answers. It returns status, headers and body: a text,
-- or a function that returns the next part, and nil at the end. It writes nothing itself.
function Guard:run(handler)
    -- With lua_check_client_abort a client that leaves would end the handler.
    ngx.on_abort(do_nothing)
    local answer, run, more = start(self)
    if answer then
        return send(answer)
    end
    prepare_handler(run)
    local ok
    ok, answer = held(handler, run and run.max_response or -1)
    if not ok then
        ngx.log(ngx.ERR, "once: the handler broke: ", tostring(answer))
    end
    if run then
        return send(ok and finish(self, run, answer) or broken(self, run, answer))
    elseif not ok then
        error(answer, 0)
    end
    for _, pair in ipairs(more) do
        table.insert(answer.headers, pair)
    end
    send(answer)
end

-- The handler is another location: proxy_pass, or content_by_lua that writes itself.
-- What nginx cannot capture is refused before anything is begun.
function Guard:capture(uri)
    local method = ngx["HTTP_" .. ngx.req.get_method()]
    if not method or ngx.req.http_version() >= 2 then
        ngx.req.read_body() -- HTTP/2 resets a stream whose body is not read
        error("once: nginx captures nothing for HTTP/2 or for this method: use run()")
    end
    return self:run(function()
        local res = ngx.location.capture(uri, {method = method, args = ngx.var.args,
                                               always_forward_body = true})
        if res.truncated then
            error("once: the answer was cut off", 0)
        elseif res.status == 499 then
            error("once: nginx gave the request up because the client left: see " ..
                  "proxy_ignore_client_abort", 0)
        end
        return res.status, res.header, res.body
    end)
end

-- ---- Calls ---------------------------------------------------------------------------

local M = {_VERSION = "0.1.0"}

-- A function returns nil and one of these two; what its caller gets is none of them.
-- Passed on by a function that has called another one, it would say that *that* one
-- has done nothing.

-- It has done nothing, and will not.
M.NOT_APPLIED = {}

local Failure = {}

-- It has failed, and each repeat is told so.
function M.failure(result, code)
    local is_code = type(code) == "number" and code % 1 == 0 and code > 0 and code < 2^31
    return setmetatable({result = result, code = is_code and code or 1}, Failure)
end

-- Why a call has no result: its `state`, and a text.
local WHY = {
    failed = "the function has failed: that is recorded, with result and code",
    free = "the function has done nothing; the key is free",
    ["in-flight"] = "another call with this key runs: see retry_after_ms",
    mismatch = "the key is that of a call with another fingerprint; nothing was run",
    refused = "the server refuses the call; nothing was run",
    unavailable = "the server is away; nothing was done now",
    unknown = "it was begun, and its outcome is not known: find out first",
    unstored = "an operator has resolved it without a result"}
local Why = {__tostring = function(why) return "once: " .. why.text end}

local function why(state, more)
    more = more or {}
    more.state, more.text = state, more.text or WHY[state]
    return nil, setmetatable(more, Why)
end

-- A text is the result as it is, and all else is JSON. nil: it cannot be.
local function encode(kind, code, value)
    if type(value) == "string" then
        return {kind = kind, code = code, type = "application/octet-stream"}, value
    end
    local text = json.encode(value == nil and json.null or value)
    return text and {kind = kind, code = code, type = "application/json"}, text
end

-- The first caller gets it from its bytes, too, as each repeat does.
local function result_of(reply, data)
    local state = reply["do"] == "indeterminate" and "unknown" or reply["do"]
    if state ~= "replay" then
        return why(WHY[state] and state or "refused", {
            retry_after_ms = state == "in-flight" and (reply.retry_after_ms or 1000) or nil})
    end
    local value = data
    if reply.type == "application/json" then
        value = json.decode(data)
    end
    if reply.kind == "failure" then
        return why("failed", {result = value, code = reply.code})
    end
    return value
end

-- What the function did, to be recorded; or nil, nil and why it is not known.
local function outcome_of(work)
    local ok, value, err = pcall(work)
    if not ok then
        value, err = nil, value
    end
    local head, data
    if getmetatable(err) == Failure then
        head, data = encode("failure", err.code, err.result)
    elseif value ~= nil or err == nil then
        head, data = encode("success", 0, value)
    end
    return head, data, err
end

local function run_call(guard, run, work)
    local head, data, err = outcome_of(work)
    local reply, rest
    if head then
        reply, rest = tell(guard, run, "call/end", head, data)
    elseif err == M.NOT_APPLIED then
        return why(tell(guard, run, "abandon", {}, "") and "free" or "unavailable")
    end
    if reply and reply["do"] == "none" then
        head["do"] = "replay"
        return result_of(head, data)
    elseif not reply and (not head or rest) then -- or it cannot be carried
        reply, rest = tell(guard, run, "broken", {}, "")
    end
    if reply and reply["do"] == "replay" then
        return result_of(reply, rest)
    end
    return why("unknown", {cause = err})
end

-- Runs `work` at most once for group and key, and returns its result; or nil and why.
-- Each other call gets the first result. `options` are `group`, `key` and `fingerprint`,
-- `label` for operators, and `wait_ms`, `lease_ms`, `run_ms`, `keep_ms`. `work` returns a
-- text or what JSON has; or nil and an error.
function Guard:call(options, work)
    local head = {id = new_id(), group = options.group, key = options.key,
                  fingerprint = options.fingerprint, label = options.label,
                  wait_ms = options.wait_ms, run_ms = options.run_ms,
                  lease_ms = options.lease_ms or 30000, keep_ms = options.keep_ms}
    local code, reply, rest = begun(self.server, "call/begin", head, "",
                                    (tonumber(head.wait_ms) or 0) / 1000)
    if not code then
        return why("unavailable")
    elseif code ~= 200 then
        return why("refused", {text = reply.text})
    elseif reply["do"] ~= "run" then
        return result_of(reply, rest)
    end
    return run_call(self, {token = reply.token, lease_ms = head.lease_ms,
                           keep_ms = head.keep_ms}, work)
end

-- ---- A guard ---------------------------------------------------------------------------

local KINDS = {scope = "function", key = "function", fingerprint = "function",
               label = "function", bypass = "boolean", serve = "string",
               token_file = "string"}

local function check_options(options)
    for name, value in pairs(options) do
        if name == "route" and type(value) ~= "table" and type(value) ~= "string" then
            error("once: route is a " .. type(value) .. ": it has to be a table or a name", 3)
        elseif name ~= "route" and not KINDS[name] then
            error("once: the option " .. tostring(name) .. " is unknown", 3)
        elseif name ~= "route" and type(value) ~= KINDS[name] then
            error("once: " .. name .. " is a " .. type(value) .. ": it has to be a " ..
                  KINDS[name], 3)
        end
    end
end

-- `scope` tells who has authenticated; `route` has the options of the directives, or is
-- a name that the server knows. `key`, `fingerprint` and `label` compute what headers or
-- the server would say. `bypass` lets requests pass while the server is away. `serve` and
-- `token_file` are ONCE_SERVE and ONCE_SERVE_TOKEN_FILE.
function M.new(options)
    check_options(options)
    local route = options.route or {}
    local given = type(route) == "table" and route or {}
    if options.bypass and (given.lost ~= "takeover" or given.store_failure ~= "bypass") then
        error('once: bypass needs lost = "takeover" and store_failure = "bypass" in the route', 2)
    end
    if not options.scope and type(route) == "table" and given.scope ~= "off" then
        error('once: scope is missing: give a function that returns who has authenticated, ' ..
              'or route = {scope = "off"}', 2)
    end
    local server = server_of(options.serve, options.token_file)
    if ngx.get_phase() == "init" then
        local code, reply = ask_at_start(server, "route", {route = route})
        if code == 422 then
            error("once: once serve refuses the route: " .. tostring(reply.text), 2)
        end
    end
    return setmetatable({
        route = route, bypass = options.bypass,
        computed = {scope = options.scope, key = options.key,
                    fingerprint = options.fingerprint, label = options.label},
        server = server}, Guard)
end

return M
