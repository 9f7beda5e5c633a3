# Sourced by the scripts. free_ports N: prints the first of N ports in a row that are free on 127.0.0.1, below those that the
# system gives to outgoing connections.
free_ports() {
    local first port
    for _ in $(seq 100); do
        first=$((16000 + RANDOM % 16000))
        for port in $(seq "$first" $((first + $1 - 1))); do
            if (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue 2; fi
        done
        echo "$first"
        return
    done
    echo "no $1 free ports in a row" >&2
    return 1
}

# until_redis PID PORT LOG: waits until the server answers; one that ended shows its log.
until_redis() {
    local tries=0
    until [ "$(redis-cli -p "$2" ping 2>/dev/null)" = PONG ]; do
        if ! kill -0 "$1" 2>/dev/null || [ $((tries += 1)) -gt 400 ]; then
            cat "$3" >&2
            echo "redis-server does not answer on port $2" >&2
            return 1
        fi
        sleep 0.05
    done
}
