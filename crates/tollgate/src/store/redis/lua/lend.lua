-- Lends a part of one bucket to a node, after taking what the node gives back: `ParentBucket::lend` of core.
--
-- ARGV[1]  after the row, `core::lease::LeaseCall`: boundary, returned, the lease's rate, what it has, demand since its last call and
--          in this period, what the node wants (0 nothing, 1 a lease, 2 more for this period), lease time
--
-- Answers  as a charge, then the lease: 0 none, 1 from now, 2 from the next boundary; its end, content, capacity and rate

local key = KEYS[1]
local stored = input:byte(17) ~= 5 and redis.pcall('GET', key)
local bucket = open(1, type(stored) == 'string' and stored)
if not bucket then return pack('<i7', now) end
if not rare then helpers() end
if type(stored) == 'table' then bucket.foreign = not rare.is_log(key) end

local boundary, returned, has_rate, has, reported, demand, wants, lease_time = read('<i7I7I4I7I7I7BI4', input, 61)
local kind, _, _, n1, n2, n3 = read('<BBI7i7i7i7', input, 17)
local units, refill, parts = rare.terms(kind == 7 and 4 or kind, n1, n2, n3)
local at, ledger = bucket.at, bucket.ledger
local changed = false
local NO_END = rare.NO_END
demand = min(demand, rare.MAX_DEMAND) -- of this node in this period

if ledger and boundary ~= NO_END then
  changed = true
  rare.take_off(ledger, boundary, returned, wants == 0 and has_rate or 0)
end

-- floor(a * b / c)
local function share(a, b, c)
  local quotient = rare.weighted(a, b, max(1, c))
  return quotient
end

-- The node's part of what can be lent for a period, of whose rate it has some already: parts of the rate, the demand of exact
-- callers and of all, its whole rate, and what that refills in a lease time.
local function part_of(lent, has_rate)
  local refilled = min(share(refill, ledger.lease_time, units), rare.MAX_DEMAND)
  local total = max(ledger.last_leased + ledger.last_exact, ledger.leased + ledger.exact, floor(refilled / 2), 1)
  local exact = max(ledger.last_exact, ledger.exact)
  local kept = max(share(parts, exact, total), exact > 0 and 1 or 0)
  local free = max(0, max(0, parts - lent) - kept)
  -- The demand of nodes that come next is not known yet: half is for them, unless half is less than a token.
  local half = floor(free / 2)
  if boundary == NO_END and share(min(refilled, n1), half, parts) > 0 then free = half end
  local rate = min(max(0, share(parts, demand, total) - has_rate), free)
  local whole = min(has_rate + rate, parts)
  return rate, exact, total, whole, share(refilled, whole, parts)
end

-- Tokens of a limit without rate: as many as the node wants, up to its part of half of those that are left.
local function tokens_of(content, wants, exact, total)
  local kept = max(share(content, exact, total), exact > 0 and 1 or 0)
  return max(0, min(share(floor(content / 2), demand, total), content - kept, wants))
end

local full = refill > 0 and n1 * units or 0

-- The capacity of a lease with a rate: the same part of the bucket's, but no more than the node needs until it is renewed.
local function capacity_of(rate, tokens)
  return min(floor(full * rate / parts), 2 * (demand + tokens + 1) * units)
end

local function grant_now(ends)
  local out = ledger.this_out + ledger.ahead
  if wants == 1 then has, has_rate = 0, 0 end
  local function time_left(amount) return share(amount, ends - at, ledger.lease_time) end
  local rate, exact, total, whole, tokens = part_of(ledger.this_rate, has_rate)
  -- Less than a token in a lease time is decided here. A lease is renewed with less, since it keeps its content.
  if refill > 0 and tokens == 0 then return end
  local content, capacity
  if refill > 0 then
    local left = max(0, full - bucket.debt - out)
    capacity = capacity_of(whole, tokens)
    if wants == 2 then capacity = max(0, time_left(floor(capacity / 2)) - has) end
    capacity = min(capacity, max(0, full - out - (exact > 0 and units or 0)))
    if capacity < units then return end -- no request could be decided on it
    -- What the parent holds above its new capacity moves with the lease.
    content = min(max(share(left, demand, total), capacity - bucket.debt), capacity, left)
    bucket.debt = max(0, bucket.debt - (capacity - content))
  else
    local wanted = max(0, (wants == 2 and time_left(demand) or 2 * demand) - has)
    content = tokens_of(max(0, (bucket.whole or bucket.room) - out), wanted, exact, total)
    if content == 0 then return end
    capacity, rate = content, 0
  end
  ledger.this_out, ledger.this_rate = ledger.this_out + capacity, ledger.this_rate + rate
  return 1, ends, content, capacity, rate
end

local function grant_next(ends)
  local out = ledger.this_out + ledger.ahead
  local rate, exact, total, whole, tokens = part_of(ledger.next_rate, 0)
  local content, capacity
  if refill > 0 then
    local left = max(0, full - bucket.debt - out)
    capacity = min(capacity_of(whole, tokens), max(0, full - ledger.next_out - (exact > 0 and units or 0)))
    local fair = rate > 0 and floor(left * rate / (parts - ledger.next_rate)) or 0
    content = min(fair, max(0, capacity - has), left)
  else
    -- No more is kept than is out and not kept by another node.
    local kept = min(has, max(0, ledger.this_out - (ledger.next_out - ledger.ahead)))
    content = tokens_of(max(0, (bucket.whole or bucket.room) - out), max(0, 2 * demand - kept), exact, total)
    capacity, rate = kept + content, 0
  end
  if capacity < units then return end
  ledger.next_end, ledger.next_out, ledger.next_rate = ends, ledger.next_out + capacity, ledger.next_rate + rate
  ledger.ahead = ledger.ahead + content
  return 2, ends, content, capacity, rate
end

local lease, ends, content, capacity, rate
if wants > 0 and kind ~= 3 and (kind ~= 1 or parts >= 1024) then
  local fresh = not ledger
  ledger = ledger or rare.new_ledger(lease_time, units, refill, parts)
  local this_end = ledger.this_end
  if this_end == NO_END then this_end = rare.boundary_after(bucket, at, ledger.lease_time) end
  if this_end then
    ledger.longest = max(ledger.longest, lease_time)
    ledger.leased = min(ledger.leased + reported, rare.MAX_DEMAND)
    local has_lease = boundary ~= NO_END and boundary == ledger.this_end
    ledger.this_end = this_end
    if has_lease and wants == 1 then
      local next_end = ledger.next_end
      if next_end == NO_END then next_end = rare.boundary_after(bucket, this_end, ledger.lease_time) end
      if next_end then lease, ends, content, capacity, rate = grant_next(next_end) end
    elseif has_lease or wants == 1 then
      lease, ends, content, capacity, rate = grant_now(this_end)
    end
    changed = true
  elseif fresh then
    ledger = nil
  end
end

local after = bucket.stored or ''
if ledger then rare.note_ledger(bucket, ledger) end
if changed then
  after = write(key, bucket, 0, true)
elseif bucket.shift ~= 0 then
  write(key, bucket, 0, false)
end
local allowed = bucket.room >= 1
bucket.cost = 1
if bucket.kind == 5 then after = log.numbers(key, bucket, allowed) end
return pack('<i7I2I2BI2', now, steps, foreign, allowed and 1 or 0, #after) .. after
  .. pack('<Bi7I7I7I4', lease or 0, ends or 0, content or 0, capacity or 0, rate or 0)
