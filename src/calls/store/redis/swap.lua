#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- swap KEY ... (old new how) ...: the one conditional write, for many keys, each
-- by itself. `old` is the fixed head of the value that the decision was made
-- from. If it is still there, the value becomes `new`; otherwise nothing changes
-- and the value of now comes back, for the client to decide again. `how` is
--   a number  milliseconds after which the server may drop the key
--   ""        never
--   "="       no new value: the head is written again, for replicas to count
-- The answer has an element for each key: what the server said to its last
-- command. pcall: an error is one key's answer and does not end the others'.
-- allow-oom: what was granted must find room for its outcome.
local call, said = redis.pcall, {}
for i, key in ipairs(KEYS) do
    local old, new, how = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
    -- Numbers as strings: Redis prints others as floating point.
    if call('GETRANGE', key, '0', '183') ~= old then
        said[i] = call('GET', key)
    elseif how == '' then
        said[i] = call('SET', key, new)
    elseif how == '=' then
        said[i] = call('SETRANGE', key, '0', old)
    else
        said[i] = call('SET', key, new, 'PX', how)
    end
end
return said
