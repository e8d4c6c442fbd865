"""A part of bench/run takes the place of its own section of bench/RESULTS.md, and of no other."""
import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import unittest

PATH = pathlib.Path(__file__).resolve().parents[2] / "bench" / "run"
LOADER = importlib.machinery.SourceFileLoader("bench_run", str(PATH))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", LOADER))
LOADER.exec_module(bench)


class ResultsTest(unittest.TestCase):
    def test_replaces_its_section_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "RESULTS.md"
            for stamp, parts in [("Commit a.\n\n", ["Second", "First"]), ("Commit b.\n\n", ["Second"])]:
                results = bench.Results(path, "shardrun", ["First", "Second", "Third"])
                results.stamp = stamp
                for part in parts:
                    results.begin(part)
                    results.run([sys.executable, "-c", f"print('{part} of {stamp[7]}')"])
            text = path.read_text()
        self.assertTrue(text.startswith(bench.HEAD + "## First\n\nCommit a.\n\n    $ "), text)
        self.assertIn("\n\n## Second\n\nCommit b.\n\n    $ ", text)
        self.assertIn("\nFirst of a\n", text)
        self.assertIn("\nSecond of b\n", text)
        self.assertNotIn("Second of a", text)

    def test_the_tree_s_own_file_is_of_known_sections(self):
        titles = [title for title, _ in bench.PARTS.values()]
        text = (PATH.parent / "RESULTS.md").read_text()
        self.assertTrue(text.startswith(bench.HEAD))
        for section in text.split("\n## ")[1:]:
            self.assertIn(section.partition("\n")[0], titles)
            self.assertTrue(section.partition("\n\n")[2].startswith("Commit "), section[:200])


if __name__ == "__main__":
    unittest.main()
