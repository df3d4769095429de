if left > 0 and not find(entry, me, at, true) then
	if owner ~= me and ARGV[4] == '1+' and places < 128 and
		type(redis.pcall('SETRANGE', KEYS[1], tostring(#entry), (places == 0 and ' ' or '') .. me .. ' ')) == 'number' then
		redis.call('SETRANGE', KEYS[1], '13', string.format('%03d', places + 1))
		state = state == 'O' and 'W' or 'H'
		return state .. last .. ' ' .. left .. ' ' .. places + 1 .. ' 0 ' .. sub(entry, text, stop - 1) .. '\n'
	end
	local lasts = match(ARGV[2], '^%d+')
	if owner == me and state == 'O' and (ARGV[4] == '1+' or ARGV[4] == '1 ' .. last) and lasts - ttl >= 0 then
		if not write('12', 'H' .. sub(entry, 14, line) .. clock .. ' ' .. ARGV[2], behind + 1, ARGV[3]).err then
			return 'G' .. last .. ' ' .. lasts .. ' 0 ' .. (match(entry, '^ ([^ \1\2]+)', behind + 1) or '')
		end
	end
end
