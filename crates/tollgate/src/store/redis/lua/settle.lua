-- Settles one bucket: a debit charges as much of the cost as there is room for, an undo gives back a charge by its mark.
--
-- KEYS[2]  the receipt, if the call may be repeated: if it exists, nothing is done, and its content is the answer
-- ARGV[1]  after the row: how long the receipt is kept, in milliseconds, and for an undo its mark. Operation 6 is a debit.
--
-- Answers  the time, clock steps, foreign values, and how much was charged or given back.

local key, receipt = KEYS[1], KEYS[2]
local moved = receipt and call('GET', receipt)
if moved then return pack('<i7I2I2I7', now, 0, 0, tonumber(moved)) end

local stored = input:byte(17) ~= 5 and redis.pcall('GET', key)
local bucket = open(1, type(stored) == 'string' and stored)
if not bucket then return pack('<i7', now) end
if type(stored) == 'table' then bucket.foreign = not (rare or helpers()).is_log(key) end
local mark, rest, cost = 0, 0, bucket.cost
if op == 5 then mark, rest = read('<i7I7', input, 68) else cost = min(cost, bucket.room) end

-- The receipt first: if that fails because memory is full, nothing was done.
if receipt then
  call('SET', receipt, string.format('%.0f', cost), 'PX', (read('<I7', input, 61)))
end
if cost > 0 and op == 6 then
  write(key, bucket, cost, true)
elseif cost > 0 and bucket.stored then
  local changes, take = undo(key, bucket, cost, mark, rest)
  if changes then write(key, bucket, take, true) end
end
return pack('<i7I2I2I7', now, steps, foreign, cost)
