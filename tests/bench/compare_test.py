"""What bench/compare/compare and scripts/gpu-check say of steps whose times are known: those of programs that stand for
shardrun and for PyTorch, sleep that long and write what the others would."""
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURS, THEIRS = 0.02, 0.05  # seconds a step
FLOPS, CEILING = 1e12, 1e14

SHARDRUN = f"""#!{sys.executable}
import json, os, pathlib, sys, time
args, here = sys.argv[1:], pathlib.Path(__file__).parent
after = lambda name: args[args.index(name) + 1]
if args[0] == "model":
    pathlib.Path(after("-o")).write_text("a model")
elif args[:2] == ["bench", "step"]:
    if (here / "fails").exists():
        sys.exit("shardrun: no such step")
    print("ms in the step  op\\n  12.5  matmul")
    pathlib.Path(after("--json")).write_text(json.dumps(
        {{"flops": {FLOPS}, "ceilings": {{"flops_per_s": {{"bf16": {CEILING}, "f32": {CEILING}}}}}}}))
else:
    (here / "ours").write_text(str(os.getpid()))
    print("w  f32[3, 4]  yes  a parameter", flush=True)
    with open(after("--metrics"), "w") as metrics:
        while True:
            time.sleep({OURS})
            print(json.dumps({{"loss": 1.0}}), file=metrics, flush=True)
"""

PEER = f"""#!{sys.executable}
import json, os, pathlib, sys, time
if "-c" in sys.argv:
    sys.exit(print("9.9"))
here = pathlib.Path(__file__).parent
if (here / "out of memory").exists():
    sys.exit("torch.OutOfMemoryError: CUDA out of memory")
ours = int((here / "ours").read_text())
(here / "together").write_text(str(os.path.exists(f"/proc/{{ours}}/exe")))
with open(sys.argv[sys.argv.index("--metrics") + 1], "w") as metrics:
    line = {{"versions": "PyTorch 9.9", "parameters": 12, "bytes": 3 << 30}}
    while True:
        time.sleep({THEIRS})
        print(json.dumps({{**line, "loss": 1.0}}), file=metrics, flush=True)
        line = {{}}
"""


class CompareTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.here = pathlib.Path(self.folder.name)
        for name, text in (("shardrun", SHARDRUN), ("python", PEER)):
            path = self.here / name
            path.write_text(text)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def tearDown(self):
        self.folder.cleanup()

    def call(self, script, *args):
        return subprocess.run([sys.executable, "-B", ROOT / script, *map(str, args)], capture_output=True, text=True, check=False,
                              env={**os.environ, "SHARDRUN_PEER_PYTHON": str(self.here / "python")})

    def compare(self, *args):
        done = self.call("bench/compare/compare", "--shardrun", self.here / "shardrun", "--pairs", 3, "--turn", 0.2, "--json",
                         self.here / "json", *args)
        return done, json.loads((self.here / "json").read_text())

    def check(self, result, tokens):
        self.assertGreater(result["ours"], OURS / 2)  # it may sleep while the other has its turn
        self.assertGreater(result["theirs"], THEIRS / 2)
        self.assertEqual(result["rate"], tokens / result["ours"])
        self.assertAlmostEqual(result["of_ceiling"], FLOPS / result["ours"] / CEILING)
        self.assertEqual(len(result["pairs"]), 3)

    def test_on_a_gpu_one_follows_the_other(self):
        done, (result,) = self.compare("--device", "cuda", "--modes", "compiled", "gpt-124m")
        self.check(result, 32 * 1024)
        self.assertEqual((self.here / "together").read_text(), "False")
        for words in ("; 3.0 GiB", "12.5  matmul", "32768 tokens a step: ours ", " tokens/s, wanted 480000: reached",
                      "1000 GFLOP of products a step: ours ", " of a large matmul's 1e+05 in bf16"):
            self.assertIn(words, done.stdout)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_on_a_gpu_ours_stays_where_pytorch_fails(self):
        (self.here / "out of memory").touch()
        done, (result,) = self.compare("--device", "cuda", "--modes", "compiled", "gpt-124m")
        self.assertIn("OutOfMemoryError", result["failed"])
        self.assertEqual(result["rate"], 32 * 1024 / result["ours"])
        self.assertIn("of_ceiling", result)
        self.assertIn(" tokens/s, wanted 480000: reached", done.stdout)
        self.assertEqual(done.returncode, 1)

    def test_on_a_cpu_they_take_turns(self):
        done, (result,) = self.compare("--modes", "eager", "gat-dense-f32")
        self.check(result, 1024)
        self.assertEqual((self.here / "together").read_text(), "True")
        self.assertIn("1024 nodes a step: ours ", done.stdout)

    def test_without_pytorch(self):
        done, (result,) = self.compare("--alone", "gat-dense-f32")
        self.assertAlmostEqual(result["of_ceiling"], FLOPS / result["ours"] / CEILING)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_it_goes_on_without_bench_step(self):
        (self.here / "fails").touch()
        done, (result,) = self.compare("--alone", "gat-dense-f32")
        self.assertIn("  shardrun: no such step", done.stdout)
        self.assertGreater(result["ours"], OURS / 2)
        self.assertNotIn("of_ceiling", result)

    def gpu_check(self):
        return self.call("scripts/gpu-check", "--device", "cpu", "--built", self.here, "--out", self.here / "out", "gat-dense",
                         "gpt-1558m")

    def test_a_part_of_gpu_check_shows_it_as_it_comes(self):
        done = self.gpu_check()
        self.assertIn("\n  pair 5: ours ", done.stdout)
        self.assertRegex(done.stdout, r"gat-dense: passed: .* items/s, \d+% of the matmul's rate, .* times PyTorch's speed")
        self.assertIn("gpt-1558m: left out: there is no such comparison on cpu", done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_part_of_gpu_check_fails_with_what_it_found(self):
        (self.here / "fails").touch()
        done = self.gpu_check()
        self.assertRegex(done.stdout, r"gat-dense: FAILED: .* items/s.*; shardrun: no such step")
        self.assertEqual(done.returncode, 1)

    def program(self, name, text=None):
        """One that does nothing, or a script."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            shutil.copy(shutil.which("true"), path)
        else:
            path.write_text(text)
            path.chmod(0o755)
        return path

    def test_gpu_check_takes_what_it_packed(self):
        for name in ("shardrun", "tests/cuda/cuda_some_gpu_test", "tests/cuda/cuda_kernels_gpu_test"):
            self.program(f"build/{name}")
        done = self.call("scripts/gpu-check", "--pack", self.here / "built.tar.gz", "--folder", self.here / "build")
        self.assertIn("build shardrun_cli, shardrun_cuda and the cuda tests there", done.stderr)
        self.program("build/libshardrun_cuda.so")
        self.program("build/CMakeFiles/3/CMakeCUDACompiler.cmake", 'set(CMAKE_CUDA_COMPILER_VERSION "99.1.2")')
        packed = self.here / "built.tar.gz"
        done = self.call("scripts/gpu-check", "--built", packed)
        self.assertIn(f"--built: there is no {packed}", done.stderr)
        done = self.call("scripts/gpu-check", "--pack", self.here, "--folder", self.here / "build")
        self.assertIn("wanted a file's name that ends with .tar.gz", done.stderr)
        done = self.call("scripts/gpu-check", "--pack", packed, "--folder", self.here / "build")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"needs glibc 2\.\d+ or newer, for ")
        with tarfile.open(packed) as tar:
            self.assertLessEqual({"shardrun", "cuda_some_gpu_test", "cuda_kernels_gpu_test", "lib/libshardrun_cuda.so"},
                                 set(tar.getnames()))
        done = self.call("scripts/gpu-check", "--device", "cpu", "--built", packed, "--out", self.here / "out", "build", "kernels")
        self.assertRegex(done.stdout, f"build: passed: taken from {packed}; libraries that are missing: libcudart.so.99, ")
        self.assertIn("kernels: FAILED: cuda_kernels_gpu_test: no tests", done.stdout)  # it ran, and tested nothing

    def part(self, part, lines, programs=()):
        """What gpu-check says of a part, where `lines` is what its tests of kernels print, a line of shell."""
        self.program("cuda_kernels_gpu_test", f"#!/bin/sh\n{lines}\n")
        for name, text in programs:
            self.program(f"path/{name}", text)
        path = f"{self.here / 'path'}:{os.environ['PATH']}"
        done = subprocess.run([sys.executable, "-B", ROOT / "scripts/gpu-check", "--device", "cpu", "--built", self.here, "--out",
                               self.here / "out", part], capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": path, "SHARDRUN_PEER_PYTHON": str(self.here / "python")})
        return re.findall(f"^{part}: .*", done.stdout, re.MULTILINE)[0]

    def test_gpu_check_shares_tests_among_processes(self):
        passes = "echo '[  PASSED  ] 2 tests.'"
        self.assertEqual(self.part("kernels", passes), "kernels: passed: 16 tests")
        fails = 'if [ $GTEST_SHARD_INDEX = 5 ]; then echo "[  FAILED  ] Ops/A.b/conv, where GetParam() = conv"; exit 1; fi; '
        self.assertEqual(self.part("kernels", fails + passes),
                         "kernels: FAILED: cuda_kernels_gpu_test: 14 tests, 1 failed: Ops/A.b/conv")
        dies = 'if [ $GTEST_SHARD_INDEX = 5 ]; then echo "terminate called: an error"; exit 6; fi; '
        self.assertEqual(self.part("kernels", dies + passes),
                         "kernels: FAILED: cuda_kernels_gpu_test: 14 tests; ended with 6: terminate called: an error")

    def test_gpu_check_judges_what_the_sanitizer_says(self):
        lists = "printf 'Ops/CudaKernelsOf.\\n  Agree/softmax  # x\\n  Agree/conv  # x\\n  Agree/add  # x\\n'"

        def sanitizer(tool, words, status):
            return [("compute-sanitizer", f"#!/bin/sh\nif [ $2 = {tool} ]; then printf '%s\\n' {words}; exit {status}; fi\n")]
        race = "'========= Error: Race reported between Write access at {0}+0x10' '=========     and Read access at {0}+0x20'"
        self.assertEqual(self.part("sanitizer", lists, sanitizer("racecheck", race.format("cutlass::device_kernel"), 9)),
                         "sanitizer: passed: 5 runs found nothing")
        done = self.part("sanitizer", lists, sanitizer("racecheck", race.format("void shardrun::cuda::rows_kernel"), 9))
        self.assertIn("sanitizer: FAILED: racecheck: our kernels: 1 errors: Error: Race reported between", done)
        done = self.part("sanitizer", lists, sanitizer("synccheck", "'========= ERROR SUMMARY: 1 error'", 9))
        self.assertEqual(done, "sanitizer: FAILED: synccheck: our kernels: ended with 9: ERROR SUMMARY: 1 error")
        done = self.part("sanitizer", lists, sanitizer("memcheck", "'Device not supported.'", 1))
        self.assertIn("sanitizer: left out: ", done)

    def test_gpu_check_does_without_an_mpirun_that_starts_nothing(self):
        self.program("path/mpirun", "#!/bin/sh\necho \"shardrun: MPI connects none of them, $OMPI_MCA_plm\" >&2\nexit 1\n")
        self.addCleanup(os.environ.__setitem__, "PATH", os.environ["PATH"])
        os.environ["PATH"] = f"{self.here / 'path'}:{os.environ['PATH']}"
        done = self.call("scripts/gpu-check", "--device", "cpu", "--built", self.here, "--out", self.here / "out", "verify")
        self.assertEqual(done.stdout.count("mpirun does not start shardrun here: shardrun: MPI connects none of them, isolated; "
                                           "ranks are threads of one process"), 1)
        self.assertIn(" --ranks 4", (self.here / "out/log.txt").read_text())


if __name__ == "__main__":
    unittest.main()
