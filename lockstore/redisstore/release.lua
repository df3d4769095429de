-- ARGV: owner, fence ('0' abandons), cooldown in microseconds
local abandon = ARGV[2] == '0'
if state == 'H' and me == owner and (abandon or fence == ARGV[2]) then
	if ARGV[3] == '0' then
		return keep('SETRANGE', KEYS[1], '12', 'F') or 'R' -- the state, in place
	end
	local time = redis.call('TIME')
	state, since, ttl = 'C', time[1] .. string.sub('00000' .. time[2], -6), ARGV[3]
elseif me == owner and state ~= 'H' or me == released or me == abandoned then
	return 'R'
elseif abandon then
	abandoned = me
else
	return 'L'
end
return keep('SET', KEYS[1], text(), 'PX', retention()) or 'R'
