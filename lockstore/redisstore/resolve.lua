-- ARGV: nobody, fence, time in microseconds ('0' frees the key), the result
local time = redis.call('TIME')
local left = since + ttl - (time[1] * 1000000 + time[2])
local held, free = state == 'H' or state == 'B', ARGV[3] == '0'
if held and left > 0 then return string.format('%s%s %.0f 0 %s', taken(), fence, left, holder) end
if fence ~= ARGV[2] or state == 'H' then return 'L' end
if state ~= 'B' then
	return ((state == 'K' or state == 'C') and left > 0) ~= free and 'R' or 'L'
end
state = 'F' -- since the end of the lease
if not free then
	state, since, ttl, queue, data = 'K', time[1] .. string.sub('00000' .. time[2], -6), ARGV[3], '', ARGV[4]
	if data == '' then state = 'C' end
	-- The lease is over, and a result of its owner's own comes too late.
	if owner ~= '' then released, owner = owner, '' end
end
return save('SET', KEYS[1], text(), 'PX', retention()) or 'R'
