-- Gives back a charge by its mark: in that window or entry, if it still counts, and nowhere else. To a bucket that
-- refills, what time has not given back since it came to this charge. Answers whether there was something to give back.
local function undo(key, bucket, cost, mark, rest)
  local kind, at = bucket.kind, bucket.at
  if kind == 1 or kind == 3 then
    local price = min(cost, bucket.capacity) * bucket.units
    local elapsed = max(0, at - mark)
    local left = elapsed >= ceil((price + rest) / bucket.rate) and 0 or price + rest - elapsed * bucket.rate
    left = min(bucket.debt, price, left)
    bucket.debt = bucket.debt - left
    return left > 0, 0
  elseif kind == 2 then
    local since = max(0, bucket.anchor - mark)
    local came, over = (rare or helpers()).weighted(bucket.count, since % bucket.interval, bucket.interval)
    came = floor(since / bucket.interval) * bucket.count + came + floor((over - rest) / bucket.interval)
    cost = min(bucket.used, max(0, min(cost, bucket.capacity) - max(0, came)))
    return cost > 0, -cost
  elseif kind == 4 then
    return mark >= bucket.from and mark < bucket.to, -cost
  elseif kind == 5 then
    -- What was spent on a lease has an entry as of when that was reported, no earlier than the mark.
    bucket.undo = { cost, mark, rest > 0 }
    return log.counts(key, bucket, mark, rest > 0), 0
  end
  local window = floor((mark - bucket.from) / bucket.window)
  if window == 0 then return true, -cost end
  if window == -1 then bucket.previous = max(0, bucket.previous - cost) end
  return window == -1, 0
end
