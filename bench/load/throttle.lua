-- POST /throttle of throttlecrab-server: ten thousand callers, one limit that comes with the request.
dofile("bench/load/report.lua")
in_turn("/throttle", 10000, function(number)
    return string.format(
        '{"key": "user%07d", "max_burst": 100000000, "count_per_period": 1000000, "period": 1}', number)
end)
