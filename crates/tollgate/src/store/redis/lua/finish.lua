-- Ends holds: 6 spends them, because the request passes, 7 returns them and removes the record. After its boundary a hold counts
-- as spent, and this does nothing.
--
-- ARGV[1]  after the rows: the boundary of each, 0 for a row that holds nothing
--
-- Answers  the time, clock steps, foreign values, and how many holds had reached their boundary

local stored, buckets, late = call('MGET', unpack(KEYS, 1, count)), {}, 0
local reservation = record and op == 6 and call('GET', record)
for i = 1, count do
  local bucket = open(i, stored[i])
  if not bucket then return pack('<i7', now) end
  local boundary = read('<i7', input, 10 + 44 * count + 7 * i)
  local cost = bucket.cost * (bucket.units or 1)
  bucket.taken = bucket.ledger and boundary ~= 0 and rare.take_off(bucket.ledger, boundary, cost, 0) or 0
  if bucket.taken == 0 and boundary ~= 0 then late = late + 1 end
  -- What is spent now is charged now. What was spent at its boundary keeps the instant of the hold.
  if reservation and reservation:byte() == 0 and bucket.taken > 0 then
    reservation = reservation:sub(1, 7 * i - 4) .. pack('<i7', repaid_from(bucket)) .. reservation:sub(7 * i + 4)
  end
  buckets[i] = bucket
end
if record and op == 7 then call('DEL', record) end
if reservation then call('SET', record, reservation, 'KEEPTTL') end

for i = 1, count do
  local bucket = buckets[i]
  local ledger, taken, units = bucket.ledger, bucket.taken, bucket.units or 1
  if taken > 0 then
    local is_unused = ledger.this_out == 0 and ledger.this_rate == 0 and ledger.next_out == 0 and ledger.next_rate == 0
      and ledger.last_leased == 0 and ledger.leased == 0
    if is_unused then bucket.ledger, bucket.out = nil, nil else rare.note_ledger(bucket, ledger) end
    local take = 0
    if op == 6 and bucket.units then
      local fits = min(taken, bucket.capacity * units - bucket.debt)
      bucket.debt, bucket.excess = bucket.debt + fits, bucket.excess + ceil((taken - fits) / units)
    elseif op == 6 and bucket.interval then
      take = min(taken, bucket.capacity - bucket.used)
      bucket.excess = bucket.excess + taken - take
    elseif op == 6 then
      take = taken
    end
    write(KEYS[i], bucket, take, true)
  end
end
return pack('<i7I2I2I2', now, steps, foreign, late)
