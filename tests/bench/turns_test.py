"""Turns are real: of two processes that note every step in one file, neither notes anything in the other's turn. Laps
are whole steps."""
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare"))
from turns import Contestant, Lap, Pair, alternate, pair_up, warm_up  # noqa: E402

# Argument 1: the file; argument 2: a letter; then --metrics PIPE.
PROGRAM = """
import json, sys
with open(sys.argv[1], "a") as notes, open(sys.argv[4], "w") as metrics:
    step = 0
    while True:
        step += 1
        print(sys.argv[2], step, file=notes, flush=True)
        print(json.dumps({"loss": float(step)}), file=metrics, flush=True)
"""


# A job: two ranks in a process group of their own each, of which rank 0 writes; both note when they are.
JOB = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(rank), *sys.argv[1:]], preexec_fn=os.setpgrp) for rank in range(2)]
ranks[0].wait()
"""
RANK = """
import json, sys, time
held = bytearray(64 << 20)  # and gone before the first step
del held
with open(sys.argv[2], "a") as notes, open(sys.argv[4], "w") as metrics:
    while True:
        time.sleep(0.005)
        print(sys.argv[1], file=notes, flush=True)
        if sys.argv[1] == "0":
            print(json.dumps({"loss": 1.0}), file=metrics, flush=True)
"""


class Scripted(Contestant):
    """Lines that come at second 1, 2, … of a time of its own."""

    def __init__(self, arrivals):
        self.arrivals, self.now = arrivals, 0

    def _go(self):
        pass

    def _stop(self):
        pass

    def _lines(self, patience):
        self.now += 1
        return self.arrivals[self.now - 1]

    def processor_seconds(self):
        return 0.0


class Noted:
    """A contestant that does nothing but write down its turns."""

    def __init__(self, name, turns):
        self.name, self.turns = name, turns

    def turn(self, least):
        self.turns.append(self.name)
        return 0.5, []

    def processor_seconds(self):
        return 0.0


class Turns(unittest.TestCase):
    def test_one_at_a_time(self):
        with tempfile.TemporaryDirectory() as folder:
            notes = pathlib.Path(folder) / "notes"
            command = lambda letter: [sys.executable, "-c", PROGRAM, str(notes), letter]
            with Contestant("a", command("a")) as a, Contestant("b", command("b")) as b:
                self.assertEqual(warm_up(a, 2)[:2], [1.0, 2.0])
                warm_up(b, 2)
                seen = len(notes.read_text().splitlines())
                for contestant in [a, b, b, a, a, b]:
                    seconds, lines = contestant.turn(0.02)
                    self.assertGreater(seconds, 0)
                    self.assertGreater(len(lines), 0)
                    now = notes.read_text().splitlines()
                    self.assertLessEqual({line[0] for line in now[seen:]}, {contestant.name})
                    seen = len(now)
                lines = notes.read_text().splitlines()
            for letter in "ab":  # and no step is lost or done twice
                steps = [int(line[2:]) for line in lines if line[0] == letter]
                self.assertEqual(steps, list(range(1, len(steps) + 1)))
                self.assertGreater(len(steps), 2)

    def test_a_job_stops_and_ends_with_its_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            notes = pathlib.Path(folder) / "notes"
            with Contestant("job", [sys.executable, "-c", f"RANK = {RANK!r}\n{JOB}", str(notes)]) as job:
                warm_up(job, 2)
                until = time.monotonic() + 60  # the other rank may be slow to begin
                while len(set(notes.read_text()) & {"0", "1"}) < 2 and time.monotonic() < until:
                    job.turn(0.05)
                ranks = job.ranks()
                self.assertEqual(len(ranks), 2)
                self.assertEqual(set(job.processes()) - set(ranks), {job.process.pid})
                self.assertTrue(all(fields[0] in "Tt" for fields in job.processes().values()))
                seen = notes.read_text()
                self.assertGreater(min(seen.count("0"), seen.count("1")), 0)
                time.sleep(0.1)
                self.assertEqual(notes.read_text(), seen)
                before = job.peak_bytes()
                job.forget_peak()
                after = job.peak_bytes()
                self.assertTrue(all(b - a > 32 << 20 for a, b in zip(after, before)), (before, after))
                job.turn(0.02)
                self.assertGreater(len(notes.read_text()), len(seen))
            self.assertEqual(job.processes(), {})

    def test_a_lap_counts_whole_steps(self):
        # The first line's step may have been done while the process was stopped, by a device that was not.
        a = Scripted([["before"], [], ["1"], [], ["2"], ["3"], ["4", "5"], [], ["6"]])
        with unittest.mock.patch("turns.time.monotonic", lambda: a.now):
            self.assertEqual([lap.seconds for lap in a.laps(2, 0)], [2, 2])
        a = Scripted([["before"], [], ["1"], [], ["2"], ["3"], ["4", "5"], [], ["6"]])
        with unittest.mock.patch("turns.time.monotonic", lambda: a.now):
            self.assertEqual([lap.seconds for lap in a.laps(2, 3)], [4 / 2, 4 / 4])

    def test_time_without_a_line_ends_no_turn(self):
        slow = Scripted([[], ["first"], [], [], ["second", "third"], ["fourth"]])
        self.assertEqual(slow._whole_steps(3, lambda: slow.now), ["first", "second", "third"])
        self.assertEqual(slow._whole_steps(0, lambda: slow.now), ["fourth"])

    def test_laps_pair_up_in_order(self):
        pairs = list(pair_up([Lap(1.0, 0.5), Lap(2.0, 0.0)], iter([Lap(3.0, 0.25), Lap(5.0, 0.75)])))
        self.assertEqual([(p.ours, p.theirs, p.others) for p in pairs], [(1.0, 3.0, 0.5), (2.0, 5.0, 0.75)])

    def test_who_begins_changes(self):
        turns = []
        pairs = list(alternate(Noted("a", turns), Noted("b", turns), pairs=3, least=0.0))
        self.assertEqual("".join(turns), "ab" "ba" "ab")
        self.assertEqual([(pair.ours, pair.theirs) for pair in pairs], [(0.5, 0.5)] * 3)

    def test_ratio_is_theirs_by_ours(self):
        self.assertEqual(Pair(ours=0.5, theirs=1.5, others=0).ratio, 3)

    def test_an_end_is_an_error_with_its_words(self):
        with Contestant("c", [sys.executable, "-c", "import sys; sys.exit('no such model')"]) as c:
            with self.assertRaisesRegex(SystemExit, "c ended with status 1:\nno such model"):
                c.turn()


if __name__ == "__main__":
    unittest.main()
