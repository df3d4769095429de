-- The time in microseconds: clock has 16 digits, as an entry has them.
local time = redis.call('TIME')
local clock = time[1] .. time[2]
if #clock ~= 16 then clock = sub('0' .. time[1] .. sub('00000' .. time[2], -6), -16) end
