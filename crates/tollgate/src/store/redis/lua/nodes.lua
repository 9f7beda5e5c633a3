-- Membership: a node reports that it is alive for some time, or that it leaves.
--
-- KEYS[1]  the list of nodes
-- ARGV[1]  as for buckets, but instead of rows: the node, and for how long it is alive; 0: it leaves
--
-- Answers  the time, how many nodes there are, and how many of them have a smaller id.

local read, pack, ceil, max, min = struct.unpack, struct.pack, math.ceil, math.max, math.min
local _, flags, now = read('<BBi7', ARGV[1])
if flags % 2 == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local MEMBER = '<c8i7' -- node, until when
local node, term = read(MEMBER, ARGV[1], 17)
local members = redis.pcall('GET', KEYS[1])
local alive, before = {}, 0
for place = 1, type(members) == 'string' and #members - 14 or 0, 15 do
  local other, till = read(MEMBER, members, place)
  if other ~= node and till > now then
    -- An end too far ahead is from before the clock was set back.
    alive[#alive + 1] = pack(MEMBER, other, min(till, now + max(term, 3000000)))
    if other < node then before = before + 1 end
  end
end
if term > 0 then alive[#alive + 1] = pack(MEMBER, node, now + term) end
if #alive > 0 then
  redis.call('SET', KEYS[1], table.concat(alive), 'PX', max(1, ceil(max(term, 3000000) / 1000)))
else
  redis.call('DEL', KEYS[1])
end
return pack('<i7I4I4', now, #alive, before)
