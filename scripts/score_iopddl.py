#!/usr/bin/env python3
"""Scores a solution of an IOPDDL problem, from the contest's definition and with whole numbers only.

Use: score_iopddl.py PROBLEM.json[.gz] SOLUTION
SOLUTION is a file whose last line is the list of choices, or - for stdin. Prints the cost, or says
what is wrong and exits with 1. It shares no code with the solver.
"""
import gzip
import json
import sys


def load(path):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as file:
        return json.load(file)["problem"]


def score(problem, choices):
    """Returns (cost, None) or (None, what is wrong)."""
    nodes, edges = problem["nodes"], problem["edges"]
    if len(choices) != len(nodes["costs"]):
        return None, f"{len(choices)} choices for {len(nodes['costs'])} nodes"
    cost = 0
    change = {}
    for i, choice in enumerate(choices):
        if not 0 <= choice < len(nodes["costs"][i]):
            return None, f"node {i} has no strategy {choice}"
        one = nodes["costs"][i][choice]
        if one >= 10**18:
            return None, f"node {i}: strategy {choice} is forbidden"
        cost += one
        low, high = nodes["intervals"][i]
        if low < high:
            usage = nodes["usages"][i][choice]
            change[low] = change.get(low, 0) + usage
            change[high] = change.get(high, 0) - usage
    for (u, v), costs in zip(edges["nodes"], edges["costs"]):
        one = costs[choices[u] * len(nodes["costs"][v]) + choices[v]]
        if one >= 10**18:
            return None, f"edge {u}-{v}: strategies {choices[u]} and {choices[v]} are forbidden together"
        cost += one
    limit = problem.get("usage_limit")
    if limit is not None:
        used = 0
        for time in sorted(change):
            used += change[time]
            if used > limit:
                return None, f"at time {time} {used} are used, the limit is {limit}"
    return cost, None


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text = sys.stdin.read() if sys.argv[2] == "-" else open(sys.argv[2]).read()
    choices = json.loads(text.strip().splitlines()[-1])
    if not choices:
        sys.exit("no solution")
    cost, wrong = score(load(sys.argv[1]), choices)
    if wrong:
        sys.exit(wrong)
    print(cost)


if __name__ == "__main__":
    main()
