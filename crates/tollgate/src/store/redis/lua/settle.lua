-- Settles a reservation (8): gives back or charges the difference in every bucket of this slot, and writes that into its record,
-- once. A debit (9) has no record: it charges as much of the cost as there is room for.
--
-- KEYS     the buckets and the record
-- ARGV[1]  after the rows, whose costs are the differences: 1 if the difference is charged, 0 if it is given back; 1 if the record
--          is kept for those who settle again; what was reserved, what it took; and for each row what was charged, and what a
--          cost of 1 takes
--
-- Answers  the time, clock steps, foreign values, and the record: 0 there is none, 1 it was settled before, 2 it is settled
--          now; what was reserved, what it took, what did not fit; of a debit how much was charged

local SETTLED = '<BI7I7I7'
local before = record and call('GET', record)
if op == 8 then
  if not before then return pack('<i7I2I2', now, 0, 0) .. pack(SETTLED, 0, 0, 0, 0) end
  if before:byte() == 1 then return pack('<i7I2I2', now, 0, 0) .. before end
end

-- Gives back the unused part of a charge (`core::algorithm::Bucket::give_back`): whether there is anything to give back, and how
-- much of the cost `write` takes back.
local function give_back(key, bucket, unused, price, since)
  local kind, at = bucket.kind, bucket.at
  if kind == 1 or kind == 3 then
    local elapsed = max(0, at - since)
    local left = min(price, bucket.capacity) * bucket.units
    left = elapsed >= ceil(left / bucket.rate) and 0 or left - elapsed * bucket.rate
    left = min(bucket.debt, min(unused, bucket.capacity) * bucket.units, left)
    bucket.debt = bucket.debt - left
    return left > 0, 0
  elseif kind == 2 then
    local elapsed = max(0, bucket.anchor - since)
    local repaid = floor(elapsed / bucket.interval) * bucket.count
      + (rare or helpers()).weighted(bucket.count, elapsed % bucket.interval, bucket.interval)
    unused = max(0, min(bucket.used, unused, min(price, bucket.capacity) - repaid))
    return unused > 0, -unused
  elseif kind == 4 then
    return since >= bucket.from and since < bucket.to, -unused
  elseif kind == 5 then
    bucket.given_back = { unused, since }
    return log.counts(key, bucket, since), 0
  end
  local window = floor((since - bucket.from) / bucket.window)
  if window == 0 then return true, -unused end
  if window == -1 then bucket.previous = max(0, bucket.previous - unused) end
  return window == -1, 0
end

local buckets = {}
for i = 1, count do
  local stored = input:byte(44 * i - 27) ~= 5 and redis.pcall('GET', KEYS[i])
  local bucket = open(i, type(stored) == 'string' and stored)
  if not bucket then return pack('<i7', now) end
  if type(stored) == 'table' then bucket.foreign = not (rare or helpers()).is_log(KEYS[i]) end
  buckets[i] = bucket
end

if op == 9 then
  local bucket = buckets[1]
  local cost = min(bucket.cost, bucket.room)
  if cost > 0 then write(KEYS[1], bucket, cost, true) end
  return pack('<i7I2I2I7', now, steps, foreign, cost)
end

local charges, is_kept, reserved, actual = read('<BBI7I7', input, 17 + 44 * count)
local unpaid = 0
for i = 1, count do
  local bucket = buckets[i]
  bucket.price, bucket.unit_cost = read('<I7I7', input, 19 + 44 * count + 14 * i)
  bucket.since = read('<i7', before, 7 * i - 3)
  if bucket.since == NOT_CHARGED then
    bucket.cost = 0
  elseif charges == 1 then
    local missing = bucket.cost - min(bucket.cost, bucket.room)
    if bucket.shadow == 0 then unpaid = max(unpaid, ceil(missing / bucket.unit_cost)) end
    bucket.cost = bucket.cost - missing
  end
end

-- The record first: if that fails because memory is full, nothing was done.
if is_kept == 1 then
  call('SET', record, pack(SETTLED, 1, reserved, actual, unpaid), 'KEEPTTL')
else
  call('DEL', record)
end
for i = 1, count do
  local bucket, key, cost = buckets[i], KEYS[i], buckets[i].cost
  if cost > 0 and charges == 1 then
    write(key, bucket, cost, true)
  elseif cost > 0 and bucket.stored then
    local changes, take = give_back(key, bucket, cost, bucket.price, bucket.since)
    if changes then write(key, bucket, take, true) end
  end
end
return pack('<i7I2I2', now, steps, foreign) .. pack(SETTLED, 2, reserved, actual, unpaid)
