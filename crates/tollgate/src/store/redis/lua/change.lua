-- Refund and reset, in the same script as a charge: no bucket is asked whether it admits anything.

-- What remains of a bucket that is reset: an empty state with its ledger, for as long as before: that is enough for the
-- leases to end and to be earned back.
local function reset(row, key)
  local state = redis.pcall('GET', key)
  if type(state) == 'table' then state = redis.pcall('LINDEX', key, 0) end
  local kind, _, _, n1, n2, n3 = read('<BBI7i7i7i7', input, 44 * row - 27)
  local tag = kind == 7 and 4 or kind
  if type(state) ~= 'string' or #state == 12 or not (rare or helpers()).is_ours(state) or not rare.has_ledger(state)
    or state:byte() % 16 ~= tag then
    call('DEL', key)
    return ''
  end
  local ttl = call('PTTL', key)
  call('DEL', key)
  local _, _, ledger, _, at = rare.split_ledger(state, rare.terms(tag, n1, n2, n3))
  if not ledger then return '' end
  ledger.rest = 0
  local empty
  if tag == 1 or tag == 3 then
    empty = pack('<BI7I7i7', tag, 0, n3, at)
  elseif tag == 6 then
    empty = pack('<BI4I4i7i7', tag, 0, 0, at, at)
  elseif tag == 5 then
    empty = pack('<BI4i7', tag, 0, at)
  else
    empty = pack('<BI7i7i7', tag, 0, at, at)
  end
  empty = empty .. rare.pack_ledger(ledger)
  if tag == 5 then call('RPUSH', key, empty) else call('SET', key, empty) end
  call('PEXPIRE', key, (ttl < 0 or injected) and max(ttl, 3600000) or max(ttl, 1))
  return tag == 5 and '' or empty
end

local buckets, rows = {}, ''
local stored = op ~= 4 and call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local after
  if op == 4 then
    after = reset(i, key)
  else
    local bucket = open(i, stored[i])
    if not bucket then return pack('<i7', now) end
    buckets[i] = bucket
  end
  if after then rows = rows .. pack('<BI2', 1, #after) .. after end
end
for i, bucket in ipairs(buckets) do
  local key, cost = KEYS[i], bucket.cost
  local after = bucket.stored or ''
  if bucket.stored and cost > 0 then
    after = write(key, bucket, -cost, true)
  end
  if bucket.kind == 5 then after = log.numbers(key, bucket, true) end
  rows = rows .. pack('<BI2', 1, #after) .. after
end
return pack('<i7I2I2', now, steps, foreign) .. rows
