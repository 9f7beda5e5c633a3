-- What wrk says at the end, in one line: requests, seconds, errors, and p50, p99 and p99.9 in microseconds.
function done(summary, latency)
    local errors = summary.errors
    local wrong = errors.connect + errors.read + errors.write + errors.status + errors.timeout
    io.write(string.format("%d %.6f %d %d %d %d\n", summary.requests, summary.duration / 1e6, wrong,
        latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end

-- Sends these bodies in turn, made once.
function in_turn(path, count, body)
    local headers, made, turn = { ["Content-Type"] = "application/json" }, {}, 0
    init = function()
        for number = 1, count do
            made[number] = wrk.format("POST", path, headers, body(number))
        end
    end
    request = function()
        turn = turn % count + 1
        return made[turn]
    end
end
