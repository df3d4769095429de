-- ARGV: '', fence, holder, '1' to free the key at once
-- A revoked lease is held by the owner '', which nobody is. Its end stays, so the key is
-- free when the old owner trusts its lease no longer. Work that has started stays started.
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local left = since + ttl - now
if state ~= 'H' and state ~= 'B' or fence ~= ARGV[2] or left <= 0 then return 'L' end
if left > ttl + 1000000 then return 'T' end
if state == 'B' and ARGV[4] == '1' then return string.format('%s%s %.0f 0 %s', taken(), fence, left, holder) end
local write = ARGV[4] == '1'
if owner ~= '' then
	write, released, owner, holder = true, owner, '', ARGV[3]
end
local done = string.format('D%s %.0f %d %s', fence, left, waiting(), holder)
if ARGV[4] == '1' then state, since, ttl = 'F', now, '0' end
return write and save('SET', KEYS[1], text(), 'PX', retention()) or done
