-- Does what decisions do, to a key of its own, and leaves nothing: reads the time, writes with a time to live, reads.
-- KEYS[1]  a key nobody else has
-- Answers  nothing
local time = redis.call('TIME')
redis.call('SET', KEYS[1], struct.pack('<I7', time[1]), 'PX', 1000)
redis.call('MGET', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], '', 'PX', 1000, 'GET')
redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('RPUSH', KEYS[1], time[1])
redis.call('LPUSH', KEYS[1], time[2])
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('LINDEX', KEYS[1], 0)
redis.call('LRANGE', KEYS[1], 0, 1)
redis.call('LSET', KEYS[1], 0, '')
redis.call('LPOP', KEYS[1], 1)
redis.call('RPOP', KEYS[1])
redis.call('DEL', KEYS[1])
