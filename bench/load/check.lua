-- POST /v1/check: ten thousand callers, three rules match each.
dofile("bench/load/report.lua")
in_turn("/v1/check", 10000, function(number)
    return string.format(
        '{"attributes": {"user_id": "user%07d", "endpoint": "/api/search", "ip": "10.0.%d.%d"}}',
        number, number / 256 % 256, number % 256)
end)
