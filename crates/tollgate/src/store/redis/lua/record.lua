-- Records of reservations: whether it is settled (0: not yet), how many buckets there are, and for each of them the instant from
-- which time repays its charge; then what the node that reserved wrote.

local NOT_CHARGED, repaid_from, record_of = -36028797018963968, nil, nil
if record then
  -- The instant from which time repays the charge of a bucket (`core::algorithm::Bucket::repaid_from`).
  function repaid_from(bucket)
    local kind, at = bucket.kind, bucket.at
    if kind == 1 or kind == 3 then return at + floor(bucket.debt / bucket.rate) end
    if kind ~= 2 then return at end
    local from, wait = bucket.anchor, (rare or helpers()).weighted(bucket.used, bucket.interval, bucket.count)
    if bucket.used == 0 then from = bucket.is_aligned and floor(at / bucket.interval) * bucket.interval or at end
    return from + wait
  end

  -- The first part of the record of buckets that are about to be charged.
  function record_of(buckets)
    local out = pack('<BI2', 0, #buckets)
    for i = 1, #buckets do
      local bucket = buckets[i]
      out = out .. pack('<i7', bucket.allowed and bucket.cost > 0 and repaid_from(bucket) or NOT_CHARGED)
    end
    return out
  end
end
