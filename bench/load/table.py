"""Makes a table of measured rounds: NAME req/s cpu_us p50 p99 p99.9 rss_kb on each line, the first name is ours."""

import statistics
import sys

COLUMNS = ["req/s", "server CPU µs/request", "p50 µs", "p99 µs", "p99.9 µs", "RSS MiB"]


def main():
    rounds = {}
    for line in sys.stdin:
        name, *numbers = line.rstrip("\n").split("\t")
        numbers = [float(number) for number in numbers]
        numbers[-1] /= 1024
        rounds.setdefault(name, []).append(numbers)
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in rounds.items()}

    print("| | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---:|" * len(COLUMNS))
    for name, rows in rounds.items():
        cells = [shown(median, column) for median, column in zip(medians[name], zip(*rows))]
        print(f"| {name} | " + " | ".join(cells) + " |")

    ours, *others = medians
    print(f"\n| {ours} over | throughput | CPU per request | p99 |")
    print("|---|---:|---:|---:|")
    for other in others:
        ratios = [medians[ours][column] / medians[other][column] for column in (0, 1, 3)]
        print(f"| {other} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


def shown(median, column):
    digits = 1 if median < 1000 else 0
    return f"{median:,.{digits}f} ({min(column):,.{digits}f} to {max(column):,.{digits}f})"


main()
