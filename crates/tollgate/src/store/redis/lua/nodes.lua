-- Membership: a node reports that it is alive for some time, or that it leaves.
--
-- KEYS     two sorted sets of nodes: by the end of their membership, and by id
-- ARGV[1]  as for buckets, but instead of rows: the node, the score of its id, and for how long it is alive; 0: it leaves
--
-- Answers  the time, how many nodes there are, and how many of them have a smaller id

local read, pack, max = struct.unpack, struct.pack, math.max
local call = redis.call
local ends, ids = KEYS[1], KEYS[2]
local _, flags, now = read('<BBi7', ARGV[1])
if flags % 2 == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local node, id, term = read('<c8I7i7', ARGV[1], 17)
local longest = max(term, 3000000)
local function text(number) return string.format('%.0f', number) end

-- A value of another type is not ours.
for _, key in ipairs(KEYS) do
  if type(redis.pcall('ZCARD', key)) == 'table' then call('DEL', key) end
end

for _, gone in ipairs(call('ZRANGEBYSCORE', ends, '-inf', text(now))) do
  call('ZREM', ends, gone)
  call('ZREM', ids, gone)
end
-- An end too far ahead is from before the clock was set back.
for _, other in ipairs(call('ZRANGEBYSCORE', ends, '(' .. text(now + longest), '+inf')) do
  call('ZADD', ends, text(now + longest), other)
end
if term > 0 then
  call('ZADD', ends, text(now + term), node)
  call('ZADD', ids, text(id), node)
else
  call('ZREM', ends, node)
  call('ZREM', ids, node)
end
-- One of the two may have been evicted.
if call('ZCARD', ids) ~= call('ZCARD', ends) then
  call('DEL', ids)
  for _, member in ipairs(call('ZRANGEBYSCORE', ends, '-inf', '+inf')) do
    call('ZADD', ids, text(math.floor(read('<I7', member, 2) / 8)), member)
  end
end
call('PEXPIRE', ends, longest / 1000)
call('PEXPIRE', ids, longest / 1000)
return pack('<i7I4I4', now, call('ZCARD', ids), call('ZRANK', ids, node) or 0)
