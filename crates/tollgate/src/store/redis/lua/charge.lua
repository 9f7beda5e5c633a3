-- Charge, peek and hold: every bucket is asked, then all are charged or none is. Rows in shadow mode are charged independently.
-- A refusal writes at most the shift of a clock step, and on a bucket with a ledger the demand.
--
-- ARGV[1]  after the rows: the lease time of a hold; and with a record how long it is kept, in milliseconds, and what it says
--
-- A hold (5) takes the cost out instead of charging it. Its answer has the boundary of each row after the row's state; of a
-- log the numbers if the hold is returned, and those if it is spent.

local stored
if count > 1 then
  stored = call('MGET', unpack(KEYS, 1, count))
elseif input:byte(17) == 5 then
  stored = { false }
else
  stored = { redis.pcall('GET', KEYS[1]) }
end

local replaced
if type(stored[1]) == 'table' then
  if stored[1].err:sub(1, 9) ~= 'WRONGTYPE' then return stored[1] end
  stored[1], replaced = false, true
end

local buckets, passes, charges = {}, flags % 4 < 2, op == 5
for i = 1, count do
  local bucket = open(i, stored[i])
  if not bucket then return pack('<i7', now) end
  local cost = bucket.cost
  local allowed = cost == 0 or cost <= bucket.room and (not bucket.delay or bucket.delay <= max_wait)
  if not allowed and bucket.shadow == 0 then passes = false end
  if allowed and cost > 0 then charges = true end
  bucket.allowed = allowed
  buckets[i] = bucket
end
if replaced then buckets[1].foreign = not (rare or helpers()).is_log(KEYS[1]) end

if record and passes and charges then
  local trailer = 17 + 44 * count
  if op == 5 then trailer = trailer + 4 end
  -- First: if there is no memory for it, nothing is charged.
  call('SET', record, record_of(buckets) .. input:sub(trailer + 7), 'PX', (read('<I7', input, trailer)))
end

local rows = ''
for i = 1, count do
  local bucket, key = buckets[i], KEYS[i]
  local allowed, after, boundary = bucket.allowed, bucket.stored or '', nil
  if op ~= 2 and bucket.cost > 0 then
    local ledger = not bucket.is_reported and bucket.ledger
    if ledger then ledger.exact = min(ledger.exact + bucket.cost, rare.MAX_DEMAND) end
    if op == 5 and allowed and passes and bucket.shadow == 0 then
      local returned = bucket.kind == 5 and log.numbers(key, bucket, true)
      boundary = (rare or helpers()).hold(i, bucket, (read('<I4', input, 17 + 44 * count)))
      after = write(key, bucket, 0, true)
      if returned then after = returned .. log.numbers_if_spent(key, bucket) end
    elseif allowed and (passes or bucket.shadow == 1) then
      after = write(key, bucket, bucket.cost, true)
    elseif ledger then
      after = write(key, bucket, 0, true)
    elseif bucket.shift ~= 0 then
      write(key, bucket, 0, false)
    end
  end
  if bucket.kind == 5 and not boundary then after = log.numbers(key, bucket, allowed) end
  rows = rows .. pack('<BI2', allowed and 1 or 0, #after) .. after
  if op == 5 then rows = rows .. pack('<i7', boundary or 0) end
end
return pack('<i7I2I2', now, steps, foreign) .. rows
