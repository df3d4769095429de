-- ARGV: owner, fence ('0' abandons, '-' leaves the queue).
-- KEYS[2], if given, is the list of the owner that was the first in the queue when the key
-- was granted. If it is the first still, and may be granted the key, the script wakes it.
-- Otherwise the answer names the first, if it may be granted the key.
local abandon, leaves = ARGV[2] == '0', ARGV[2] == '-'
local function now()
	local time = redis.call('TIME')
	return time[1] .. string.sub('00000' .. time[2], -6)
end
local write, held = false, state == 'H' or state == 'B'
if leaves then
	if held and me == owner and since + ttl - now() > 0 then return 'O' end
elseif held and me == owner and (abandon or fence == ARGV[2]) then
	if state == 'H' and queue == '' then
		return save('SETRANGE', KEYS[1], '12', 'F') or 'R' -- the state, in place
	end
	write, state = true, 'F'
	if since + ttl - now() > 0 then
		since, ttl = now(), '0'
	end -- or the key has been free since the end of the lease
elseif me == owner and not held or me == released or me == abandoned then
	abandon = false
elseif abandon then
	write, abandoned = true, me
else
	return 'L'
end
local place, turns = queue == '' and 0 or places(), state == 'F'
if place > 0 then
	write, queue = true, leave()
	-- How lockstore.FreeAfterLeave changes since when the key, also of a dead holder, is free.
	local over = now() - since - ttl - math.min(place - 1, 5) * 2000000
	turns = turns or over >= 0
	if over > 0 then
		since = string.format('%.0f', since + math.min(over, 2000000))
	end
end
local failed = write and save('SET', KEYS[1], text(), 'PX', retention())
if failed then return failed end
local next = turns and first() or ''
if next ~= '' and KEYS[2] and string.sub(KEYS[2], -40) == redis.sha1hex(next) and wake(KEYS[2]) then
	next = ''
end
return 'R' .. next
