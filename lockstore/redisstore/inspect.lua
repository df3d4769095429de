if state ~= 'F' then
	local time = redis.call('TIME')
	local left = since + ttl - (time[1] * 1000000 + time[2])
	if left > ttl + 1000000 then return 'T' end
	if left > 0 then
		-- Without an owner a lease is broken, see break.lua.
		local code = (state == 'K' or state == 'C') and 'K' or owner == '' and 'X' or 'H'
		return string.format('%s%s %.0f %d %s', code, fence, left, waiting(), holder)
	end
	if state == 'B' then return string.format('U%s 0 %d %s', fence, waiting(), holder) end
end
return string.format('I%s %d', fence, waiting())
