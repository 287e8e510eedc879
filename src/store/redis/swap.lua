#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- swap KEY old new how: the one conditional write. `old` is the fixed head of
-- the value that the decision was made from. If it is still there, the value
-- becomes `new`; otherwise nothing changes and the value of now comes back,
-- for the client to decide again. `how` is
--   a number  milliseconds after which the server may drop the key
--   ""        never
--   "="       no new value: the head is written again, for replicas to count
-- allow-oom: what was granted must find room for its outcome.
local key, how = KEYS[1], ARGV[3]
-- Numbers as strings: Redis prints others as floating point.
if redis.call('GETRANGE', key, '0', '183') ~= ARGV[1] then
    return redis.call('GET', key)
end
if how == '' then
    redis.call('SET', key, ARGV[2])
elseif how == '=' then
    redis.call('SETRANGE', key, '0', ARGV[1])
else
    redis.call('SET', key, ARGV[2], 'PX', how)
end
return 1
