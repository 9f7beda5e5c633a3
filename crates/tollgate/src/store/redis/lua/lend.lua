-- Lends tokens of one bucket to a node, after the node has reported what became of its lease.
--
-- ARGV[1]  after the row, `core::lease::Call`: node, sequence, left, returned, least, want, term. The cost of the row is
--          `least`.
--
-- Answers  as a charge, then what was granted, what was kept, and the term; -1 if a later call of that node was received
--          already.

local key = KEYS[1]
local stored = input:byte(17) ~= 5 and redis.pcall('GET', key)
local bucket = open(1, type(stored) == 'string' and stored)
if not bucket then return pack('<i7', now) end
if type(stored) == 'table' then bucket.foreign = not (rare or helpers()).is_log(key) end
if not rare then helpers() end
local whole = bucket.whole or bucket.room

local node, sequence, left, returned, least, want, term = read('<c8I7I7I7I7I7I7', input, 61)
local out, known, holders, others = {}, nil, 1, 0
for _, lease in ipairs(bucket.out or {}) do
  if lease.node == node then
    known = lease
  else
    out[#out + 1], others = lease, others + lease.tokens
    if lease.tokens > 0 then holders = holders + 1 end
  end
end
local after, granted, kept = bucket.stored or '', 0, 0
local allowed = true
if known and known.sequence >= sequence then
  term = -1
else
  local held = known and known.tokens or 0
  kept = min(left, held)
  local spent = held - kept - min(returned, held - kept)
  if bucket.excess then
    local fits = min(spent, whole)
    bucket.excess, spent = bucket.excess + spent - fits, fits
  end
  local room = max(0, whole - spent - others - kept)
  if bucket.kind ~= 3 and #out < 64 and room >= least then
    granted = min(max(want, least), max(floor(room / (2 * holders)), least))
  end
  local till = bucket.at + term
  if bucket.to then till = min(till, bucket.to - 1) end -- a lease ends with its window
  if granted > 0 or known then
    out[#out + 1] = { node = node, sequence = sequence, tokens = kept + granted, till = till }
    bucket.whole = max(0, whole - spent)
    rare.note_leases(bucket, out)
    after = write(key, bucket, spent, true)
  elseif bucket.shift ~= 0 then
    write(key, bucket, 0, false)
  end
  term = till - bucket.at
  allowed = granted >= least or least <= bucket.room -- there may be too many holders already
end
if bucket.kind == 5 then after = log.numbers(key, bucket, allowed) end
return pack('<i7I2I2BI2', now, steps, foreign, allowed and 1 or 0, #after) .. after .. pack('<I7I7i7', granted, kept, term)
