local match, find, sub, me = string.match, string.find, string.sub, ARGV[1]
local entry = redis.pcall('GET', KEYS[1])
