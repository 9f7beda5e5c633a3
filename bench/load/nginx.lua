-- The same request as check.lua's, to a server that answers without reading it.
dofile("bench/load/report.lua")
in_turn("/", 10000, function(number)
    return string.format(
        '{"attributes": {"user_id": "user%07d", "endpoint": "/api/search", "ip": "10.0.%d.%d"}}',
        number, number / 256 % 256, number % 256)
end)
