-- One request against all of its buckets: every one is asked, then all are charged or none is.
--
-- A translation of `tollgate-core`, where each formula has its reasons. Every number is an integer below 2^53, which
-- a double holds exactly; a quotient of two such numbers never rounds across an integer, so floor and ceil are exact.
--
-- KEYS      the bucket of each hit
-- ARGV[1]   charge, peek, refund, undo or reset
-- ARGV[2]   microseconds since the epoch where time is injected; empty: Redis' own clock
-- ARGV[2+i] hit i: algorithm, shadow, cost, patience, and the numbers of its limit (each branch below says which)
-- ARGV[3+n] undo: the instant of the charge, after those of all n hits
--
-- Answers   now, whether the request passes, clock steps, foreign values, and for each hit what was stored before:
--           from that the node computes the numbers it tells. For a log, which may be long, the numbers themselves.
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
local LENGTHS = { 22, 22, 22, 22, 12, 23 }
local LONGEST = 10001       -- LOG: the most elements
local STEP, CHANGE = 1, 2   -- what is written: only that the clock went back, or all

local verb, injected = ARGV[1], ARGV[2] ~= ''
local charged_at = verb == 'undo' and tonumber(ARGV[#KEYS + 3])
local now
if injected then
  now = tonumber(ARGV[2])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if verb == 'reset' then
  redis.call('DEL', unpack(KEYS))
  return { now, 1, 0, 0 }
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

-- How far into a window of a counter the previous count must be to weigh nothing.
local function weightless(count, window)
  return count == 0 and 0 or window - floor((window - 1) / count)
end

-- floor(count * left / window). The product may be beyond 2^53: long division, seven bits of the count at a time
-- (a count is at most 2^31, a window at most 2^45 microseconds).
local function weighted(count, left, window)
  if count * left < 9007199254740992 then return floor(count * left / window) end
  local quotient, rest = 0, 0
  for bit = 28, 0, -7 do
    local digit = floor(count / 2 ^ bit) % 128
    rest = rest * 128 + digit * left
    quotient = quotient * 128 + floor(rest / window)
    rest = rest % window
  end
  return quotient
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

  -- Limit: how much any window admits, window.
  function log.open(key, hit)
    local limit, window = read('<I7I7', hit, 17)
    local bucket = { algorithm = LOG, limit = limit, window = window, at = now, shift = 0, dead = 0, alive = 0 }
    local head = redis.pcall('LINDEX', key, 0)
    if type(head) == 'table' then
      if head.err:sub(1, 9) ~= 'WRONGTYPE' then error(head) end
      -- No list. A state of another algorithm is just old; anything else is foreign.
      local other = redis.pcall('GET', key)
      bucket.replace = true
      bucket.strange = type(other) == 'table' or #other ~= LENGTHS[other:byte()]
    elseif head and (#head ~= LENGTHS[LOG] or head:byte() ~= LOG or #redis.call('LINDEX', key, -1) ~= 11) then
      bucket.replace, bucket.strange = true, true
    elseif head then
      local _, sum, last = read(HEAD, head)
      bucket.known, bucket.sum, bucket.alive = true, sum, sum
      bucket.at, bucket.shift = instant(last)
      entries(key, 1, function(at, cost)
        if at + bucket.shift > bucket.at - window then return true end
        bucket.dead, bucket.alive = bucket.dead + 1, bucket.alive - cost
      end)
    end
    bucket.room = max(0, limit - bucket.alive)
    return bucket
  end

  -- The clock was set back: every instant moves with it.
  local function move(key, bucket)
    local moved = { pack(HEAD, LOG, bucket.sum, bucket.at) }
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

  -- Whether an entry of that instant still counts.
  function log.counts(key, bucket, instant)
    if instant <= bucket.at - bucket.window then return false end
    for place = -1, -LONGEST, -1 do
      local entry = redis.call('LINDEX', key, place)
      if not entry or #entry ~= 11 then return false end
      local at = read(ENTRY, entry) + bucket.shift
      if at <= instant then return at == instant end
    end
  end

  -- Takes a cost out of the entry of an instant that still counts. Newer ones step aside meanwhile.
  local function take_out(key, bucket, cost, instant)
    local newer, at, before = {}, nil, nil
    repeat
      local entry = redis.call('RPOP', key)
      at, before = read(ENTRY, entry)
      if at > instant then newer[#newer + 1] = entry end
    until at <= instant
    bucket.alive = bucket.alive - min(cost, before)
    if before > cost then redis.call('RPUSH', key, pack(ENTRY, at, before - cost)) end
    for i = #newer, 1, -1 do redis.call('RPUSH', key, newer[i]) end
  end

  -- Writes what changed; answers when the log will be empty.
  function log.close(key, bucket)
    if bucket.replace then redis.call('DEL', key) end
    if bucket.shift ~= 0 then move(key, bucket) end
    if bucket.write == CHANGE then
      if bucket.known then redis.call('LPOP', key, 1 + bucket.dead) end
      bucket.dead = 0
      if bucket.take > 0 then add(key, bucket, bucket.take)
      elseif verb == 'undo' then take_out(key, bucket, -bucket.take, charged_at)
      else give_back(key, bucket, -bucket.take) end
      if bucket.alive > 0 then redis.call('LPUSH', key, pack(HEAD, LOG, bucket.alive, bucket.at)) end
    end
    local newest = redis.call('LINDEX', key, -1)
    return newest and (read(ENTRY, newest)) + bucket.window
  end

  -- The wait until entries of so much cost have left.
  local function until_left(key, bucket, cost)
    return entries(key, 1 + bucket.dead, function(at, part)
      cost = cost - part
      if cost <= 0 then return at + bucket.shift + bucket.window - now end
    end)
  end

  -- Allowed, remaining, the waits to a retry, to an empty log and to more room, -1 where there is none, and when.
  function log.numbers(key, bucket, allowed, asked)
    local room = max(0, bucket.limit - bucket.alive)
    local retry, reset, more = 0, 0, -1
    if not allowed then
      retry = asked > bucket.limit and -1 or until_left(key, bucket, bucket.alive + asked - bucket.limit)
    end
    if bucket.alive > 0 then
      reset = (read(ENTRY, redis.call('LINDEX', key, -1))) + bucket.shift + bucket.window - now
      more = until_left(key, bucket, bucket.alive + room + 1 - bucket.limit)
    end
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
    if state and state:byte() ~= kind or state and #state ~= LENGTHS[kind] then
      foreign = #state ~= LENGTHS[state:byte()]
      state = false
    end
    local at, shift = now, 0

    if algorithm == TOKENS or algorithm == QUEUE then
      -- Limit: capacity, units that come back a microsecond, units in a token, tokens that need not wait.
      local capacity, rate, units, free = read('<I7I7I7I7', hit, 17)
      local debt, delay = 0, 0
      if state then
        local _, owed, units_then, last = read(OWED, state)
        at, shift = instant(last)
        if units_then == units then debt = min(owed, capacity * units)
        else debt = min(ceil(owed / max(1, units_then)), capacity) * units end
        local elapsed = max(0, now - last)
        debt = elapsed >= ceil(debt / rate) and 0 or debt - elapsed * rate
      end
      if algorithm == QUEUE then delay = max(0, ceil((debt - free * units) / rate)) end
      bucket = { debt = debt, rate = rate, units = units, delay = delay, capacity = capacity,
                 room = floor((capacity * units - debt) / units) }

    elseif algorithm == INTERVAL then
      -- Limit: tokens that come together, interval, capacity, whether ticks lie on the clock.
      local count, interval, capacity, aligned = read('<I7I7I7I7', hit, 17)
      local used, anchor, used_then, anchor_then = 0, now, 0, now
      if state then
        local _, stored_used, stored_anchor, last = read(USED, state)
        at, shift = instant(last)
        used, anchor = min(stored_used, capacity), stored_anchor + shift
        if aligned == 1 then anchor = window_start(shift ~= 0 and at or anchor, interval, 0) end
        used_then, anchor_then = used, anchor
        local ticks = floor((at - anchor) / interval)
        if ticks >= ceil(used / count) then used = 0
        else used, anchor = used - ticks * count, anchor + ticks * interval end
      end
      bucket = { used = used, anchor = anchor, used_then = used_then, anchor_then = anchor_then, count = count,
                 interval = interval, aligned = aligned == 1, room = capacity - used }

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
          if count == 0 or at >= from + window then count, from = 0, at end
        end
        to = from + window
      end
      bucket = { used = count, from = from, to = to, room = max(0, limit - count) }

    elseif algorithm == COUNTER then
      -- Limit: what the estimate may reach, window, whether the first take opens it.
      local limit, window, first = read('<I7I7I7', hit, 17)
      local previous, current, from = 0, 0, now
      if state then
        local _, stored_previous, stored_current, start, last = read(COUNTS, state)
        at, shift = instant(last)
        local phase = first == 1 and start + shift or 0
        from = window_start(at, window, phase)
        local windows = (from - window_start(last + shift, window, phase)) / window
        if windows == 0 then previous, current = stored_previous, stored_current
        elseif windows == 1 then previous = stored_current end
      end
      bucket = { window = window, previous_then = previous, current_then = current, from_then = from }
      -- As good as new it has no phase of its own.
      if current == 0 and weightless(previous, window) <= at - from then
        previous, from = 0, first == 1 and at or window_start(at, window, 0)
      end
      bucket.previous, bucket.current, bucket.from = previous, current, from
      bucket.room = max(0, limit - weighted(previous, window - (at - from), window) - current)

    else
      if not log then logs() end
      bucket = log.open(key, hit)
    end

    if algorithm ~= LOG then
      bucket.algorithm, bucket.known, bucket.at, bucket.shift = kind, state, at, shift
      bucket.strange, bucket.absent = foreign, not stored[i]
    end
    bucket.asked, bucket.take = 0, 0
    buckets[key] = bucket
  end
  local asked = cost + bucket.asked
  local allowed = cost == 0 or asked <= bucket.room and (bucket.delay or 0) <= patience
  if allowed or shadow == 0 then bucket.asked = asked end
  if not allowed and shadow == 0 then passes = false end
  hits[i] = { key = key, bucket = bucket, cost = cost, shadow = shadow == 1, allowed = allowed, asked = asked }
end

-- Gives back what was charged at an instant: in that window or entry, if it still counts, and nowhere else.
local undo = verb == 'undo' and function(key, bucket, cost)
  local algorithm, since = bucket.algorithm, bucket.at - charged_at
  local counts
  if algorithm == TOKENS or algorithm == QUEUE then counts = since < ceil(bucket.capacity * bucket.units / bucket.rate)
  elseif algorithm == INTERVAL then counts = since < ceil((bucket.room + bucket.used) / bucket.count) * bucket.interval
  elseif algorithm == FIXED then counts = charged_at >= bucket.from and charged_at < bucket.to
  elseif algorithm == LOG then counts = log.counts(key, bucket, charged_at)
  else
    local window = floor((charged_at - bucket.from) / bucket.window)
    counts = window == 0 or window == -1
    if window == -1 then bucket.previous, cost = max(0, bucket.previous - cost), 0 end
  end
  if counts then bucket.take, bucket.write = bucket.take - cost, CHANGE end
end

-- Then all are charged or none is; those on trial each on their own. A refusal writes at most that the clock went back.
if verb ~= 'peek' then
  for i = 1, #hits do
    local hit = hits[i]
    local bucket = hit.bucket
    if hit.cost == 0 then
      -- Costs nothing, writes nothing.
    elseif verb == 'refund' then
      if bucket.known then bucket.take, bucket.write = bucket.take - hit.cost, CHANGE end
    elseif verb == 'undo' then
      if bucket.known then undo(hit.key, bucket, hit.cost) end
    elseif hit.allowed and (passes or hit.shadow) then
      bucket.take, bucket.write = bucket.take + hit.cost, CHANGE
    elseif bucket.shift ~= 0 then
      bucket.write = bucket.write or STEP
    end
  end
end

-- Last, write what changed. What is as good as new is deleted; everything else lives until it would be.
local steps = 0
for key, bucket in pairs(buckets) do
  if bucket.write then
    local algorithm, at, take = bucket.algorithm, bucket.at, bucket.take
    local changed = bucket.write == CHANGE
    local state, new_at
    if algorithm == TOKENS or algorithm == QUEUE then
      local debt = bucket.debt
      if take <= -bucket.capacity then debt = 0 else debt = max(0, debt + take * bucket.units) end
      if debt > 0 then new_at, state = at + ceil(debt / bucket.rate), pack(OWED, algorithm, debt, bucket.units, at) end

    elseif algorithm == INTERVAL then
      local used, anchor = bucket.used_then, bucket.anchor_then
      if changed then
        used, anchor = max(0, bucket.used + take), bucket.anchor
        if bucket.used == 0 then anchor = bucket.aligned and window_start(at, bucket.interval, 0) or at end
      end
      if used > 0 then
        new_at, state = anchor + ceil(used / bucket.count) * bucket.interval, pack(USED, INTERVAL, used, anchor, at)
      end

    elseif algorithm == FIXED then
      local used = max(0, bucket.used + take)
      if used > 0 then new_at, state = bucket.to, pack(USED, FIXED, used, bucket.from, at) end

    elseif algorithm == COUNTER then
      local previous, current, from = bucket.previous_then, bucket.current_then, bucket.from_then
      if changed then previous, current, from = bucket.previous, max(0, bucket.current + take), bucket.from end
      local left = weightless(previous, bucket.window) - (at - from)
      if current > 0 then left = bucket.window - (at - from) + weightless(current, bucket.window) end
      if left > 0 or not changed then new_at, state = at + left, pack(COUNTS, COUNTER, previous, current, from, at) end

    else
      new_at = log.close(key, bucket)
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
        bucket.strange = type(head) == 'table' or #head ~= LENGTHS[LOG] or head:byte() ~= LOG
        redis.call('SET', key, state, 'PX', ttl)
      end
    else
      redis.call('SET', key, state, 'PX', ttl)
    end
    if bucket.shift ~= 0 or bucket.moved then steps = steps + 1 end
    if bucket.strange then strange = strange + 1 end
  end
end

local reply = { now, passes and 1 or 0, steps, strange }
for i = 1, #hits do
  local hit = hits[i]
  if hit.bucket.algorithm == LOG then
    reply[4 + i] = log.numbers(hit.key, hit.bucket, hit.allowed or verb == 'refund' or verb == 'undo', hit.asked)
  else
    reply[4 + i] = stored[i] or ''
  end
end
return reply
