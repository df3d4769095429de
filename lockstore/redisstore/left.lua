if left > 0 and owner ~= me then
	local from, to = find(entry, ' ' .. me .. ' ', behind, true)
	-- The number is a write of its own: with it in the text, Lua makes one long text more. If the server refuses it,
	-- the rest of the script writes all.
	if from and from > behind + 1 and
		redis.pcall('SET', KEYS[1], sub(entry, 1, from) .. sub(entry, to + 1), 'KEEPTTL').ok and
		type(redis.pcall('SETRANGE', KEYS[1], '13', string.format('%03d', places - 1))) == 'number' then
		return 'R'
	end
end
