"""Mixed load against `tollgate serve` on Redis for a given time, and what grew meanwhile.

usage: soak.py BINARY SECONDS WORK_DIRECTORY REPORT

wrk asks on connections that it keeps, in pieces of some seconds; beside it, one thread each opens a connection for
every check, sends batches, edits rules, listens to events and leaves, and troubles Redis (SCRIPT FLUSH, CLIENT KILL).
In the middle of every piece the server's memory, descriptors and threads are looked at. All of it ends by itself.
"""

import http.client
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

PIECE_S = 5
SETTLED_S = 120
RULES = """rules:
  - { name: per-user, key: "user:{user_id}", limit: 200000/s burst 400000 }
  - { name: greedy, key: "user:{user_id}", limit: 5/s burst 10, when: { user_id: ["greedy0", "greedy1", "greedy2"] } }
  - { name: barred, key: "user:{user_id}", action: deny, when: { user_id: ["greedy3"] } }
  - { name: search, key: "endpoint:/api/search", limit: 500000/s burst 1000000 }
  - { name: everybody, key: global, limit: 900000/s burst 1000000 }
"""


class Soak:
    def __init__(self, binary, seconds, work):
        self.work, self.over = work, threading.Event()
        self.ends = time.monotonic() + seconds
        self.counts, self.lock = {}, threading.Lock()
        self.binary, self.redis_port = binary, free_port()
        self.redis = self.server = None

    def start(self):
        self.redis = subprocess.Popen(
            ["redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "", "--dir", self.work],
            stdout=subprocess.DEVNULL,
        )
        wait_for(lambda: redis(self.redis_port, "PING") == "+PONG")
        rules = os.path.join(self.work, "rules.yaml")
        with open(rules, "w") as file:
            file.write(RULES)
        database = f"sqlite://{self.work}/rules.db"
        subprocess.run([self.binary, "rules", "import", rules, "--rules", database], check=True, stdout=subprocess.DEVNULL)
        self.data = os.path.join(self.work, "data")
        ready = os.path.join(self.work, "ready.json")
        self.server = subprocess.Popen(
            [self.binary, "serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--rules", database, "--ready-file", ready]
            + ["--store", f"redis://127.0.0.1:{self.redis_port}", "--store-deadline-ms", "1000"],
            env={**os.environ, "TOLLGATE_DATA_DIR": self.data},
            stdout=subprocess.DEVNULL,
            stderr=open(os.path.join(self.work, "log"), "w"),
        )
        wait_for(lambda: os.path.exists(ready))
        with open(ready) as file:
            addresses = json.load(file)
        self.address, self.admin = addresses["http"], addresses["admin"]
        with open(os.path.join(self.data, "token")) as file:
            self.token = file.read().strip().rsplit(":", 1)[-1]

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + number

    def again_and_again(self, pause_s, act):
        """Does something until the time is over; whatever fails is counted."""
        for number in itertools.count():
            if self.over.wait(pause_s):
                return
            try:
                act(number)
            except (OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
                self.count(f"error: {act.__name__}: {type(error).__name__}")

    def post(self, path, body):
        connection = http.client.HTTPConnection(self.address, timeout=10)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def new_connection(self, number):
        status = self.post("/v1/check", {"attributes": {"user_id": f"greedy{number % 5}", "ip": "192.0.2.1"}})
        self.count(f"new connections answered {status}")

    def batch(self, number):
        requests = [{"attributes": {"user_id": f"batch{number * 100 + place}"}} for place in range(100)]
        self.count(f"batches answered {self.post('/v1/check/batch', {'requests': requests})}")

    def reload(self, number):
        limit = f"900000/s burst {1_000_001 + number % 1000}"
        edit = [self.binary, "rules", "edit", "everybody", "--limit", limit, "--data-dir", self.data]
        edited = subprocess.run(edit, stdout=subprocess.DEVNULL, timeout=30).returncode == 0
        self.count("rules edited" if edited else "error: reload")

    def listen(self, number):
        host, port = self.admin.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as listener:
            head = f"GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.token}\r\n\r\n"
            listener.sendall(head.encode())
            until = time.monotonic() + 1 + number % 4
            while time.monotonic() < until and listener.recv(65536):
                pass
        self.count("listeners to events")

    def trouble(self, number):
        if number % 2:
            redis(self.redis_port, "SCRIPT FLUSH")
            self.count("SCRIPT FLUSH")
        else:
            redis(self.redis_port, "CLIENT KILL TYPE normal SKIPME yes")
            self.count("CLIENT KILL")

    def run(self):
        parts = [(0.01, self.new_connection), (0.1, self.batch), (7, self.reload), (0.2, self.listen)]
        parts += [(0.2, self.listen), (11, self.trouble)]
        threads = [threading.Thread(target=self.again_and_again, args=part, daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        began, samples = time.monotonic(), []
        while time.monotonic() < self.ends:
            piece = subprocess.Popen(
                ["wrk", "-t1", "-c20", f"-d{PIECE_S}s", "-s", "bench/load/soak.lua", f"http://{self.address}/"],
                stdout=subprocess.PIPE, text=True,
            )
            time.sleep(PIECE_S / 2)
            size = self.size()
            said, _ = piece.communicate(timeout=PIECE_S + 30)
            requests, seconds, wrong, p50, p99, _ = map(float, said.splitlines()[-1].split())
            self.count("checks on kept connections", int(requests))
            if wrong:
                self.count("error: kept connections", int(wrong))
            at = time.monotonic() - began
            samples.append({"at": at, "rate": requests / seconds, "p50": p50, "p99": p99, **size})
            if self.server.poll() is not None:
                raise SystemExit("the server ended")
        self.over.set()
        for thread in threads:
            thread.join(timeout=30)
        self.count_what_the_server_counted()
        return samples

    def count_what_the_server_counted(self):
        connection = http.client.HTTPConnection(self.admin, timeout=10)
        connection.request("GET", "/v1/stats", headers={"Authorization": f"Bearer {self.token}"})
        stats = json.loads(connection.getresponse().read())
        connection.close()
        for what, number in {**stats["totals"], "violations written": stats["violations"]["written"],
                             "violations dropped": stats["violations"]["dropped"]}.items():
            self.count(f"the server's own count: {what.replace('_', ' ')}", number)

    def size(self):
        with open(f"/proc/{self.server.pid}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        descriptors = len(os.listdir(f"/proc/{self.server.pid}/fd"))
        rss = int(status["VmRSS"].split()[0]) / 1000
        return {"rss": rss, "descriptors": descriptors, "threads": int(status["Threads"])}

    def stop(self):
        """How long the server took to stop, and with what."""
        began = time.monotonic()
        self.server.send_signal(signal.SIGTERM)
        code = self.server.wait(timeout=30)
        return f"stopped with {code} after {time.monotonic() - began:.1f} s"

    def kill(self):
        for process in (self.server, self.redis):
            if process and process.poll() is None:
                process.kill()
                process.wait()


def report(samples, counts, stopped):
    settled = [sample for sample in samples if sample["at"] >= SETTLED_S]
    since = "after the first two minutes"
    if len(settled) < 8:
        settled, since = samples[len(samples) // 4 :], "after the first quarter: it was too short for more"
    quarter = max(1, len(settled) // 4)
    print("| | first quarter | last quarter | growth | least to most |\n|---|---:|---:|---:|---:|")
    names = [("rss", "RSS MB"), ("descriptors", "descriptors"), ("threads", "threads")]
    names += [("p50", "p50 µs"), ("p99", "p99 µs"), ("rate", "checks/s on kept connections")]
    for key, name in names:
        column = [sample[key] for sample in settled]
        first, last = statistics.median(column[:quarter]), statistics.median(column[-quarter:])
        growth = f"{(last - first) / first * 100:+.1f} %"
        print(f"| {name} | {first:,.1f} | {last:,.1f} | {growth} | {min(column):,.1f} to {max(column):,.1f} |")
    print(f"\nMedians of {quarter} samples each, of {len(samples)} in {samples[-1]['at']:.0f} s, {since}.")
    print(f"\nThe server {stopped}.\n")
    for what, number in sorted(counts.items()):
        print(f"- {what}: {number:,}")
    print("\n| second | RSS MB | descriptors | threads | p50 µs | p99 µs | checks/s |\n" + "|---:" * 7 + "|")
    for sample in samples[:: max(1, len(samples) // 60)]:
        cells = [f"{sample[key]:,.1f}" for key in ("rss", "descriptors", "threads", "p50", "p99", "rate")]
        print(f"| {sample['at']:.0f} | " + " | ".join(cells) + " |")


def redis(port, command):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(4096).decode().strip()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(condition):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("not up after 30 s")


def main():
    binary, seconds, work, path = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    soak = Soak(binary, seconds, work)
    try:
        soak.start()
        samples = soak.run()
        stopped = soak.stop()
    finally:
        soak.kill()
    with open(path, "w") as sys.stdout:
        report(samples, soak.counts, stopped)
    sys.stdout = sys.__stdout__


main()
