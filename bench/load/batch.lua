-- POST /v1/check/batch: a hundred requests in each, ten thousand callers, three rules match each.
dofile("bench/load/report.lua")
in_turn("/v1/check/batch", 100, function(number)
    local requests = {}
    for place = 1, 100 do
        requests[place] = string.format('{"attributes": {"user_id": "user%07d", "endpoint": "/api/search"}}',
            number * 100 + place)
    end
    return '{"requests": [' .. table.concat(requests, ",") .. "]}"
end)
