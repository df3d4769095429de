-- The lock's entry is one string:
--
--   lambdalock2 S<fence> <owner> <marks>
--   <since> <ttl> <holder>
--   <queue>
--
-- S is one letter:
--   H  the owner has the only lease, with this fence and seat 0, and MaxHolders is 1
--   O  as H; the lease was handed over and is not extended yet
--   F  the key is free; the owner had the last lease, and has released it
--   K  without an owner: the key is closed from since for ttl. Its result is in place of the queue
--   C  as K, without a result
--   X  without an owner: in front of the queue there is a line for each holder, and an empty line
-- fence is that of the last grant. It has 16 digits, and so has since; ttl has at most 13. Times are microseconds
-- on the server's clock. holder is a text for people.
-- A mark is an owner that has ended: how, the fence of its lease, a space, the owner and a space. The newest
-- is the first. How is F for released or abandoned, E expired, K completed, D resolved, V revoked. So the
-- beginning of an entry F is its newest mark, and a grant puts a new beginning in front of the old one.
-- A place in the queue is an owner and a space. If its MaxHolders is not 1, this is behind the owner and the
-- byte 1. What cannot be a queue is none: a queue can only refuse.

-- A replica lags behind its primary, and so may a server that was the primary until now. What
-- it has read must not decide anything. So an answer without a write needs a proof: a write
-- that a replica refuses. This one changes nothing, because no time to live was over a minute
-- ago, and a server that is out of memory does not refuse it.
local function proven(answer)
	local proof = redis.pcall('PEXPIRE', KEYS[1], '-60000', 'GT')
	return type(proof) == 'table' and proof or answer
end

if type(entry) == 'table' then return proven(entry) end
-- latest are the last 8 marks.
local function latest(marks)
	return match(marks, '^%S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ ') or marks
end

local state, last, owner, marks, since, ttl, text, queue
if entry then
	state, last, owner, marks, since, ttl, text, queue =
		match(entry, '^lambdalock2 ([HOFKCX])(%d+) (%S*) ([^\n]*)\n(%d+) (%d+) ([^\n]*)\n(.*)$')
	local one = state == 'H' or state == 'O' or state == 'F'
	if not state or #last ~= 16 or #since ~= 16 or #ttl > 13 or one == (owner == '') or state == 'K' and queue == '' then
		return proven('B')
	end
	since, ttl = tonumber(since, 10), tonumber(ttl, 10)
else
	state, last, marks, queue = 'X', '0000000000000000', '', '\n'
end

local holders, closed, changed, handed = {}, nil, false, {}
if state == 'H' or state == 'O' then
	holders[1] = {owner = owner, fence = last, seat = 0, most = 1, since = since, ttl = ttl, handed = state == 'O', text = text}
elseif state == 'F' then
	marks, queue = latest('F' .. last .. ' ' .. owner .. ' ' .. marks), ''
elseif state == 'X' then
	local at = 1
	while sub(queue, at, at) ~= '\n' do
		local o, f, seat, most, s, t, flags, holder, behind =
			match(queue, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%a*) ([^\n]*)\n()', at)
		if not o or #f ~= 16 or #seat > 9 or #most > 9 or #s ~= 16 or #t > 13 then return proven('B') end
		holders[#holders + 1] = {owner = o, fence = f, seat = tonumber(seat, 10), most = tonumber(most, 10),
			since = tonumber(s, 10), ttl = tonumber(t, 10), handed = find(flags, 'h') ~= nil,
			revoked = find(flags, 'r') ~= nil, started = find(flags, 's') ~= nil, text = holder}
		at = behind
	end
	queue = sub(queue, at + 1)
else
	closed = {since = since, ttl = ttl, text = text, result = queue}
	queue = ''
end
if queue ~= '' and (sub(queue, 1, 1) == ' ' or sub(queue, -1) ~= ' ' or find(queue, '  ', 1, true) or find(queue, '\n', 1, true)) then
	queue = ''
end

-- Times are numbers. A state that begins in the future, because the clock was set back, begins now.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for _, h in ipairs(holders) do
	if h.since > now then h.since, changed = now, true end
end
if closed and closed.since > now then closed.since, changed = now, true end
