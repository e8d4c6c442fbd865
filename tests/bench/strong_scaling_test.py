"""bench/strong-scaling takes seven rounds, tells the machine's load of each, and fails where a median misses its goal."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "strong-scaling"

# In place of both mpirun and shardrun: what a step takes follows from ranks, threads and batch.
STAND_IN = f"""#!{sys.executable}
import json, sys
def after(name, otherwise):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else otherwise
workers = int(after("-np", 1)) * int(after("--threads", 1))
with open(after("--metrics", None), "w") as f:
    for step in range(int(after("--steps", 0))):
        print(json.dumps({{"step": step, "step_ms": int(after("--batch", 0)) * 100 / workers * SLOWER}}), file=f)
"""


def run(two_ranks_take):
    with tempfile.TemporaryDirectory() as folder:
        for name, slower in [("mpirun", two_ranks_take), ("shardrun", 1)]:
            path = pathlib.Path(folder) / name
            path.write_text(STAND_IN.replace("SLOWER", str(slower)))
            path.chmod(0o755)
        return subprocess.run([sys.executable, SCRIPT, "gpt.onnx", "--shardrun", pathlib.Path(folder) / "shardrun"],
                              env={**os.environ, "PATH": folder + ":" + os.environ["PATH"]}, capture_output=True,
                              text=True, check=False)


class StrongScalingTest(unittest.TestCase):
    def test_seven_rounds_with_the_load(self):
        done = run(two_ranks_take=1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rounds = [line for line in done.stdout.splitlines() if line.startswith("round ")]
        self.assertEqual(len(rounds), 7)
        for line in rounds:
            self.assertRegex(line, r"1x1 1600 ms, 1x2 800 ms, 2x1 800 ms, half 800 ms: 2\.00, 1\.00, 1\.00; .*load \d")

    def test_a_median_that_misses_its_goal(self):
        done = run(two_ranks_take=1.2)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("2x1's time over 1x2's: 1.200 (from 1.200 to 1.200), wanted at most 1.10: missed", done.stdout)


if __name__ == "__main__":
    unittest.main()
