if state ~= 'F' then
	local time = redis.call('TIME')
	local left = since + ttl - (time[1] * 1000000 + time[2])
	if left > ttl + 1000000 then return 'T' end
	if left > 0 then return string.format('H%s %.0f %s', fence, left, holder) end
end
return 'I' .. fence
