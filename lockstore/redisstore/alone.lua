-- A lease that nobody waits for ends here: its entry has the letter H or O, and changes to F in place. If the
-- server refuses that, the rest of the script does it.
if type(entry) == 'string' then
	local since, ttl = match(entry, '^lambdalock2 [HO]%d+ [^\n]*\n(%d+) (%d+) [^\n]*\n$')
	if since and #since == 16 and #ttl < 14 and find(entry, ARGV[2] .. ' ' .. me .. ' ', 14, true) == 14 and
		type(redis.pcall('SETRANGE', KEYS[1], '12', 'F')) == 'number' then
		return 'R'
	end
end
