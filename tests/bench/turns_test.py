"""Turns are real: of two processes that note every step in one file, neither notes anything in the other's turn."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare"))
from turns import Contestant, Pair, alternate, warm_up  # noqa: E402

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


def blocks(letters):
    """aabbba -> aba"""
    return "".join(letter for i, letter in enumerate(letters) if i == 0 or letters[i - 1] != letter)


class Turns(unittest.TestCase):
    def test_one_at_a_time(self):
        with tempfile.TemporaryDirectory() as folder:
            notes = pathlib.Path(folder) / "notes"
            command = lambda letter: [sys.executable, "-c", PROGRAM, str(notes), letter]
            with Contestant("a", command("a")) as a, Contestant("b", command("b")) as b:
                self.assertEqual(warm_up(a, 2)[:2], [1.0, 2.0])
                warm_up(b, 2)
                warmed = len(notes.read_text().splitlines())
                pairs = list(alternate(a, b, pairs=4, least=0.0))
                lines = notes.read_text().splitlines()
            self.assertEqual(len(pairs), 4)
            self.assertEqual(blocks([line[0] for line in lines[warmed:]]), blocks("ab" "ba" "ab" "ba"))
            for letter in "ab":  # and no step is lost or done twice
                steps = [int(line[2:]) for line in lines if line[0] == letter]
                self.assertEqual(steps, list(range(1, len(steps) + 1)))
            self.assertTrue(all(pair.ours > 0 and pair.theirs > 0 for pair in pairs))

    def test_ratio_is_theirs_by_ours(self):
        self.assertEqual(Pair(ours=0.5, theirs=1.5, others=0).ratio, 3)

    def test_an_end_is_an_error_with_its_words(self):
        with Contestant("c", [sys.executable, "-c", "import sys; sys.exit('no such model')"]) as c:
            with self.assertRaisesRegex(SystemExit, "c ended with status 1:\nno such model"):
                c.turn()


if __name__ == "__main__":
    unittest.main()
