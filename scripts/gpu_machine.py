"""The machine that scripts/gpu-check checks: its programs, the commands that run on it, each within a time, and the log."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent.parent

# name of a model: arguments of `shardrun model`, arguments of a step
SMALL = {
    "gpt": ("gpt --layers 2 --hidden 64 --heads 4 --vocab 257 --context 32 --batch 8", ""),
    "wide-resnet": ("wide-resnet --family cifar --layers 10 --width 1 --classes 10", "--batch 8"),
    "gat": ("gat --nodes 64 --edges 512 --features 32 --hidden 8 --classes 7", ""),
    "gat-dense": ("gat --dense --nodes 64 --features 32 --hidden 8 --classes 7", ""),
}
# Side by side on one GPU: making plans and compiling takes processors, and what breaks a process leaves the others.
PROCESSES = 8
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np"]


class Missing(Exception):
    """The machine lacks something, in words: the part is left out."""


class Failed(Exception):
    """A check failed, in words."""


class Machine:
    def __init__(self, args):
        self.args = args
        self.folder = (HERE / args.folder).resolve()
        self.models = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check."))
        self.programs = self.unpacked(pathlib.Path(args.built).resolve()) if args.built else self.folder
        self.out = pathlib.Path(args.out or self.folder / "gpu-check").resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.log = open(self.out / "log.txt", "w")
        self.begin = time.monotonic()
        self.end = self.begin + 60 * args.minutes
        self.part_end = self.end
        self.environment = dict(os.environ)
        self.mpirun = None  # not known yet
        self.peer = None
        self.gpu = None

    def unpacked(self, built):
        """The folder of programs, which may be packed."""
        if built.is_dir():
            return built
        with tarfile.open(built) as tar:
            tar.extractall(self.models / "built")
        return self.models / "built"

    def say(self, text):
        print(text, flush=True)
        print(text, file=self.log, flush=True)

    def run(self, command, environment=None, limit=None, show=False):
        """Runs it within the part's time; what it prints goes to the log, and is returned: (status, text). `show`: it is
        seen as it comes."""
        command = [str(word) for word in command]
        left = self.part_end - time.monotonic()
        left = min(left, limit) if limit else left
        self.log.write(f"\n$ {' '.join(command)}\n")
        self.log.flush()
        if left < 1:
            return 124, "no time was left"
        at = self.log.tell()
        process = subprocess.Popen(command, cwd=HERE, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                   env={**self.environment, **(environment or {})}, start_new_session=True)
        end, status, text = time.monotonic() + left, None, ""
        while status is None:
            try:
                status = process.wait(timeout=min(1, max(0, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end:
                    status = stop(process)
            with open(self.log.name, errors="replace") as log:
                log.seek(at)
                new = log.read()[len(text):]
            text += new
            if show:
                print(new, end="", flush=True)
        self.log.seek(0, os.SEEK_END)
        if status == 124:
            text += f"\nstopped after {left:.0f} s"
        return status, text

    def run_shards(self, command):
        """A program's tests in PROCESSES processes at once, within the part's time. As run: the first status that is not 0,
        and what all printed, one after the other."""
        self.log.write(f"\n$ {' '.join(map(str, command))}  # in {PROCESSES} processes\n")
        begin, running = time.monotonic(), []
        for shard in range(PROCESSES):
            path = self.models / f"shard{shard}.txt"
            with open(path, "w") as log:
                running.append((path, subprocess.Popen(
                    list(map(str, command)), cwd=HERE, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                    env={**self.environment, "GTEST_TOTAL_SHARDS": str(PROCESSES), "GTEST_SHARD_INDEX": str(shard)})))
        first, text = 0, ""
        for path, process in running:
            try:
                status = process.wait(timeout=max(0, self.part_end - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = stop(process)
            text += path.read_text(errors="replace")
            if status == 124:
                text += f"\nstopped after {time.monotonic() - begin:.0f} s\n"
            elif status != 0:
                text += f"\nended with status {status}\n"
            first = first or status
        self.log.write(text)
        return first, text

    def must(self, command, environment=None, limit=None):
        """The text of a command that has to succeed."""
        status, text = self.run(command, environment, limit)
        if status != 0:
            raise Failed(f"{pathlib.Path(str(command[0])).name} ended with {status}: {last_line(text)}")
        return text

    def need_gpu(self):
        if not self.gpu and self.args.device == "cuda":
            raise Missing("no GPU")

    def need(self, *programs):
        for program in programs:
            if not shutil.which(program, path=self.environment["PATH"]):
                raise Missing(f"{program} is not installed")

    def shardrun(self):
        program = self.programs / "shardrun"
        if not os.access(program, os.X_OK):
            raise Missing(f"{program} was not built")
        return program

    def test(self, name):
        found = sorted(path for path in self.programs.glob(f"**/{name}") if os.access(path, os.X_OK) and path.is_file())
        if not found:
            raise Missing(f"{name} was not built")
        return found[0]

    def model(self, name):
        path = self.models / f"{name}.onnx"
        if not path.exists():
            self.must([self.shardrun(), "model", *SMALL[name][0].split(), "-o", path])
        return [path, *SMALL[name][1].split()]

    def ranks(self, count):
        """How to start so many ranks: what goes in front of the command, and behind it."""
        if count == 1:
            return [], ["--ranks", "1"]
        if self.has_mpirun():
            return [*MPIRUN, count], []
        return [], ["--ranks", count]

    def has_mpirun(self):
        """Does mpirun start ranks of these programs that find each other? Another MPI's than they were built with does not."""
        if self.mpirun is None:
            self.mpirun, why = False, "mpirun is not installed"
            if shutil.which(MPIRUN[0], path=self.environment["PATH"]):
                status, text = self.run([*MPIRUN, 2, self.shardrun(), "plan", *self.model("gat"), "--device", "cpu"], limit=60)
                self.mpirun = status == 0
                why = "mpirun does not start shardrun here: " + last_line(text)
            if not self.mpirun:
                self.say(f"  {why}; ranks are threads of one process")
        return self.mpirun


def stop(process):
    """The status of a command that ran out of time."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return 124


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"shardrun:|error|Error|FAILED|missing|stopped after", line)]
    return (errors or lines or ["it printed nothing"])[-1][:300]
