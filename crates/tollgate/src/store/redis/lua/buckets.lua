-- Buckets: opening, closing and writing them. The first part of every script that decides or changes buckets.
--
-- A translation of `tollgate-core`, where each formula has its reasons. Every number is an integer below 2^53, which
-- a double holds exactly; a quotient of two such numbers never rounds across an integer, so floor and ceil are exact.
--
-- KEYS     the bucket of each row, then the record of the reservation, if there is one
-- ARGV[1]  operation, flags (1: the time is injected, 2: a row elsewhere refuses the request already, 4: there is a record),
--          injected time, max_wait: 16 bytes; then 44 bytes for each row: its algorithm, its mode (1: shadow, 2: the calls of
--          a node with a lease report its cost), its cost and five numbers of its limit (each branch of `open` says which)
--
-- Answers  the time, clock steps, foreign values, then for each row whether it is allowed and the state after the operation, with its
--          length; of a log its numbers instead. If the windows of a calendar do not reach to now: only the time, and
--          nothing was done.
--
-- `state.rs` describes what is stored. The functions below are created for every call, so there are few of them, and
-- what is rare is created on demand.

local read, pack, floor, ceil, max, min = struct.unpack, struct.pack, math.floor, math.ceil, math.max, math.min
local call, digits = redis.call, string.format

-- Algorithms: token bucket 1, interval bucket 2, leaky bucket 3, fixed window 4, log 5, counter 6, calendar window 7.
local input = ARGV[1]
local op, flags, now, max_wait = read('<BBi7I7', input)
local injected = flags % 2 == 1
local record = flags >= 4 and KEYS[#KEYS]
local count = record and #KEYS - 1 or #KEYS
if not injected then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local steps, foreign = 0, 0
local log -- where a script may meet logs: what opens and closes them
local rare

-- What few calls need: wide states, states of other limits, excess and ledgers.
local function helpers()
  rare = { NO_END = -36028797018963968, MAX_DEMAND = 68719476735, EXCESS_LIFETIME = 31622400000000 }
  local LEDGER, LEDGER_LENGTH = '<i7I7I7i7I7I7I7I4I5I5I5I5I4I4I7I7I4', 99
  local LENGTHS = { 22, 22, 22, 22, 12, 23, [17] = 50, [18] = 50, [19] = 50 }
  local COMPACT = { [9] = true, [10] = true, [11] = true, [12] = true, [14] = true }
  local EXCESS_LIFETIME = rare.EXCESS_LIFETIME

  -- Whether a string is a state of ours, with or without a ledger behind it.
  function rare.is_ours(state)
    local length = LENGTHS[state:byte()]
    if #state == 12 and COMPACT[state:byte() % 16] then return true end
    return length and (#state == length or #state == length + LEDGER_LENGTH)
  end

  -- Whether a key that is not a string is a log of ours.
  function rare.is_log(key)
    local head = redis.pcall('LINDEX', key, 0)
    return type(head) == 'string' and rare.is_ours(head) and head:byte() == 5
  end

  function rare.has_ledger(state)
    local length = LENGTHS[state:byte()]
    return length and #state > length
  end

  -- floor(count * left / window), and the remainder. The product may exceed 2^53: long division, seven bits of the
  -- count at a time (a window is at most 2^46).
  function rare.weighted(count, left, window)
    if count * left < 9007199254740992 then return floor(count * left / window), count * left % window end
    local quotient, rest = 0, 0
    for bit = 49, 0, -7 do
      local digit = floor(count / 2 ^ bit) % 128
      rest = rest * 128 + digit * left
      quotient = quotient * 128 + floor(rest / window)
      rest = rest % window
    end
    return quotient, rest
  end

  -- The terms of a row's limit (`core::lease::Terms`): units in a token, units that come back per microsecond, and the
  -- parts of that rate.
  function rare.terms(tag, n1, n2, n3)
    if tag == 3 then return n3, 0, 1 end
    if tag ~= 1 then return 1, 0, 1 end
    local parts, largest = 65536, max(n1 * n3, n2)
    while parts > 1 and largest * parts > 9007199254740991 do parts = parts / 2 end
    return n3, n2, parts
  end

  -- Amounts on a ledger in the terms of another limit, rounded up.
  local function convert(ledger, units, refill, parts)
    local from_units, from_refill, from_parts = ledger.units, ledger.refill, ledger.parts
    if units == from_units and refill == from_refill and parts == from_parts then return end
    local function amount(out)
      if units == from_units then return out end
      return min(ceil(out / from_units) * units, 9007199254740991)
    end
    local function rate(lent)
      if lent == 0 or refill == 0 then return lent end
      local quotient, rest = rare.weighted(lent * from_refill, units, from_units)
      lent = min(quotient + (rest > 0 and 1 or 0), 9007199254740991)
      if parts >= from_parts then return min(ceil(lent * (parts / from_parts) / refill), 9007199254740991) end
      return ceil(lent / (refill * (from_parts / parts)))
    end
    ledger.this_out, ledger.this_rate = amount(ledger.this_out), rate(ledger.this_rate)
    ledger.next_out, ledger.next_rate = amount(ledger.next_out), rate(ledger.next_rate)
    ledger.ahead, ledger.rest = min(amount(ledger.ahead), ledger.next_out), 0
    ledger.units, ledger.refill, ledger.parts = units, refill, parts
  end

  -- The next period becomes this one; nothing without a next one.
  local function rotate(ledger)
    if ledger.next_end == rare.NO_END then return end
    ledger.this_end, ledger.this_out, ledger.this_rate = ledger.next_end, ledger.next_out, ledger.next_rate
    ledger.next_end, ledger.next_out, ledger.next_rate, ledger.ahead = rare.NO_END, 0, 0, 0
    ledger.last_leased, ledger.last_exact, ledger.leased, ledger.exact = ledger.leased, ledger.exact, 0, 0
    if ledger.longest > 0 then ledger.lease_time, ledger.longest = ledger.longest, 0 end
    return ledger
  end

  function rare.new_ledger(lease_time, units, refill, parts)
    return {
      this_end = rare.NO_END, this_out = 0, this_rate = 0, next_end = rare.NO_END, next_out = 0, next_rate = 0,
      ahead = 0, rest = 0, last_leased = 0, last_exact = 0, leased = 0, exact = 0,
      lease_time = lease_time, longest = 0, units = units, refill = refill, parts = parts,
    }
  end

  -- Separates a state from its ledger: the state alone, the boundaries that have passed with what counts as spent there,
  -- the ledger after them, if there is one, what the refill left below a unit, and the instant to compute at.
  function rare.split_ledger(state, units, refill, parts)
    local length = LENGTHS[state:byte()]
    local last = read('<i7', state, length - 6)
    local at, shift = now, 0
    if last > now then
      if last - now <= 1000000 then at = last else shift = now - last end
    end
    local ledger = {}
    ledger.this_end, ledger.this_out, ledger.this_rate, ledger.next_end, ledger.next_out, ledger.next_rate, ledger.ahead,
      ledger.rest, ledger.last_leased, ledger.last_exact, ledger.leased, ledger.exact, ledger.lease_time, ledger.longest,
      ledger.units, ledger.refill, ledger.parts = read(LEDGER, state, length + 1)
    convert(ledger, units, refill, parts)
    local rest, due = ledger.rest, {}
    ledger.this_end = ledger.this_end + shift
    if ledger.next_end ~= rare.NO_END then ledger.next_end = ledger.next_end + shift end
    while shift == 0 and ledger and ledger.this_end <= at do
      local spent = ledger.this_out + ledger.ahead - ledger.next_out
      due[#due + 1] = { till = ledger.this_end, units = spent, tokens = max(0, spent), rate = ledger.this_rate }
      ledger = rotate(ledger)
    end
    return state:sub(1, length), due, ledger, rest, at
  end

  -- Reads any other wide state: three numbers, the last write, and where they exist a ledger and excess. Nothing, and whether
  -- it is foreign, where it is not a state of this algorithm.
  function rare.read_wide(state, tag, n1, n2, n3)
    local ours = rare.is_ours(state)
    if not ours or #state == 12 or state:byte() % 16 ~= tag then
      return { foreign = not ours }
    end
    local wide = {}
    if rare.has_ledger(state) then
      state, wide.due, wide.ledger, wide.rest = rare.split_ledger(state, rare.terms(tag, n1, n2, n3))
    end
    local place = 2
    if state:byte() > 16 then
      local _, tokens, capacity, refill, period = read('<BI7I7I7I7', state)
      wide.excess, place = { tokens = tokens, capacity = capacity, refill = refill, period = period }, 30
    end
    if tag == 6 then
      wide[1], wide[2], wide[3], wide.last = read('<I4I4i7i7', state, place)
    else
      wide[1], wide[2], wide.last = read('<I7i7i7', state, place)
    end
    return wide
  end

  -- Usage divided between a bucket of this capacity and its excess.
  local function split(usage, capacity)
    usage = min(usage, 9007199254740991)
    return min(usage, capacity), max(0, usage - capacity)
  end

  -- Whether excess was written under these numbers. If not, usage is divided again.
  local function is_under(excess, capacity, refill, period)
    return excess and excess.capacity == capacity and excess.refill == refill and excess.period == period
  end

  -- Debt and excess after some time, which repays the debt first and then whole tokens of the excess.
  local function repaid(debt, excess, rate, units, elapsed)
    local is_repaid = elapsed >= ceil(debt / rate)
    if excess == 0 or elapsed >= EXCESS_LIFETIME then return is_repaid and 0 or debt - elapsed * rate, 0 end
    if not is_repaid then return debt - elapsed * rate, excess end
    local tokens, rest = rare.weighted(rate, elapsed, units)
    return 0, max(0, excess - tokens - floor((rest - debt) / units))
  end

  -- The same while some parts of the rate are lent; and what is left of the refill below a unit.
  local function repaid_partly(debt, excess, rate, units, elapsed, lent, parts, rest)
    if lent == 0 then
      debt, excess = repaid(debt, excess, rate, units, elapsed)
      return debt, excess, rest
    elseif elapsed == 0 then
      return debt, excess, rest
    end
    local speed = rate * max(0, parts - lent)
    local credit = elapsed * speed + rest
    if credit >= 9007199254740992 then -- more than any debt
      local came = rare.weighted(speed, elapsed, parts)
      return 0, max(0, excess - floor((came - debt) / units)), 0
    end
    local came = floor(credit / parts)
    excess = max(0, excess - floor(max(0, came - debt) / units))
    debt = max(0, debt - came)
    return debt, excess, debt > 0 and credit % parts or 0
  end

  -- The debt and excess now of a state that was written under another limit, or has excess or a ledger; and what the refill
  -- left below a unit.
  function rare.debt(debt, units_then, last, wide, capacity, rate, units)
    local exceeded = wide and wide.excess
    local excess = exceeded and exceeded.tokens or 0
    if units_then == units and is_under(exceeded, capacity, rate, units) then
      debt = min(debt, capacity * units)
    elseif units_then == units and debt <= capacity * units then
      local covered = min(excess, floor((capacity * units - debt) / units))
      debt, excess = debt + covered * units, excess - covered
    else
      debt, excess = split(ceil(debt / max(1, units_then)) + excess, capacity)
      debt = debt * units
    end
    if not (wide and wide.due) then return repaid(debt, excess, rate, units, max(0, now - last)) end
    local _, _, parts = rare.terms(1, capacity, rate, units)
    local rest = wide.rest
    for _, due in ipairs(wide.due) do
      debt, excess, rest = repaid_partly(debt, excess, rate, units, max(0, due.till - last), due.rate, parts, rest)
      local fits = min(due.units, capacity * units - debt)
      debt, excess, last = max(0, debt + fits), excess + max(0, ceil((due.units - fits) / units)), max(last, due.till)
    end
    local lent = wide.ledger and wide.ledger.this_rate or 0
    debt, excess, rest = repaid_partly(debt, excess, rate, units, max(0, now - last), lent, parts, rest)
    if wide.ledger then wide.ledger.rest = rest end
    return debt, excess
  end

  -- Usage and excess of an interval bucket under the limit in use.
  function rare.usage(used, exceeded, capacity, count, interval)
    if is_under(exceeded, capacity, count, interval) then return min(used, capacity), exceeded.tokens end
    return split(used + (exceeded and exceeded.tokens or 0), capacity)
  end

  -- What is used of an interval bucket, its last tick, and its excess, at a later instant. Ticks repay what is used first.
  function rare.credited(used, anchor, excess, last, at, count, interval)
    if at - last >= EXCESS_LIFETIME then excess = 0 end
    local ticks = max(0, floor((at - anchor) / interval))
    anchor = anchor + ticks * interval
    if ticks < ceil(used / count) then return used - ticks * count, anchor, excess end
    if ticks >= ceil((used + excess) / count) then return 0, anchor, 0 end
    return 0, anchor, excess - (ticks * count - used)
  end

  -- The first boundary that is at least half a lease time away; nothing if the window of the bucket ends before.
  function rare.boundary_after(bucket, from, time)
    time = max(1, min(time, 2000000))
    local to = floor((from + floor(time / 2)) / time) * time + time
    if not bucket.to then return to end
    if bucket.to - 1 > from then return min(to, bucket.to - 1) end
  end

  -- Takes capacity and rate off the sums of a boundary; answers how much capacity was there.
  function rare.take_off(ledger, boundary, amount, rate)
    if boundary == ledger.this_end then
      ledger.this_rate = ledger.this_rate - min(rate, ledger.this_rate)
      amount = min(amount, ledger.this_out)
      ledger.this_out = ledger.this_out - amount
    elseif boundary == ledger.next_end then
      ledger.next_rate = ledger.next_rate - min(rate, ledger.next_rate)
      amount = min(amount, ledger.next_out, ledger.ahead)
      ledger.next_out, ledger.ahead = ledger.next_out - amount, ledger.ahead - amount
    else
      return 0
    end
    -- Leases without a rate keep tokens for the next period: no more than are out.
    if ledger.refill == 0 then ledger.next_out = min(ledger.next_out, ledger.ahead + ledger.this_out) end
    return amount
  end

  -- Takes the cost of a row out for a request that is decided elsewhere too; answers its boundary.
  function rare.hold(row, bucket, lease_time)
    local kind, _, cost, n1, n2, n3 = read('<BBI7i7i7i7', input, 44 * row - 27)
    local units, refill, parts = rare.terms(kind == 7 and 4 or kind, n1, n2, n3)
    local ledger = bucket.ledger or rare.new_ledger(lease_time, units, refill, parts)
    ledger.longest = max(ledger.longest, lease_time)
    if ledger.this_end == rare.NO_END then
      ledger.this_end = rare.boundary_after(bucket, bucket.at, ledger.lease_time) or bucket.to
    end
    local capacity = bucket.capacity or bucket.limit
    local boundary = ledger.next_end
    if boundary == rare.NO_END then boundary = rare.boundary_after(bucket, ledger.this_end, ledger.lease_time) end
    if boundary and ledger.next_out + cost * units <= capacity * units then
      ledger.next_end, ledger.next_out = boundary, ledger.next_out + cost * units
      ledger.ahead = ledger.ahead + cost * units
    else
      boundary, ledger.this_out = ledger.this_end, ledger.this_out + cost * units
    end
    rare.note_ledger(bucket, ledger)
    return boundary
  end

  -- Notes in a bucket what is out. It takes room beside the state, in tokens or in units of a continuous bucket.
  function rare.note_ledger(bucket, ledger)
    local out = ledger.this_out + ledger.ahead
    bucket.ledger, bucket.out = ledger, out
    if bucket.units then
      bucket.room = max(0, floor((bucket.capacity * bucket.units - bucket.debt - out) / bucket.units))
      if bucket.free then bucket.delay = max(0, ceil((bucket.debt + out - bucket.free * bucket.units) / bucket.rate)) end
    else
      bucket.whole = bucket.whole or bucket.room
      bucket.room = max(0, bucket.whole - out)
    end
    bucket.till = ledger.next_end == rare.NO_END and ledger.this_end or ledger.next_end
  end

  function rare.pack_ledger(l)
    return pack(LEDGER, l.this_end, l.this_out, l.this_rate, l.next_end, l.next_out, l.next_rate, l.ahead, l.rest,
      l.last_leased, l.last_exact, l.leased, l.exact, l.lease_time, l.longest, l.units, l.refill, l.parts)
  end

  -- Until when a bucket with a ledger is kept. What is out is used until its boundary, and then has to be earned back: all
  -- of it, after debt and excess, also where it was lent under a larger limit.
  function rare.kept_until(bucket, idle_at)
    local ledger = bucket.ledger
    local till, out = bucket.till, max(ledger.this_out + ledger.ahead, ledger.next_out)
    local earned, full = 0, bucket.window or 0
    if bucket.units then
      earned, full = out / bucket.rate + 1000, ceil(bucket.capacity * bucket.units / bucket.rate)
    elseif bucket.interval then
      earned = (ceil(out / bucket.count) + 1) * bucket.interval
      full = ceil(bucket.capacity / bucket.count) * bucket.interval
    elseif bucket.kind == 6 then
      full = 2 * bucket.window
    elseif bucket.kind == 4 then
      full = bucket.to - bucket.from
    end
    -- The rest of the bucket may be repaid at no rate before the boundary.
    earned = min(idle_at + max(0, till - bucket.at) + earned, till + EXCESS_LIFETIME)
    return ceil(max(idle_at, till + full, earned))
  end

  return rare
end

-- Brings the bucket of a row to now. Nothing if the windows of a calendar do not reach to now. `room` is the largest cost the bucket would admit. `stored` is the state as it was found, if it is one of this algorithm.
local function open(row, stored)
  local kind, mode, cost, n1, n2, n3, n4, n5 = read('<BBI7i7i7i7i7i7', input, 44 * row - 27)
  local shadow = mode % 2
  if kind == 5 then return log.open(KEYS[row], mode, cost, n1, n2) end
  local tag = kind == 7 and 4 or kind

  local last, x, a, b, c, wide
  if stored then
    if #stored == 12 and stored:byte() % 16 == tag + 8 then
      local head, low
      head, low, x = read('<BI6I5', stored)
      last = floor(head / 16) * 281474976710656 + low
    elseif #stored == 22 and stored:byte() == tag and tag ~= 6 then
      a, b, last = read('<I7i7i7', stored, 2)
    else
      wide = (rare or helpers()).read_wide(stored, tag, n1, n2, n3)
      a, b, c, last = wide[1], wide[2], wide[3], wide.last
    end
  end
  -- A clock behind the last write by at most a second is late: the last write is now. Behind by more it was set back,
  -- and the state moves with it: no time has passed.
  local at, shift = now, 0
  if last and last > now then
    if last - now <= 1000000 then at = last else shift = now - last end
  end
  stored = last and stored or false
  local bucket

  if tag == 1 or tag == 3 then
    -- Limit: capacity, units that come back per microsecond, units in a token, their code, tokens that need not wait.
    local capacity, rate, units, code, free = n1, n2, n3, n4, n5
    local debt, excess = 0, 0
    if last then
      local units_then = units
      if x then
        local code_then = x % 2048
        debt = (x - code_then) / 2048
        if code_then ~= code then units_then = floor(code_then / 16) * 10 ^ (code_then % 16) end
      else
        debt, units_then = a, b
      end
      if units_then ~= units or debt > capacity * units or wide and (wide.excess or wide.due) then
        debt, excess = (rare or helpers()).debt(debt, units_then, last, wide, capacity, rate, units)
      elseif last < now then
        local elapsed = now - last
        debt = elapsed >= ceil(debt / rate) and 0 or debt - elapsed * rate
      end
    end
    bucket = {
      kind = tag, shadow = shadow, cost = cost, allowed = false, stored = stored, at = at, shift = shift,
      room = floor((capacity * units - debt) / units), delay = 0,
      debt = debt, excess = excess, rate = rate, units = units, code = code, capacity = capacity,
    }
    if tag == 3 then bucket.free, bucket.delay = free, max(0, ceil((debt - free * units) / rate)) end

  elseif tag == 4 then
    local limit, count, from, to, is_first = nil, 0, nil, nil, false
    if last then
      last = last + shift
      if x then count, from = x, last else count, from = a, b + shift end
    end
    local due = wide and wide.due
    if kind == 7 then
      -- Limit: how much a window admits, the four borders of three windows.
      limit = n1
      if at < n2 or at >= n5 then return end
      from, to = n2, n3
      if at >= n4 then from, to = n4, n5 elseif at >= n3 then from, to = n3, n4 end
      if not last or last < from then count = 0 end
    else
      -- Limit: how much a window admits, its length, its phase, whether the first charge opens a window.
      local window, phase, first = n2, n3, n4
      limit = n1
      if first == 0 then
        from = floor((at - phase) / window) * window + phase
        if not last or last < from then count = 0 end
      else
        is_first = true
        from = last and floor((last - from) / window) * window + from or at
        for i = 1, due and #due or 0 do
          local till = due[i].till
          if count == 0 or till >= from + window then count, from = 0, till end
          count = count + due[i].tokens
        end
        due = nil
        if count == 0 or at >= from + window then count, from = 0, at end
      end
      to = from + window
    end
    for i = 1, due and #due or 0 do
      if due[i].till >= from then count = count + due[i].tokens end
    end
    bucket = {
      kind = 4, shadow = shadow, cost = cost, allowed = false, stored = stored, at = at, shift = shift,
      limit = limit, room = max(0, limit - count), used = count, from = from, to = to, is_first = is_first,
    }

  elseif tag == 2 then
    -- Limit: tokens that come together, interval, capacity, whether ticks lie on the clock.
    local count, interval, capacity, aligned = n1, n2, n3, n4
    local used, anchor, excess = 0, now, 0
    local used_then, anchor_then, excess_then = 0, now, 0
    if last then
      if x then
        local since = x % 268435456
        used, anchor = (x - since) / 268435456, last - since
      else
        used, anchor = a, b
      end
      anchor, last = anchor + shift, last + shift
      if used > capacity or wide and wide.excess then
        used, excess = (rare or helpers()).usage(used, wide and wide.excess, capacity, count, interval)
      end
      -- No tick of a shorter interval credits time before the last write, and none is credited twice.
      if aligned == 1 then
        local tick = floor((shift ~= 0 and at or last) / interval) * interval
        if shift == 0 and tick < anchor then tick = floor((anchor + interval - 1) / interval) * interval end
        anchor = tick
      elseif last > anchor then
        anchor = floor((last - anchor) / interval) * interval + anchor
      end
      used_then, anchor_then, excess_then = used, anchor, excess
      if excess > 0 or wide and wide.due then
        local credited = (rare or helpers()).credited
        for _, lease in ipairs(wide and wide.due or {}) do
          local till = lease.till
          used, anchor, excess = credited(used, anchor, excess, last, till, count, interval)
          local fits = min(lease.tokens, capacity - used)
          if used == 0 and fits > 0 then anchor = aligned == 1 and floor(till / interval) * interval or till end
          used, excess, last = used + fits, excess + lease.tokens - fits, till
        end
        used, anchor, excess = credited(used, anchor, excess, last, at, count, interval)
      else
        local ticks = max(0, floor((at - anchor) / interval))
        anchor = anchor + ticks * interval
        used = ticks >= ceil(used / count) and 0 or used - ticks * count
      end
    end
    bucket = {
      kind = 2, shadow = shadow, cost = cost, allowed = false, stored = stored, at = at, shift = shift,
      room = capacity - used, used = used, anchor = anchor, excess = excess, capacity = capacity, count = count,
      interval = interval, is_aligned = aligned == 1,
      used_then = used_then, anchor_then = anchor_then, excess_then = excess_then,
    }

  else
    -- Limit: what the estimate may reach, window, whether the first charge opens it.
    local limit, window, first = n1, n2, n3
    local previous, current, from = 0, 0, at
    if last then
      local start
      if x then
        current = x % 1048576
        previous, start = (x - current) / 1048576, 0
      else
        previous, current, start = a, b, c + shift
      end
      last = last + shift
      -- A lease that has ended is a charge at its end; after the last of them comes now.
      local due = wide and wide.due or nil
      for i = 1, due and #due + 1 or 1 do
        local lease = due and due[i]
        local instant = lease and lease.till or at
        local phase = first == 1 and start or 0
        from = floor((instant - phase) / window) * window + phase
        local windows = (from - (floor((last - phase) / window) * window + phase)) / window
        if windows == 1 then
          previous, current = current, 0
        elseif windows ~= 0 then
          previous, current = 0, 0
        end
        start, last = from, instant
        if lease then
          local weightless = previous == 0 and 0 or window - floor((window - 1) / previous)
          if current == 0 and weightless <= instant - from then
            previous, start = 0, first == 1 and instant or floor(instant / window) * window
          end
          current = current + lease.tokens
        end
      end
    end
    local previous_then, from_then = previous, from
    -- An idle counter has no phase of its own.
    local weightless = previous == 0 and 0 or window - floor((window - 1) / previous)
    if current == 0 and weightless <= at - from then
      previous, from = 0, first == 1 and at or floor(at / window) * window
    end
    local left = window - (at - from)
    local weight = 0
    if previous * left < 9007199254740992 then weight = floor(previous * left / window)
    else weight = (rare or helpers()).weighted(previous, left, window) end
    bucket = {
      kind = 6, shadow = shadow, cost = cost, allowed = false, stored = stored, at = at, shift = shift,
      limit = limit, room = max(0, limit - weight - current), previous = previous, current = current, from = from, to = from + window,
      window = window, is_first = first == 1, previous_then = previous_then, from_then = from_then,
    }
  end

  if wide then
    bucket.foreign = wide.foreign
    if wide.ledger then
      rare.note_ledger(bucket, wide.ledger)
      bucket.is_reported = mode >= 2
    end
  end
  return bucket
end

-- The state of a bucket after a charge (negative: a refund), and when it will be idle; nothing if it is idle. If it did
-- not change, only the shift of a clock step is written.
local function close(bucket, take, changed)
  local tag, at, out = bucket.kind, bucket.at, bucket.ledger
  -- A compact state has 52 bits for the instant: not before 1970, nor after 2112.
  local high = floor(at / 281474976710656)
  local is_compact = high >= 0 and high < 16 and not out
  local x, wide, excess, idle_at
  if tag == 1 or tag == 3 then
    local debt, units = bucket.debt, bucket.units
    excess = bucket.excess
    if take < 0 then
      excess = max(0, excess - max(0, -take - ceil(debt / units)))
      debt = take <= -bucket.capacity and 0 or max(0, debt + take * units)
    else
      debt = debt + take * units
    end
    if debt == 0 and excess == 0 and not out then return end
    idle_at = at + ceil(debt / bucket.rate)
    if is_compact and bucket.code > 0 and debt < 536870912 then x = debt * 2048 + bucket.code end
    if excess > 0 then
      idle_at = max(idle_at, min(idle_at + excess * units / bucket.rate + 1000, at + 31622400000000))
      wide = pack('<BI7I7I7I7I7I7i7', tag + 16, excess, bucket.capacity, bucket.rate, units, debt, units, at)
    elseif not x then
      wide = pack('<BI7I7i7', tag, debt, units, at)
    end

  elseif tag == 4 then
    local used = max(0, bucket.used + take)
    if used == 0 and not out then return end
    idle_at = bucket.to
    if is_compact and used < 1099511627776 and not bucket.is_first then x = used end
    if not x then wide = pack('<BI7i7i7', 4, used, bucket.from, at) end

  elseif tag == 2 then
    local used, anchor, count, interval = bucket.used_then, bucket.anchor_then, bucket.count, bucket.interval
    excess = bucket.excess_then
    if changed then
      used, anchor, excess = max(0, bucket.used + take), bucket.anchor, bucket.excess
      if take < 0 then excess = max(0, excess - max(0, -take - bucket.used)) end
      if bucket.used == 0 and take > 0 then anchor = bucket.is_aligned and floor(at / interval) * interval or at end
    end
    if used == 0 and excess == 0 and not out then return end
    idle_at = anchor + ceil(used / count) * interval
    if is_compact and used < 4096 and at >= anchor and at - anchor < 268435456 then x = used * 268435456 + at - anchor end
    if excess > 0 then
      idle_at = max(idle_at, min(anchor + ceil((used + excess) / count) * interval, at + 31622400000000))
      wide = pack('<BI7I7I7I7I7i7i7', 18, excess, bucket.capacity, count, interval, used, anchor, at)
    elseif not x then
      wide = pack('<BI7i7i7', 2, used, anchor, at)
    end

  else
    local previous, current, from, window = bucket.previous_then, bucket.current, bucket.from_then, bucket.window
    if changed then previous, current, from = bucket.previous, max(0, current + take), bucket.from end
    local left = (previous == 0 and 0 or window - floor((window - 1) / previous)) - (at - from)
    if current > 0 then left = window - (at - from) + window - floor((window - 1) / current) end
    if left <= 0 and changed and not out then return end
    idle_at = at + left
    if is_compact and previous < 1048576 and current < 1048576 and not bucket.is_first then x = previous * 1048576 + current end
    if not x then wide = pack('<BI4I4i7i7', 6, previous, current, from, at) end
  end

  if out then return wide .. rare.pack_ledger(out), rare.kept_until(bucket, idle_at) end
  return wide or pack('<BI6I5', tag + 8 + 16 * high, at - high * 281474976710656, x), idle_at
end

-- Writes a bucket after a charge or refund, and answers its state. Idle buckets are deleted; others expire when they
-- would be idle.
local function write(key, bucket, take, changed)
  local state, idle_at
  if bucket.kind == 5 then
    idle_at = log.close(key, bucket, take, changed)
  else
    state, idle_at = close(bucket, take, changed)
  end
  if not idle_at then
    if bucket.stored then call('DEL', key) end
  else
    local ttl = max(1, ceil((idle_at - now) / 1000))
    if injected then ttl = max(ttl, 3600000) end
    -- The absolute form is cheaper, and so are digits that Redis need not format; injected time is not that of Redis.
    local form, expiry = 'PXAT', digits('%d', floor(now / 1000) + ttl)
    if injected then form, expiry = 'PX', ttl end
    if not state then
      call('PEXPIRE', key, ttl)
    elseif not bucket.stored and count > 1 then
      -- MGET ignores what is not a string. SET with GET does not: a log of ours is old, anything else is foreign.
      local before = redis.pcall('SET', key, state, form, expiry, 'GET')
      if type(before) == 'table' then
        if before.err:sub(1, 9) ~= 'WRONGTYPE' then error(before) end
        bucket.foreign = not (rare or helpers()).is_log(key)
        call('SET', key, state, form, expiry)
      end
    else
      call('SET', key, state, form, expiry)
    end
  end
  if bucket.shift ~= 0 or bucket.is_shifted then steps = steps + 1 end
  if bucket.foreign then foreign = foreign + 1 end
  return state or ''
end
