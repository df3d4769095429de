local time = redis.call('TIME')
local left = since + ttl - (time[1] * 1000000 + time[2])
if state ~= 'F' then
	if left > ttl + 1000000 then return 'T' end
	if left > 0 then return string.format('%s%s %.0f %d %s', taken(), fence, left, waiting(), holder) end
	if state == 'B' then return string.format('U%s 0 %d %s', fence, waiting(), holder) end
end
local reserved = math.min(waiting(), 5) * 2000000 + left
if left <= 0 and reserved > 0 then return string.format('W%s %.0f %d ', fence, reserved, waiting()) end
return string.format('I%s %d', fence, waiting())
