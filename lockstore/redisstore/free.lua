-- A free key is granted here, unless something is unusual: most keys are free, and this takes a third of the
-- time. The rest of the script does the same for such an entry.
if (ARGV[5] == '1' or ARGV[5] == '1+') and ARGV[6] == '' and type(entry) ~= 'table' then
	local ended, fence, free = '', '', not entry
	if entry then
		local since, ttl
		ended, fence, since, ttl = match(entry, '^lambdalock2 (F(%d+) %S+ [^\n]*)\n(%d+) (%d+) [^\n]*\n$')
		free = ended and #fence == 16 and #since == 16 and #ttl < 14 and not find(ended, me, 19, true)
	end
	if free then
		local time = redis.call('TIME')
		local now = sub('0' .. time[1], -10) .. sub('00000' .. time[2], -6)
		if fence < now then
			ended = match(ended, '^%S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ ') or ended
			local done = redis.pcall('SET', KEYS[1], 'lambdalock2 H' .. now .. ' ' .. me .. ' ' .. ended .. '\n' ..
				now .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. '\n', 'PX', ARGV[4])
			return done.err and done or 'G' .. now .. ' ' .. ARGV[2] .. ' 0 '
		end
	end
end
