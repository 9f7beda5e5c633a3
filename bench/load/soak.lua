-- Checks on connections that are kept: most callers pass, one in ten is out of tokens soon, a few are barred.
dofile("bench/load/report.lua")
in_turn("/v1/check", 10000, function(number)
    local user = number % 10 == 0 and "greedy" .. number % 7 or "user" .. number
    return string.format('{"attributes": {"user_id": "%s", "plan": "free", "endpoint": "/api/search"}}', user)
end)

-- A refusal is an answer: only what is no answer, or says that something went wrong, is an error.
strange_answers = 0
response = function(status)
    if status ~= 200 and status ~= 429 and status ~= 403 then strange_answers = strange_answers + 1 end
end
local threads = {}
setup = function(thread) table.insert(threads, thread) end
done = function(summary, latency)
    local errors = summary.errors
    local wrong = errors.connect + errors.read + errors.write + errors.timeout
    for _, thread in ipairs(threads) do wrong = wrong + (thread:get("strange_answers") or 0) end
    io.write(string.format("%d %.6f %d %d %d %d\n", summary.requests, summary.duration / 1e6, wrong,
        latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
