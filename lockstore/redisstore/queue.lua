
-- count is how many owners a part of the queue has.
local function count(owners)
	local _, n = string.gsub(owners, ' ', ' ')
	return n
end

local function waiting() return count(queue) end

-- found is where this owner stands in the queue, or nil.
local function found() return string.find(' ' .. queue, ' ' .. me .. ' ', 1, true) end

-- places is this owner's place, 1 for the first, 0 for none.
local function places()
	local at = found()
	return at and count(string.sub(queue, 1, at - 1)) + 1 or 0
end

local function behind()
	local at = found()
	return at and string.sub(queue, at + #me + 1) or ''
end

-- leave is the queue without this owner.
local function leave()
	local at = found()
	return at and string.sub(queue, 1, at - 1) .. string.sub(queue, at + #me + 1) or queue
end

local function first() return string.match(queue, '^(%S+) ') or '' end

-- join takes the last place, if this owner asks for one, has none, and fewer than
-- 128 wait. It returns the owner's place. A write that the server refuses, for want of memory for one, means no place.
local function join()
	local place = places()
	if place > 0 or ARGV[5] ~= '1' then return place end
	local n = waiting()
	if n >= 128 then return 0 end
	queue = queue .. me .. ' '
	local done = redis.pcall('SET', KEYS[1], text(), 'KEEPTTL')
	if done.err then return 0 end
	wrote = true
	return n + 1
end
