-- A lease that nobody waits for ends here: its entry has the letter H or O, and changes to F in place. If the
-- server refuses that, the rest of the script does it.
if kind == 'release' and type(entry) == 'string' and #entry > 34 and sub(entry, -1) == '\n' and
	find(entry, ARGV[3] .. ' ' .. me .. ' ', 17, true) == 17 and find(entry, '^lambdalock3 [HO]%d%d%d') then
	local line = find(entry, '\n', 34, true)
	local since, ttl = match(entry, '^%d+() %d+() ', line and line + 1)
	if since and since - line == 17 and ttl - since < 15 and find(entry, '\n', ttl, true) == #entry and
		type(redis.pcall('SETRANGE', KEYS[1], '12', 'F')) == 'number' then
		return 'R'
	end
end
