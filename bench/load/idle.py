"""Opens so many connections to HOST:PORT, sends one request on each, keeps them, and prints how much a process grew by,
for each kind of route. A connection that was used for another route than checks gives its buffers back after one to
two seconds, so the process is measured after SETTLE_S.

usage: idle.py HOST:PORT PID CONNECTIONS
"""

import resource
import socket
import sys
import time

SETTLE_S = 4
BODY = b'{"attributes": {}}'
ASKS = {
    "a check": b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "a peek": b"POST /v1/peek HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "GET /livez": b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
}


def main():
    (host, port), pid, count = sys.argv[1].rsplit(":", 1), sys.argv[2], int(sys.argv[3])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kept, told = [], []
    for name, ask in ASKS.items():
        before = resident_kb(pid)
        for _ in range(count):
            connection = socket.create_connection((host, int(port)), timeout=10)
            connection.sendall(ask)
            if b" 200 " not in connection.recv(4096):
                sys.exit(f"connection {len(kept) + 1} got no answer")
            kept.append(connection)
        time.sleep(SETTLE_S)
        grown = resident_kb(pid) - before
        told.append(f"{grown / 1000:.1f} MB more after {name}, {grown / count:.1f} kB each")
    print(f"{count:,} idle connections: {'; '.join(told)}")


def resident_kb(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1000


main()
