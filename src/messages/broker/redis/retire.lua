#!lua
-- SPDX-License-Identifier: Apache-2.0
-- retire STREAM group consumer: takes a consumer out of its group, unless
-- entries are pending with it, which would be lost.
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', '1', ARGV[2]) > 0 then
    return 0
end
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
