local answer = decide()
-- A replica lags behind its primary, and so may a server that was the primary until now. What
-- it has read must not decide anything. So an answer without a write needs a proof: a write
-- that a replica refuses. This one changes nothing, because no time to live was over a minute
-- ago, and a server that is out of memory does not refuse it.
if not wrote then
	local proof = redis.pcall('PEXPIRE', KEYS[1], '-60000', 'GT')
	if type(proof) == 'table' then return proof end
end
return answer
