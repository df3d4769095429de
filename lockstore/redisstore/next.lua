if places and places > 0 and owner == me and last == ARGV[2] and last < clock and not find(entry, me, at, true) then
	local first, next, second = match(entry, '^ ([^ \1\2]+)() ([^ \1\2]*)', behind + 1)
	local marked, from = match(entry, '^([0-8])()', at)
	if marked == '8' then
		from = (from + 18 < line and find(entry, ' ', from + 18, true) or line) + 1
	elseif marked then
		marked = marked + 1
	end
	if first and marked and from <= line then
		local lines = 'O' .. string.format('%03d', places - 1) .. clock .. ' ' .. first .. ' ' .. marked ..
			sub(entry, from, line - 1) .. 'F' .. sub(entry, 17, at - 1) .. '\n' .. clock .. ' 2000000 '
		if not write('12', lines, places > 1 and next or #entry + 1, '3602000').err then
			local news = clock .. ' 2000000 0 ' .. second
			return KEYS[2] and first == ARGV[3] and wake(KEYS[2], news) and 'R' or 'R\n' .. first .. ' ' .. news
		end
	end
end
