if left > 0 and owner == me and last == ARGV[2] and not find(entry, me, at, true) then
	local longest = math.max(ttl, ARGV[3]) .. ''
	local keep, lines = tostring(line), clock .. ' ' .. longest .. sub(entry, text - 1, stop - 1)
	if state == 'O' then keep, lines = '12', 'H' .. sub(entry, 14, line) .. lines end
	if not write(keep, lines, behind + 1, string.format('%.0f', math.ceil(longest / 1000) + 3600000)).err then
		return 'G' .. last .. ' ' .. longest .. ' 0 '
	end
end
