-- ARGV: nobody, fence, time in microseconds ('0' is no effect), the result
local fence, effect = ARGV[2], ARGV[3] ~= '0'
if not effect and not (isClosed() and last == fence) and (markOf('D', fence) or markOf('F', fence)) then return 'R' end
if anyLive() then return told(0) end
local i = holder(nil, fence)
if not i and #holders == 0 and last == fence and isClosed() == effect then return 'R' end
if not i or not holders[i].started then return 'L' end
if effect then
	close(i, 'F')
else
	over(i, 'D')
	handOver()
end
return 'R'
