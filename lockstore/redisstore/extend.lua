if left > 0 and owner == me and last == ARGV[2] and not find(entry, me, at, true) then
	ttl = math.max(ttl, ARGV[3])
	local done = redis.pcall('SET', KEYS[1], 'lambdalock2 H' .. sub(entry, 14, line) .. clock .. ' ' .. ttl ..
		sub(entry, text - 1), 'PX', string.format('%.0f', math.ceil(ttl / 1000) + 3600000))
	if not done.err then return 'G' .. last .. ' ' .. ttl .. ' 0 ' end
end
