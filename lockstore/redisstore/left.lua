if left > 0 and owner ~= me then
	local from, to = find(entry, ' ' .. me .. ' ', behind, true)
	if from and from > behind + 1 then
		local head = 'lambdalock2 ' .. state .. string.format('%03d', places - 1)
		if not redis.pcall('SET', KEYS[1], head .. sub(entry, 17, from) .. sub(entry, to + 1), 'KEEPTTL').err then return 'R' end
	end
end
