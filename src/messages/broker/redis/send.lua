#!lua
-- SPDX-License-Identifier: Apache-2.0
-- send STREAM MARKER window field value ...: adds an entry, unless the marker
-- of its id is there. 1: added; 0: it was added before; 2: added, but the marker
-- could not be set. Every error means that nothing was added.
--
-- The entry goes first: a marker without an entry would lose the message, and
-- an entry without a marker may only come twice.
if redis.call('EXISTS', KEYS[2]) == 1 then
    return 0
end
local added = redis.pcall('XADD', KEYS[1], '*', unpack(ARGV, 2))
if type(added) == 'table' and added.err then
    return added
end
local set = redis.pcall('SET', KEYS[2], '', 'PX', ARGV[1])
return set.err and 2 or 1
