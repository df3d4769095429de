if places and places > 0 and owner == me and last == ARGV[2] and last < clock and not find(entry, me, at, true) then
	local first, next = match(entry, '^ ([^ \1\2]+)() ', behind + 1)
	local marked, from = match(entry, '^([0-8])()', at)
	if marked == '8' then
		from = (from + 18 < line and find(entry, ' ', from + 18, true) or line) + 1
	elseif marked then
		marked = marked + 1
	end
	if first and marked and from <= line then
		local rest = places > 1 and sub(entry, next) or ''
		local head = 'lambdalock2 O' .. string.format('%03d', places - 1) .. clock .. ' ' .. first .. ' '
		local done = redis.pcall('SET', KEYS[1], head .. marked .. sub(entry, from, line - 1) .. 'F' .. sub(entry, 17, at - 1) ..
			'\n' .. clock .. ' 2000000 \n' .. rest, 'PX', '3602000')
		if not done.err then
			local news = clock .. ' 2000000 0 ' .. (match(rest, '^ ([^ \1\2]+)') or '')
			return KEYS[2] and first == ARGV[3] and wake(KEYS[2], news) and 'R' or 'R\n' .. first .. ' ' .. news
		end
	end
end
