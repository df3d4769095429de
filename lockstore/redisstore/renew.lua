-- ARGV: owner, TTL in microseconds, fence, retention in milliseconds
if state ~= 'H' and state ~= 'B' or me ~= owner or fence ~= ARGV[3] then return 'L' end
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local left = since + ttl - now
if left <= 0 then return 'L' end
-- More than the TTL is left only if the server's clock has stepped back. The holder counts
-- its TTL from before now, so a lease until now + TTL is not too short.
local stepped = left > tonumber(ttl)
if not stepped and left >= tonumber(ARGV[2]) then return string.format('G%s %.0f', fence, left) end
local px = ARGV[4]
since = now
if not stepped or tonumber(ARGV[2]) > tonumber(ttl) then ttl = ARGV[2] else px = retention() end
if state == 'B' then px = retention() end
return save('SET', KEYS[1], text(), 'PX', px) or 'G' .. fence .. ' ' .. ttl
