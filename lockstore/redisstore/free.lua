-- A free key is granted here, unless something is unusual: most keys are free, and this takes a third of the
-- time. The rest of the script does the same for such an entry.
if (ARGV[5] == '1' or ARGV[5] == '1+') and ARGV[6] == '' and type(entry) ~= 'table' then
	local fence, number, ended, free = '', '0', '', not entry
	if entry then
		local _, at = find(entry, '^lambdalock2 F%d+ ')
		local line = at == 33 and find(entry, '\n', 34, true) or nil
		local since, ttl = match(entry, '^%d+() %d+() ', line and line + 1)
		local sound = line and since and since - line == 17 and ttl - since < 15 and find(entry, '\n', ttl, true)
		local behind = sound and not find(entry, me, 34, true) and find(entry, ' ', 34, true)
		if behind and behind > 34 and behind < line then
			local marks = behind + 2
			number = sub(entry, behind + 1, behind + 1)
			if number == '8' then
				marks = marks + 18 < line and find(entry, ' ', marks + 18, true) + 1 or line + 1
			else
				local i = find('01234567', number, 1, true)
				number = i and sub('12345678', i, i)
			end
			free = number and marks <= line
			fence, ended = sub(entry, 17, 32), free and sub(entry, marks, line - 1) .. 'F' .. sub(entry, 17, behind)
		end
	end
	if free then
		local time = redis.call('TIME')
		local now = time[1] .. time[2]
		if #now ~= 16 then now = sub('0' .. time[1] .. sub('00000' .. time[2], -6), -16) end
		if fence < now then
			local done = redis.pcall('SET', KEYS[1], 'lambdalock2 H000' .. now .. ' ' .. me .. ' ' .. number .. ended .. '\n' ..
				now .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. '\n', 'PX', ARGV[4])
			return done.err and done or 'G' .. now .. ' ' .. ARGV[2] .. ' 0 '
		end
	end
end
