-- Sliding window logs: lists, and rare. Only scripts that may meet one have this part.
--
-- Limit: how much any window admits, window.

log = {}

do
  local ENTRY, LONGEST = '<i7I4', 10001

  -- Calls `each` with the entries from a place on, oldest first, until it answers something.
  local function entries(key, from, each)
    while true do
      local some = call('LRANGE', key, from, from + 63)
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
    local newest = call('LINDEX', key, -1)
    return rare.is_ours(head) and head:byte() == 5 and (newest == head or #newest == 11)
  end

  -- What counts as spent at a boundary becomes an entry, as soon as something is written.
  local function settle(bucket, due)
    for _, lease in ipairs(due) do
      local newest = bucket.due[#bucket.due]
      if lease.tokens > 0 and lease.till > bucket.at - bucket.window then
        if newest and newest.at == lease.till then
          newest.cost = newest.cost + lease.tokens
        else
          bucket.due[#bucket.due + 1] = { at = lease.till, cost = lease.tokens }
        end
        bucket.alive = bucket.alive + lease.tokens
      end
    end
  end

  function log.open(key, mode, cost, limit, window)
    if not rare then helpers() end
    local bucket = {
      kind = 5, shadow = mode % 2, cost = cost, allowed = false, stored = false, at = now, shift = 0,
      limit = limit, window = window, dead = 0, alive = 0, due = {},
    }
    local head, ledger = redis.pcall('LINDEX', key, 0), nil
    if type(head) == 'table' then
      if head.err:sub(1, 9) ~= 'WRONGTYPE' then error(head) end
      -- Not a list. A state of another algorithm is just old; anything else is foreign.
      local other = redis.pcall('GET', key)
      bucket.replace = true
      bucket.foreign = type(other) == 'table' or not rare.is_ours(other)
    elseif head and not is_log(key, head) then
      bucket.replace, bucket.foreign = true, true
    elseif head then
      local due = {}
      if #head > 12 then head, due, ledger = rare.split_ledger(head, 1, 0, 1) end
      local _, sum, last = read('<BI4i7', head)
      bucket.stored, bucket.sum, bucket.alive = head, sum, sum
      if last > now then
        if last - now <= 1000000 then bucket.at = last else bucket.shift = now - last end
      end
      entries(key, 1, function(at, cost)
        if at + bucket.shift > bucket.at - window then return true end
        bucket.dead, bucket.alive = bucket.dead + 1, bucket.alive - cost
      end)
      settle(bucket, due)
    end
    bucket.whole = limit - bucket.alive
    bucket.room = max(0, bucket.whole)
    if ledger then
      rare.note_ledger(bucket, ledger)
      bucket.is_reported = mode >= 2
    end
    return bucket
  end

  local function head_of(bucket, sum)
    return pack('<BI4i7', 5, sum, bucket.at) .. (bucket.ledger and rare.pack_ledger(bucket.ledger) or '')
  end

  -- The clock was set back: every instant moves with it.
  local function shift(key, bucket)
    local moved = { head_of(bucket, bucket.sum) }
    entries(key, 1, function(at, cost) moved[#moved + 1] = pack(ENTRY, at + bucket.shift, cost) end)
    call('DEL', key)
    for i = 1, #moved do call('RPUSH', key, moved[i]) end
    bucket.shift, bucket.is_shifted = 0, true
  end

  local function add(key, bucket, cost)
    local newest = bucket.alive > 0 and call('LINDEX', key, -1)
    local at, before = 0, 0
    if newest then at, before = read(ENTRY, newest) end
    if newest and at == bucket.at then
      call('LSET', key, -1, pack(ENTRY, at, before + cost))
    else
      call('RPUSH', key, pack(ENTRY, bucket.at, cost))
    end
    bucket.alive = bucket.alive + cost
  end

  local function refund(key, bucket, cost)
    local left = min(cost, bucket.alive)
    bucket.alive = bucket.alive - left
    while left > 0 do
      local at, before = read(ENTRY, call('RPOP', key))
      if before > left then call('RPUSH', key, pack(ENTRY, at, before - left)) end
      left = max(0, left - before)
    end
  end

  -- Whether an entry of that instant still counts.
  function log.counts(key, bucket, instant)
    if instant <= bucket.at - bucket.window then return false end
    for place = -1, -LONGEST, -1 do
      local entry = call('LINDEX', key, place)
      if not entry or #entry ~= 11 then return false end
      local at = read(ENTRY, entry) + bucket.shift
      if at <= bucket.at - bucket.window then return false end
      if at <= instant then return at == instant end
    end
  end

  -- Takes a cost out of the entry of an instant. Newer entries are removed and pushed again.
  local function take_out(key, bucket, cost, instant)
    local newer = {}
    while true do
      local entry = call('RPOP', key)
      if not entry then break end
      if read(ENTRY, entry) < instant then
        call('RPUSH', key, entry)
        break
      end
      newer[#newer + 1] = entry
    end
    for i = #newer, 1, -1 do
      local at, before = read(ENTRY, newer[i])
      local part = at == instant and min(cost, before) or 0
      cost, bucket.alive = cost - part, bucket.alive - part
      if before > part then call('RPUSH', key, pack(ENTRY, at, before - part)) end
    end
  end

  -- Writes what changed; answers when the log will be empty. A settlement has noted in the bucket what it gives back.
  function log.close(key, bucket, take, changed)
    if bucket.replace then call('DEL', key) end
    if bucket.shift ~= 0 then shift(key, bucket) end
    if changed then
      if bucket.stored then call('LPOP', key, 1 + bucket.dead) end
      bucket.dead = 0
      for _, entry in ipairs(bucket.due) do call('RPUSH', key, pack(ENTRY, entry.at, entry.cost)) end
      bucket.due = {}
      if bucket.given_back then take_out(key, bucket, unpack(bucket.given_back))
      elseif take > 0 then add(key, bucket, take)
      else refund(key, bucket, -take) end
      if bucket.alive > 0 or bucket.ledger then call('LPUSH', key, head_of(bucket, bucket.alive)) end
    end
    local idle_at = bucket.ledger and bucket.at
    if call('LINDEX', key, 1) then idle_at = read(ENTRY, call('LINDEX', key, -1)) + bucket.window end
    return bucket.ledger and rare.kept_until(bucket, idle_at) or idle_at
  end

  -- The wait until entries of this cost have expired.
  local function until_expired(key, bucket, cost)
    local function expires(at, part)
      cost = cost - part
      if cost <= 0 then return at + bucket.window - now end
    end
    local wait = entries(key, 1 + bucket.dead, function(at, part) return expires(at + bucket.shift, part) end)
    for _, entry in ipairs(bucket.due) do wait = wait or expires(entry.at, entry.cost) end
    return wait
  end

  -- The wait until a cost fits, beside what is out.
  local function until_fits(key, bucket, cost)
    local held = bucket.out or 0
    if cost > bucket.limit then return -1 end
    if cost + held > bucket.limit then return bucket.till + bucket.window - now end
    return until_expired(key, bucket, bucket.alive + cost + held - bucket.limit)
  end

  -- Remaining, the waits until a retry, until the log is empty and until there is more room, -1 where there is none, and
  -- the instant of the bucket.
  function log.numbers(key, bucket, allowed)
    local held = bucket.out or 0
    local room = max(0, bucket.limit - bucket.alive - held)
    local retry, reset, more = 0, 0, -1
    if not allowed then retry = until_fits(key, bucket, bucket.cost) end
    if held > 0 then
      reset = bucket.till + bucket.window - now
    elseif bucket.alive > 0 then
      local newest = bucket.due[#bucket.due]
      local at = newest and newest.at or read(ENTRY, call('LINDEX', key, -1)) + bucket.shift
      reset = at + bucket.window - now
    end
    if bucket.alive + held > 0 then more = until_fits(key, bucket, room + 1) end
    return pack('<I7i7i7i7i7', room, retry, reset, more, bucket.at)
  end

  -- The numbers of a log as they will be when what it holds for this request is spent.
  function log.numbers_if_spent(key, bucket)
    local cost = bucket.cost
    bucket.due[#bucket.due + 1] = { at = bucket.at, cost = cost }
    bucket.alive, bucket.out = bucket.alive + cost, bucket.out - cost
    return log.numbers(key, bucket, true)
  end
end
