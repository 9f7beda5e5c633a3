-- Charge and peek: every bucket is asked, then all are charged or none is. Rows in shadow mode are independent. A refusal writes
-- at most the shift of a clock step, and on a bucket with a ledger the demand.

local count, stored = #KEYS, nil
if count > 1 then
  stored = call('MGET', unpack(KEYS))
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

local buckets, passes = {}, flags < 2
for i = 1, count do
  local bucket = open(i, stored[i])
  if not bucket then return pack('<i7', now) end
  local cost = bucket.cost
  local allowed = cost == 0 or cost <= bucket.room and (not bucket.delay or bucket.delay <= max_wait)
  if not allowed and bucket.shadow == 0 then passes = false end
  bucket.allowed = allowed
  buckets[i] = bucket
end
if replaced then buckets[1].foreign = not (rare or helpers()).is_log(KEYS[1]) end

local rows = ''
for i = 1, count do
  local bucket, key = buckets[i], KEYS[i]
  local allowed, after = bucket.allowed, bucket.stored or ''
  if op == 1 and bucket.cost > 0 then
    local ledger = not bucket.is_reported and bucket.ledger
    if ledger then ledger.exact = min(ledger.exact + bucket.cost, rare.MAX_DEMAND) end
    if allowed and (passes or bucket.shadow == 1) then
      after = write(key, bucket, bucket.cost, true)
    elseif ledger then
      after = write(key, bucket, 0, true)
    elseif bucket.shift ~= 0 then
      write(key, bucket, 0, false)
    end
  end
  if bucket.kind == 5 then after = log.numbers(key, bucket, allowed) end
  rows = rows .. pack('<BI2', allowed and 1 or 0, #after) .. after
end
return pack('<i7I2I2', now, steps, foreign) .. rows
