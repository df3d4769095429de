local match, find, sub, me = string.match, string.find, string.sub, ARGV[1]
local entry = redis.pcall('GET', KEYS[1])
-- The time in microseconds: clock has 16 digits, as an entry has them.
local time = redis.call('TIME')
local clock = time[1] .. time[2]
if #clock ~= 16 then clock = sub('0' .. time[1] .. sub('00000' .. time[2], -6), -16) end
