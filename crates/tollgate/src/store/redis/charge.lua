-- One request against all of its buckets: every one is asked, then all are charged or none is.
--
-- A translation of `tollgate-core`, where each formula has its reasons. Every number is an integer below 2^53, which
-- a double holds exactly; a quotient of two such numbers never rounds across an integer, so floor and ceil are exact.
--
-- KEYS      the bucket of each hit
-- ARGV[1]   charge, peek, refund, undo, reset, lease, roll (below), or debit: a charge of as much of the cost as there
--           is. `undo once` and `debit once` have one hit and a second key, the receipt: where it is, nothing is done, and
--           what it says is the answer
-- ARGV[2]   microseconds since the epoch where time is injected; empty: Redis' own clock
-- ARGV[2+i] hit i: algorithm, shadow, cost, patience, and the numbers of its limit (each branch below says which)
-- ARGV[3+n] undo: the mark of each charge after all n hits, an instant and a rest (`core::Mark`)
--           lease, which has one hit: node, sequence, left, returned, least, want, term (`core::lease::Call`)
-- ARGV[#]   once: for how long the receipt is kept, in milliseconds
--
-- Answers   now, whether the request passes, clock steps, foreign values, and for each hit what was stored before:
--           from that the node computes the numbers it tells. For a log, which may be long, the numbers themselves.
--           In place of that, a settlement (`once`) and a debit answer how much they moved.
--           A lease ends with what was granted, what was kept, and for how long; -1 where the call came too late.
--           If a calendar's windows do not reach to now: only now. Nothing was done then.

local read, pack, floor, ceil, max, min = struct.unpack, struct.pack, math.floor, math.ceil, math.max, math.min

-- Algorithms. The number is also the first byte of what is stored; a calendar's windows are stored as any other.
local TOKENS, INTERVAL, QUEUE, FIXED, LOG, COUNTER, CALENDAR = 1, 2, 3, 4, 5, 6, 7
local HIT = '<BBI7I7'       -- algorithm, shadow, cost, patience; the limit's numbers begin at byte 17
local OWED = '<BI7I7i7'     -- TOKENS, QUEUE: debt, units in a token, last write
local USED = '<BI7i7i7'     -- INTERVAL: used, anchor, last write. FIXED: count, start of the window, last write
local COUNTS = '<BI4I4i7i7' -- COUNTER: previous and current count, start of the window, last write
local HEAD = '<BI4i7'       -- LOG, the first element of a list: cost of all entries, last write
local ENTRY = '<i7I4'       -- LOG, the other elements, oldest first: instant, cost
-- Usage above the capacity of the limit in use: 16 is added to the first byte, and these stand before the other numbers:
-- tokens, and capacity, refill and period of the limit that wrote them.
local EXCESS, EXCESS_FLAG, EXCESS_LIFETIME = '<BI7I7I7I7', 16, 31622400000000
local LENGTHS = { 22, 22, 22, 22, 12, 23, [17] = 50, [18] = 50, [19] = 50 }
local LONGEST = 10001       -- LOG: the most elements
local LEASE, LEASED = '<c8I7I7i7', 29 -- after any state, for each node that borrowed: node, sequence, tokens, end
local MOST_HOLDERS = 64
local STEP, CHANGE = 1, 2   -- what is written: only that the clock went back, or all

local verb, injected = ARGV[1], ARGV[2] ~= ''
local receipt
if verb == 'undo once' or verb == 'debit once' then
  verb, receipt = verb:sub(1, -6), table.remove(KEYS)
end
local now
if injected then
  now = tonumber(ARGV[2])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Who is there? ARGV[3]: a node, and for how long it says it is; no time: it leaves. Answers how many there are, and how
-- many of them come before it.
if verb == 'roll' then
  local MEMBER = '<c8i7' -- node, until when
  local node, term = read(MEMBER, ARGV[3])
  local roll = redis.pcall('GET', KEYS[1])
  local there, before = {}, 0
  for place = 1, type(roll) == 'string' and #roll - 14 or 0, 15 do
    local other, till = read(MEMBER, roll, place)
    if other ~= node and till > now then
      -- One that is there for too long is from before the clock was set back.
      there[#there + 1] = pack(MEMBER, other, min(till, now + max(term, 3000000)))
      if other < node then before = before + 1 end
    end
  end
  if term > 0 then there[#there + 1] = pack(MEMBER, node, now + term) end
  if #there > 0 then redis.call('SET', KEYS[1], table.concat(there), 'PX', max(1, ceil(max(term, 3000000) / 1000)))
  else redis.call('DEL', KEYS[1]) end
  return { now, #there, before }
end

-- What was settled is settled.
local moved = receipt and redis.call('GET', receipt)
if moved then return { now, 1, 0, 0, moved } end

-- Whether something may be a state of ours, with or without leases behind it.
local function ours(state)
  local length = LENGTHS[state:byte()]
  return length and #state >= length and (#state - length) % LEASED == 0
end

-- The instant to compute at, and by how much to move what is stored. A clock behind the last write by at most a second
-- is late: the last write is now. Behind by more it was set back, and the state moves with it: no time has passed.
local function instant(last)
  if last <= now then return now, 0 end
  if last - now <= 1000000 then return last, 0 end
  return now, now - last
end

-- The start of the window around an instant, windows of that length beginning at `phase`.
local function window_start(at, length, phase)
  return floor((at - phase) / length) * length + phase
end

-- A debt after some time.
local function lowered(debt, rate, elapsed)
  return elapsed >= ceil(debt / rate) and 0 or debt - elapsed * rate
end

-- Usage divided between a bucket of this capacity and its excess.
local function split(usage, capacity)
  usage = min(usage, 9007199254740991)
  return min(usage, capacity), max(0, usage - capacity)
end

-- Whether excess was written under these numbers. If not, usage is divided anew.
local function is_under(excess, capacity, refill, period)
  return excess and excess.capacity == capacity and excess.refill == refill and excess.period == period
end

-- What is used of an interval bucket, its last tick, and its excess, at a later instant. Ticks repay what is used first.
local function credited(used, anchor, excess, at, count, interval)
  local ticks = max(0, floor((at - anchor) / interval))
  anchor = anchor + ticks * interval
  if ticks < ceil(used / count) then return used - ticks * count, anchor, excess end
  if ticks >= ceil((used + excess) / count) then return 0, anchor, 0 end
  return 0, anchor, excess - (ticks * count - used)
end

-- How far into a window of a counter the previous count must be to weigh nothing.
local function weightless(count, window)
  return count == 0 and 0 or window - floor((window - 1) / count)
end

-- floor(count * left / window), and what is left over. The product may be beyond 2^53: long division, seven bits of the
-- count at a time (a window is at most 2^45 microseconds).
local function weighted(count, left, window)
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

-- Debt and excess after some time, which repays the debt first and then whole tokens of the excess.
local function repaid(debt, excess, rate, units, elapsed)
  if excess == 0 then return lowered(debt, rate, elapsed), 0 end
  if elapsed >= EXCESS_LIFETIME then return lowered(debt, rate, elapsed), 0 end
  if elapsed < ceil(debt / rate) then return debt - elapsed * rate, excess end
  local tokens, rest = weighted(rate, elapsed, units)
  return 0, max(0, excess - tokens - floor((rest - debt) / units))
end

-- Both counts of a counter, and the start of its window, at a later instant.
local function rolled(previous, current, start, last, at, window, first)
  local phase = first == 1 and start or 0
  local from = window_start(at, window, phase)
  local windows = (from - window_start(last, window, phase)) / window
  if windows == 1 then return current, 0, from end
  if windows ~= 0 then return 0, 0, from end
  return previous, current, from
end

-- The same of one that is as good as new, which has no phase of its own.
local function renewed(previous, current, from, at, window, first)
  if current == 0 and weightless(previous, window) <= at - from then
    return 0, 0, first == 1 and at or window_start(at, window, 0)
  end
  return previous, current, from
end

-- What is out on lease stands behind the state and takes room beside it. A lease that has ended is a take at its end.
-- Most buckets have none, so all this is made only for a request that meets one.
local lending
local function leases()
  lending = {}

  -- Takes the leases off a state: the state alone, those that have ended, earliest first, and those that have not.
  function lending.split(state)
    local length = LENGTHS[state:byte()]
    local at, shift = instant((read('<i7', state, length - 6)))
    local due, out = {}, {}
    for place = length + 1, #state, LEASED do
      local node, sequence, tokens, till = read(LEASE, state, place)
      local lease = { node = node, sequence = sequence, tokens = tokens, till = till + shift }
      local to = shift == 0 and lease.till <= at and due or out
      to[#to + 1] = lease
    end
    table.sort(due, function(a, b) return a.till < b.till end)
    return state:sub(1, length), due, out
  end

  -- Notes in a bucket what is out.
  function lending.note(bucket, out)
    bucket.out, bucket.held, bucket.till = nil, 0, 0
    for i = 1, #out do
      bucket.out, bucket.held, bucket.till = out, bucket.held + out[i].tokens, max(bucket.till, out[i].till)
    end
    bucket.room = max(0, bucket.whole - bucket.held)
  end

  function lending.pack(out)
    local packed = {}
    for i = 1, #out do packed[i] = pack(LEASE, out[i].node, out[i].sequence, out[i].tokens, out[i].till) end
    return table.concat(packed)
  end

  -- Lends to a node, after it has told what became of its lease.
  function lending.lend(bucket, call)
    local node, sequence, left, returned, least, want, term = read('<c8I7I7I7I7I7I7', call)
    local out, known, holders, others = {}, nil, 1, 0
    for _, lease in ipairs(bucket.out or {}) do
      if lease.node == node then
        known = lease
      else
        out[#out + 1], others = lease, others + lease.tokens
        if lease.tokens > 0 then holders = holders + 1 end
      end
    end
    if known and known.sequence >= sequence then return 0, 0, -1 end
    local held = known and known.tokens or 0
    local kept = min(left, held)
    local spent = held - kept - min(returned, held - kept)
    if bucket.excess then
      local fits = min(spent, bucket.whole)
      bucket.excess, spent = bucket.excess + spent - fits, fits
    end
    local room = max(0, bucket.whole - spent - others - kept)
    local granted = 0
    if bucket.algorithm ~= QUEUE and #out < MOST_HOLDERS and room >= least then
      granted = min(max(want, least), max(floor(room / (2 * holders)), least))
    end
    local till = bucket.at + term
    if bucket.to then till = min(till, bucket.to - 1) end -- a lease dies with its window
    if granted > 0 or known then
      out[#out + 1] = { node = node, sequence = sequence, tokens = kept + granted, till = till }
      bucket.whole = max(0, bucket.whole - spent)
      lending.note(bucket, out)
      bucket.take, bucket.write = spent, CHANGE
    elseif bucket.shift ~= 0 then
      bucket.write = STEP
    end
    return granted, kept, till - bucket.at
  end

  -- What is left of a bucket that is forgotten: an empty state and what is out on lease.
  function lending.forget(key, state, ttl)
    local _, _, out = lending.split(state)
    local algorithm = state:byte() % EXCESS_FLAG
    local empty
    if algorithm == TOKENS or algorithm == QUEUE then
      local units = read('<I7', state, LENGTHS[state:byte()] - 13)
      empty = pack(OWED, algorithm, 0, units, now)
    elseif algorithm == COUNTER then
      empty = pack(COUNTS, algorithm, 0, 0, now, now)
    elseif algorithm == LOG then
      empty = pack(HEAD, algorithm, 0, now)
    else
      empty = pack(USED, algorithm, 0, now, now)
    end
    if #out == 0 then return end
    empty = empty .. lending.pack(out)
    if algorithm == LOG then redis.call('RPUSH', key, empty) else redis.call('SET', key, empty) end
    -- As long as before: that was enough for what is out to end and to be earned back.
    redis.call('PEXPIRE', key, (ttl < 0 or injected) and max(ttl, 3600000) or max(ttl, 1))
  end
end

if verb == 'reset' then
  for _, key in ipairs(KEYS) do
    local state = redis.pcall('GET', key)
    if type(state) == 'table' then state = redis.pcall('LINDEX', key, 0) end
    local ttl = redis.call('PTTL', key)
    redis.call('DEL', key)
    if type(state) == 'string' and ours(state) and #state > LENGTHS[state:byte()] then
      if not lending then leases() end
      lending.forget(key, state, ttl)
    end
  end
  return { now, 1, 0, 0 }
end

-- Logs are lists and rare; what they need stands in one place, and is made only for a request that has one.
local log
local function logs()
  log = {}

  -- Calls `each` with the entries from a place on, oldest first, until it answers something.
  local function entries(key, from, each)
    while true do
      local some = redis.call('LRANGE', key, from, from + 63)
      for i = 1, #some do
        local at, cost = read(ENTRY, some[i])
        local answer = each(at, cost)
        if answer then return answer end
      end
      if #some < 64 then return end
      from = from + 64
    end
  end

  local function is_log(key, head)
    local newest = redis.call('LINDEX', key, -1)
    return ours(head) and head:byte() == LOG and (newest == head or #newest == 11)
  end

  -- Leases that have ended become entries, as soon as something is written.
  local function settle(bucket, due)
    bucket.due = {}
    for _, lease in ipairs(due) do
      local newest = bucket.due[#bucket.due]
      if lease.tokens == 0 or lease.till <= bucket.at - bucket.window then
        -- Nothing that counts.
      elseif newest and newest.at == lease.till then
        newest.cost, bucket.alive = newest.cost + lease.tokens, bucket.alive + lease.tokens
      else
        bucket.due[#bucket.due + 1] = { at = lease.till, cost = lease.tokens }
        bucket.alive = bucket.alive + lease.tokens
      end
    end
  end

  -- Limit: how much any window admits, window.
  function log.open(key, hit)
    local limit, window = read('<I7I7', hit, 17)
    local bucket = { algorithm = LOG, limit = limit, window = window, at = now, shift = 0, dead = 0, alive = 0,
                     due = {}, full = window }
    local head = redis.pcall('LINDEX', key, 0)
    if type(head) == 'table' then
      if head.err:sub(1, 9) ~= 'WRONGTYPE' then error(head) end
      -- No list. A state of another algorithm is just old; anything else is foreign.
      local other = redis.pcall('GET', key)
      bucket.replace = true
      bucket.strange = type(other) == 'table' or not ours(other)
    elseif head and not is_log(key, head) then
      bucket.replace, bucket.strange = true, true
    elseif head then
      local due, out = {}, {}
      if #head > LENGTHS[LOG] then
        if not lending then leases() end
        head, due, out = lending.split(head)
      end
      local _, sum, last = read(HEAD, head)
      bucket.known, bucket.sum, bucket.alive = true, sum, sum
      bucket.at, bucket.shift = instant(last)
      entries(key, 1, function(at, cost)
        if at + bucket.shift > bucket.at - window then return true end
        bucket.dead, bucket.alive = bucket.dead + 1, bucket.alive - cost
      end)
      settle(bucket, due)
      bucket.whole = limit - bucket.alive
      if #out > 0 then lending.note(bucket, out) end
    end
    bucket.whole = limit - bucket.alive
    bucket.room = max(0, bucket.whole - (bucket.held or 0))
    return bucket
  end

  -- The clock was set back: every instant moves with it.
  local function move(key, bucket)
    local moved = { pack(HEAD, LOG, bucket.sum, bucket.at) .. (bucket.out and lending.pack(bucket.out) or '') }
    entries(key, 1, function(at, cost) moved[#moved + 1] = pack(ENTRY, at + bucket.shift, cost) end)
    redis.call('DEL', key)
    for i = 1, #moved do redis.call('RPUSH', key, moved[i]) end
    bucket.shift, bucket.moved = 0, true
  end

  local function add(key, bucket, cost)
    local newest = bucket.alive > 0 and redis.call('LINDEX', key, -1)
    local at, before = 0, 0
    if newest then at, before = read(ENTRY, newest) end
    if newest and at == bucket.at then
      redis.call('LSET', key, -1, pack(ENTRY, at, before + cost))
    else
      redis.call('RPUSH', key, pack(ENTRY, bucket.at, cost))
    end
    bucket.alive = bucket.alive + cost
  end

  local function give_back(key, bucket, cost)
    local left = min(cost, bucket.alive)
    bucket.alive = bucket.alive - left
    while left > 0 do
      local at, before = read(ENTRY, redis.call('RPOP', key))
      if before > left then redis.call('RPUSH', key, pack(ENTRY, at, before - left)) end
      left = max(0, left - before)
    end
  end

  -- Whether an entry of that instant still counts; or any since.
  function log.counts(key, bucket, instant, since)
    if instant <= bucket.at - bucket.window then return false end
    local due = bucket.due[#bucket.due]
    if since and due and due.at >= instant then return true end
    for place = -1, -LONGEST, -1 do
      local entry = redis.call('LINDEX', key, place)
      if not entry or #entry ~= 11 then return false end
      local at = read(ENTRY, entry) + bucket.shift
      if at <= bucket.at - bucket.window then return false end
      if since then return at >= instant end
      if at <= instant then return at == instant end
    end
  end

  -- Takes a cost out of the entry of an instant, or of the oldest since. Newer ones step aside meanwhile.
  local function take_out(key, bucket, cost, instant, since)
    local newer = {}
    while true do
      local entry = redis.call('RPOP', key)
      if not entry then break end
      if read(ENTRY, entry) < instant then
        redis.call('RPUSH', key, entry)
        break
      end
      newer[#newer + 1] = entry
    end
    for i = #newer, 1, -1 do
      local at, before = read(ENTRY, newer[i])
      local part = (since or at == instant) and min(cost, before) or 0
      cost, bucket.alive = cost - part, bucket.alive - part
      if before > part then redis.call('RPUSH', key, pack(ENTRY, at, before - part)) end
    end
  end

  -- Writes what changed; answers when the log will be empty.
  function log.close(key, bucket)
    if bucket.replace then redis.call('DEL', key) end
    if bucket.shift ~= 0 then move(key, bucket) end
    if bucket.write == CHANGE then
      if bucket.known then redis.call('LPOP', key, 1 + bucket.dead) end
      bucket.dead = 0
      for _, entry in ipairs(bucket.due) do redis.call('RPUSH', key, pack(ENTRY, entry.at, entry.cost)) end
      bucket.due = {}
      if bucket.take > 0 then add(key, bucket, bucket.take)
      elseif bucket.undone then for _, undone in ipairs(bucket.undone) do take_out(key, bucket, unpack(undone)) end
      else give_back(key, bucket, -bucket.take) end
      if bucket.alive > 0 or bucket.out then
        redis.call('LPUSH', key, pack(HEAD, LOG, bucket.alive, bucket.at) .. (bucket.out and lending.pack(bucket.out) or ''))
      end
    end
    if not redis.call('LINDEX', key, 1) then return bucket.out and bucket.at end
    return (read(ENTRY, redis.call('LINDEX', key, -1))) + bucket.window
  end

  -- The wait until entries of so much cost have left.
  local function until_left(key, bucket, cost)
    local function leaves(at, part)
      cost = cost - part
      if cost <= 0 then return at + bucket.window - now end
    end
    local wait = entries(key, 1 + bucket.dead, function(at, part) return leaves(at + bucket.shift, part) end)
    for _, entry in ipairs(bucket.due) do wait = wait or leaves(entry.at, entry.cost) end
    return wait
  end

  -- The wait until a cost fits, beside what is out on lease.
  local function until_fits(key, bucket, cost)
    local held = bucket.held or 0
    if cost > bucket.limit then return -1 end
    if cost + held > bucket.limit then return bucket.till + bucket.window - now end
    return until_left(key, bucket, bucket.alive + cost + held - bucket.limit)
  end

  -- Allowed, remaining, the waits to a retry, to an empty log and to more room, -1 where there is none, and when.
  function log.numbers(key, bucket, allowed, asked)
    local held = bucket.held or 0
    local room = max(0, bucket.limit - bucket.alive - held)
    local retry, reset, more = 0, 0, -1
    if not allowed then retry = until_fits(key, bucket, asked) end
    if held > 0 then
      reset = bucket.till + bucket.window - now
    elseif bucket.alive > 0 then
      local newest = bucket.due[#bucket.due]
      local at = newest and newest.at or (read(ENTRY, redis.call('LINDEX', key, -1))) + bucket.shift
      reset = at + bucket.window - now
    end
    if bucket.alive + held > 0 then more = until_fits(key, bucket, room + 1) end
    return pack('<BBI7i7i7i7i7', LOG, allowed and 1 or 0, room, retry, reset, more, bucket.at)
  end
end

-- First, bring every bucket to now and ask it. `room` is the largest cost it would admit.
local stored = redis.call('MGET', unpack(KEYS))
local buckets, hits = {}, {}
local passes, strange = true, 0
for i, key in ipairs(KEYS) do
  local hit = ARGV[i + 2]
  local algorithm, shadow, cost, patience = read(HIT, hit)
  local bucket = buckets[key]
  if not bucket then
    local state, foreign = stored[i], false
    local kind = algorithm == CALENDAR and FIXED or algorithm
    local due, out, exceeded
    if state and (state:byte() ~= kind or #state ~= LENGTHS[kind]) then
      if not ours(state) or state:byte() % EXCESS_FLAG ~= kind then
        foreign = not ours(state)
        state = false
      else
        if #state > LENGTHS[state:byte()] then
          if not lending then leases() end
          state, due, out = lending.split(state)
        end
        if state:byte() > EXCESS_FLAG then
          local _, tokens, capacity, refill, period = read(EXCESS, state)
          exceeded = { tokens = tokens, capacity = capacity, refill = refill, period = period }
          state = string.char(kind) .. state:sub(30)
        end
      end
    end
    local at, shift = now, 0

    if algorithm == TOKENS or algorithm == QUEUE then
      -- Limit: capacity, units that come back a microsecond, units in a token, tokens that need not wait.
      local capacity, rate, units, free = read('<I7I7I7I7', hit, 17)
      local debt, delay, excess = 0, 0, 0
      if state then
        local _, owed, units_then, last = read(OWED, state)
        at, shift = instant(last)
        debt, excess = owed, exceeded and exceeded.tokens or 0
        if units_then == units and is_under(exceeded, capacity, rate, units) then
          debt = min(debt, capacity * units)
        elseif units_then == units and debt <= capacity * units then
          local covered = min(excess, floor((capacity * units - debt) / units))
          debt, excess = debt + covered * units, excess - covered
        else
          debt, excess = split(ceil(debt / max(1, units_then)) + excess, capacity)
          debt = debt * units
        end
        for i = 1, due and #due or 0 do
          debt, excess = repaid(debt, excess, rate, units, max(0, due[i].till - last))
          local fits = min(due[i].tokens, floor((capacity * units - debt) / units))
          debt, excess, last = debt + fits * units, excess + due[i].tokens - fits, due[i].till
        end
        debt, excess = repaid(debt, excess, rate, units, max(0, now - last))
      end
      if algorithm == QUEUE then delay = max(0, ceil((debt - free * units) / rate)) end
      bucket = { debt = debt, rate = rate, units = units, delay = delay, capacity = capacity, excess = excess,
                 room = floor((capacity * units - debt) / units) }
      if out or verb == 'lease' then bucket.full = ceil(capacity * units / rate) end

    elseif algorithm == INTERVAL then
      -- Limit: tokens that come together, interval, capacity, whether ticks lie on the clock.
      local count, interval, capacity, aligned = read('<I7I7I7I7', hit, 17)
      local used, anchor, used_then, anchor_then, excess, excess_then = 0, now, 0, now, 0, 0
      if state then
        local _, stored_used, stored_anchor, last = read(USED, state)
        at, shift = instant(last)
        anchor, last = stored_anchor + shift, last + shift
        if is_under(exceeded, capacity, count, interval) then
          used, excess = min(stored_used, capacity), exceeded.tokens
        else
          used, excess = split(stored_used + (exceeded and exceeded.tokens or 0), capacity)
        end
        -- No tick of a shorter interval credits time before the last write, and none is credited twice.
        if aligned == 1 then
          local tick = window_start(shift ~= 0 and at or last, interval, 0)
          if shift == 0 and tick < anchor then tick = window_start(anchor + interval - 1, interval, 0) end
          anchor = tick
        elseif last > anchor then
          anchor = window_start(last, interval, anchor)
        end
        used_then, anchor_then, excess_then = used, anchor, excess
        for i = 1, due and #due or 0 do
          local till = due[i].till
          if till - last >= EXCESS_LIFETIME then excess = 0 end
          used, anchor, excess = credited(used, anchor, excess, till, count, interval)
          local fits = min(due[i].tokens, capacity - used)
          if used == 0 and fits > 0 then anchor = aligned == 1 and window_start(till, interval, 0) or till end
          used, excess, last = used + fits, excess + due[i].tokens - fits, till
        end
        if at - last >= EXCESS_LIFETIME then excess = 0 end
        used, anchor, excess = credited(used, anchor, excess, at, count, interval)
      end
      bucket = { used = used, anchor = anchor, used_then = used_then, anchor_then = anchor_then, count = count,
                 interval = interval, aligned = aligned == 1, excess = excess, excess_then = excess_then,
                 capacity = capacity, room = capacity - used }
      if out or verb == 'lease' then bucket.full = ceil(capacity / count) * interval end

    elseif kind == FIXED then
      local limit, count, last, from, to = nil, 0, nil, nil, nil
      if state then
        local _, stored_count, start, wrote = read(USED, state)
        at, shift = instant(wrote)
        count, from, last = stored_count, start + shift, wrote + shift
      end
      if algorithm == CALENDAR then
        -- Limit: how much a window admits, the four borders of three windows.
        local first, second, third, fourth
        limit, first, second, third, fourth = read('<I7i7i7i7i7', hit, 17)
        if at < first or at >= fourth then return { now } end
        from, to = first, second
        if at >= third then from, to = third, fourth elseif at >= second then from, to = second, third end
        if not last or last < from then count = 0 end
      else
        -- Limit: how much a window admits, window, phase, whether the first take opens a window.
        local window, phase, first
        limit, window, phase, first = read('<I7I7I7I7', hit, 17)
        if first == 0 then
          from = window_start(at, window, phase)
          if not last or last < from then count = 0 end
        else
          from = last and window_start(last, window, from) or at
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
      bucket = { used = count, from = from, to = to, room = max(0, limit - count), full = to - from }

    elseif algorithm == COUNTER then
      -- Limit: what the estimate may reach, window, whether the first take opens it.
      local limit, window, first = read('<I7I7I7', hit, 17)
      local previous, current, from = 0, 0, now
      if state then
        local _, stored_previous, stored_current, start, last = read(COUNTS, state)
        at, shift = instant(last)
        previous, current, start, last = stored_previous, stored_current, start + shift, last + shift
        for i = 1, due and #due or 0 do
          local till = due[i].till
          previous, current, start = rolled(previous, current, start, last, till, window, first)
          previous, current, start = renewed(previous, current, start, till, window, first)
          current, last = current + due[i].tokens, till
        end
        previous, current, from = rolled(previous, current, start, last, at, window, first)
      end
      bucket = { window = window, previous_then = previous, current_then = current, from_then = from }
      previous, current, from = renewed(previous, current, from, at, window, first)
      bucket.previous, bucket.current, bucket.from, bucket.to = previous, current, from, from + window
      bucket.full = 2 * window
      bucket.room = max(0, limit - weighted(previous, window - (at - from), window) - current)

    else
      if not log then logs() end
      bucket = log.open(key, hit)
    end

    if algorithm ~= LOG then
      bucket.algorithm, bucket.known, bucket.at, bucket.shift = kind, state, at, shift
      bucket.strange, bucket.absent = foreign, not stored[i]
      bucket.whole = bucket.room
      if out then lending.note(bucket, out) end
    end
    bucket.asked, bucket.take = 0, 0
    buckets[key] = bucket
  end
  if verb == 'debit' then cost = min(cost, bucket.room) end
  local asked = cost + bucket.asked
  local allowed = cost == 0 or asked <= bucket.room and (bucket.delay or 0) <= patience
  if allowed or shadow == 0 then bucket.asked = asked end
  if not allowed and shadow == 0 then passes = false end
  hits[i] = { key = key, bucket = bucket, cost = cost, shadow = shadow == 1, allowed = allowed, asked = asked }
end

-- Gives back what was charged: in that window or entry, if it still counts, and nowhere else. To a bucket that refills,
-- what time has not given back since it came to this charge.
local undo = verb == 'undo' and function(key, bucket, cost, mark, rest)
  local algorithm = bucket.algorithm
  local counts
  if algorithm == TOKENS or algorithm == QUEUE then
    local price = min(cost, bucket.capacity) * bucket.units
    local left = min(bucket.debt, price, lowered(price + rest, bucket.rate, max(0, bucket.at - mark)))
    counts = left > 0
    bucket.debt, cost = bucket.debt - left, 0
  elseif algorithm == INTERVAL then
    local since = max(0, bucket.anchor - mark)
    local came, over = weighted(bucket.count, since % bucket.interval, bucket.interval)
    came = floor(since / bucket.interval) * bucket.count + came + floor((over - rest) / bucket.interval)
    cost = min(bucket.used + bucket.take, max(0, min(cost, bucket.whole + bucket.used) - max(0, came)))
    counts = cost > 0
  elseif algorithm == FIXED then
    counts = mark >= bucket.from and mark < bucket.to
  elseif algorithm == LOG then
    -- What was spent on a lease has an entry as of when that was told, no earlier than the mark.
    counts = log.counts(key, bucket, mark, rest > 0)
    if counts then
      bucket.undone = bucket.undone or {}
      bucket.undone[#bucket.undone + 1], cost = { cost, mark, rest > 0 }, 0
    end
  else
    local window = floor((mark - bucket.from) / bucket.window)
    counts = window == 0 or window == -1
    if window == -1 then bucket.previous, cost = max(0, bucket.previous - cost), 0 end
  end
  if counts then bucket.take, bucket.write = bucket.take - cost, CHANGE end
end

local granted, kept, term
if verb == 'lease' then
  if not lending then leases() end
  granted, kept, term = lending.lend(hits[1].bucket, ARGV[4])
  passes = granted >= hits[1].cost or term < 0
  hits[1].allowed = passes or hits[1].cost <= hits[1].bucket.room -- there are too many holders already
end

-- Then all are charged or none is; those on trial each on their own. A refusal writes at most that the clock went back.
if verb ~= 'peek' and verb ~= 'lease' then
  for i = 1, #hits do
    local hit = hits[i]
    local bucket = hit.bucket
    if hit.cost == 0 then
      -- Costs nothing, writes nothing.
    elseif verb == 'refund' then
      if bucket.known then bucket.take, bucket.write = bucket.take - hit.cost, CHANGE end
    elseif verb == 'undo' then
      if bucket.known then
        undo(hit.key, bucket, hit.cost, tonumber(ARGV[#KEYS + 1 + 2 * i]), tonumber(ARGV[#KEYS + 2 + 2 * i]))
      end
    elseif hit.allowed and (passes or hit.shadow) then
      bucket.take, bucket.write = bucket.take + hit.cost, CHANGE
    elseif bucket.shift ~= 0 then
      bucket.write = bucket.write or STEP
    end
  end
end

-- The receipt first: where that fails for want of room, nothing was done.
if receipt or verb == 'debit' then moved = string.format('%.0f', hits[1].cost) end
if receipt then redis.call('SET', receipt, moved, 'PX', ARGV[#ARGV]) end

-- Last, write what changed. What is as good as new is deleted; everything else lives until it would be.
local steps = 0
for key, bucket in pairs(buckets) do
  if bucket.write then
    local algorithm, at, take = bucket.algorithm, bucket.at, bucket.take
    local changed = bucket.write == CHANGE
    local state, new_at
    if algorithm == TOKENS or algorithm == QUEUE then
      local debt, excess, units, rate = bucket.debt, bucket.excess, bucket.units, bucket.rate
      if take < 0 then excess = max(0, excess - max(0, -take - ceil(debt / units))) end
      if take <= -bucket.capacity then debt = 0 else debt = max(0, debt + take * units) end
      if debt > 0 or excess > 0 or bucket.out then
        new_at, state = at + ceil(debt / rate), pack(OWED, algorithm, debt, units, at)
      end
      if excess > 0 then
        new_at = max(new_at, min(new_at + excess * units / rate + 1000, at + EXCESS_LIFETIME))
        state = pack(EXCESS, algorithm + EXCESS_FLAG, excess, bucket.capacity, rate, units) .. state:sub(2)
      end

    elseif algorithm == INTERVAL then
      local used, anchor, excess, count, interval = bucket.used_then, bucket.anchor_then, bucket.excess_then, bucket.count, bucket.interval
      if changed then
        used, anchor, excess = max(0, bucket.used + take), bucket.anchor, bucket.excess
        if take < 0 then excess = max(0, excess - max(0, -take - bucket.used)) end
        if bucket.used == 0 and take > 0 then anchor = bucket.aligned and window_start(at, interval, 0) or at end
      end
      if used > 0 or excess > 0 or bucket.out then
        new_at, state = anchor + ceil(used / count) * interval, pack(USED, INTERVAL, used, anchor, at)
      end
      if excess > 0 then
        new_at = max(new_at, min(anchor + ceil((used + excess) / count) * interval, at + EXCESS_LIFETIME))
        state = pack(EXCESS, INTERVAL + EXCESS_FLAG, excess, bucket.capacity, count, interval) .. state:sub(2)
      end

    elseif algorithm == FIXED then
      local used = max(0, bucket.used + take)
      if used > 0 or bucket.out then new_at, state = bucket.to, pack(USED, FIXED, used, bucket.from, at) end

    elseif algorithm == COUNTER then
      local previous, current, from = bucket.previous_then, bucket.current_then, bucket.from_then
      if changed then previous, current, from = bucket.previous, max(0, bucket.current + take), bucket.from end
      local left = weightless(previous, bucket.window) - (at - from)
      if current > 0 then left = bucket.window - (at - from) + weightless(current, bucket.window) end
      if left > 0 or not changed or bucket.out then new_at, state = at + left, pack(COUNTS, COUNTER, previous, current, from, at) end

    else
      new_at = log.close(key, bucket)
    end

    -- What is out on lease is used until it ends, and then has to be earned back: all of it, after debt and excess, also
    -- where it was lent under a larger limit.
    if bucket.out then
      local earned = 0
      if bucket.units then earned = bucket.held * bucket.units / bucket.rate + 1000
      elseif bucket.count then earned = (ceil(bucket.held / bucket.count) + 1) * bucket.interval end
      earned = min(max(new_at, bucket.till) + earned, bucket.till + EXCESS_LIFETIME)
      new_at = max(new_at, bucket.till + (bucket.full or 0), earned)
      if state then state = state .. lending.pack(bucket.out) end
    end
    local ttl = new_at and max(1, ceil((new_at - now) / 1000))
    if injected and ttl then ttl = max(ttl, 3600000) end
    if not ttl then
      redis.call('DEL', key)
    elseif not state then
      redis.call('PEXPIRE', key, ttl)
    elseif bucket.absent then
      -- MGET passes over what is no string. SET with GET does not: a log of ours is old, anything else is foreign.
      local before = redis.pcall('SET', key, state, 'PX', ttl, 'GET')
      if type(before) == 'table' and before.err:sub(1, 9) ~= 'WRONGTYPE' then return before end
      if type(before) == 'table' then
        local head = redis.pcall('LINDEX', key, 0)
        bucket.strange = type(head) == 'table' or not ours(head) or head:byte() ~= LOG
        redis.call('SET', key, state, 'PX', ttl)
      end
    else
      redis.call('SET', key, state, 'PX', ttl)
    end
    if bucket.shift ~= 0 or bucket.moved then steps = steps + 1 end
    if bucket.strange then strange = strange + 1 end
  end
end

if moved then return { now, 1, steps, strange, moved } end
local reply = { now, passes and 1 or 0, steps, strange }
for i = 1, #hits do
  local hit = hits[i]
  if hit.bucket.algorithm == LOG then
    reply[4 + i] = log.numbers(hit.key, hit.bucket, hit.allowed or verb == 'refund' or verb == 'undo', hit.asked)
  else
    reply[4 + i] = stored[i] or ''
  end
end
if verb == 'lease' then
  reply[6], reply[7], reply[8] = granted, kept, term
end
return reply
