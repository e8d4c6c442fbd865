"""Two training processes, step by step, and what their pairs of turns are worth.

A contestant is a process that writes a line of JSON to a pipe after each step; so is one that starts others, the ranks of a
job, of which one writes. It is stopped (SIGSTOP), with all that it started, but in its own turn, so that never both compute,
and a change of the machine's load meets both:

    with Contestant("ours", command, environment) as a, Contestant("PyTorch", ...) as b:
        pairs = alternate(a, b, pairs=7, least=0.5)  # turns of half a second in the order ab ba ab ...
        statistics.median(p.ratio for p in pairs)

Time is the driver's, from the moment a process may run to the arrival of its line.

A GPU does not stop with the process, and a step may want all of its memory. There one contestant follows the other:

    with Contestant("ours", ...) as a:
        ours = list(a.laps(7, least=0.5))
    with Contestant("PyTorch", ...) as b:
        pairs = pair_up(ours, b.laps(7, least=0.5))
"""
import json
import os
import select
import signal
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass


class Contestant:
    """Runs `command` with `--metrics PIPE` appended; stopped until its first turn. It writes a step's line when the step
    has ended."""

    def __init__(self, name, command, environment=None):
        self.name = name
        self.folder = tempfile.TemporaryDirectory()
        pipe = os.path.join(self.folder.name, "metrics")
        os.mkfifo(pipe)
        self.pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # both ends: it may be opened and closed at will
        self.log = open(os.path.join(self.folder.name, "log"), "w+")
        self.rest = b""
        self.owed = 0.0  # what it ran between its line's arrival and its stop
        self.started = time.monotonic()
        self.process = subprocess.Popen([*command, "--metrics", pipe], stdout=self.log, stderr=self.log,
                                        env={**os.environ, **(environment or {})}, start_new_session=True)
        self._stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self.process.poll() is None or self.processes():
            self._send(signal.SIGKILL)
            time.sleep(0.001)
        os.close(self.pipe)
        self.log.close()
        self.folder.cleanup()

    def processes(self):
        """Of its session, which is what it started too: {id: fields of /proc/ID/stat from the state on}, but what ended."""
        out = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[3]) == self.process.pid and fields[0] not in "ZX":
                out[int(entry)] = fields
        return out

    def ranks(self):
        """Its processes that started none."""
        every = self.processes()
        return sorted(set(every) - {int(fields[1]) for fields in every.values()})

    def _send(self, signal_number):
        for process in self.processes():
            try:
                os.kill(process, signal_number)
            except ProcessLookupError:
                pass

    def _go(self):
        self._send(signal.SIGCONT)

    def _stop(self):
        """Returns when all have stopped, or ended."""
        while any(fields[0] not in "Tt" for fields in self.processes().values()):
            self._send(signal.SIGSTOP)
            time.sleep(0.001)

    def output(self):
        self.log.flush()
        with open(self.log.name) as log:
            return log.read()

    def _lines(self, patience):
        """Those that have come, waiting so many seconds for the first."""
        if select.select([self.pipe], [], [], patience)[0]:
            self.rest += os.read(self.pipe, 1 << 16)
        elif patience > 0 and self.process.poll() is not None:
            raise SystemExit(f"compare: {self.name} ended with status {self.process.returncode}:\n{self.output()}")
        *lines, self.rest = self.rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def _whole_steps(self, least, seconds):
        """The lines up to the first that comes when seconds() is `least` or more: what ends there is a step."""
        lines = []
        while True:
            some = self._lines(1)
            lines += some
            if some and seconds() >= least:
                return lines

    def turn(self, least=0.0):
        """Lets it run until it writes a line after `least` seconds or more. The seconds a line, and the lines."""
        start = time.monotonic()
        self._go()
        lines = self._whole_steps(least, lambda: time.monotonic() - start)
        end = time.monotonic()
        self._stop()
        more = self._lines(0)  # of steps that ended before the stop
        if more:
            end = time.monotonic()
        seconds = (end - start + self.owed) / len(lines + more)
        self.owed = time.monotonic() - end
        return seconds, lines + more

    def laps(self, count, least):
        """So many turns without a stop between them, from a line's arrival on. A generator of Lap."""
        self._go()
        while not self._lines(1):  # of a step that began before: it does not count
            pass
        load = Load(self)
        for _ in range(count):
            lines = self._whole_steps(least, load.seconds)
            lap, load = Lap(load.seconds() / len(lines), load.others()), Load(self)
            yield lap
        self._stop()

    def processor_seconds(self):
        """Of those that still run."""
        ticks = sum(int(fields[11]) + int(fields[12]) for fields in self.processes().values())
        return ticks / os.sysconf("SC_CLK_TCK")

    def forget_peak(self):
        """Peaks count from now on."""
        for rank in self.ranks():
            with open(f"/proc/{rank}/clear_refs", "w") as f:
                f.write("5")

    def peak_bytes(self):
        """Of each rank, the most that was resident since forget_peak(). Of pages that several processes map, each has its
        part, as they do now."""
        return [kib(rank, "status", "VmHWM") - kib(rank, "smaps_rollup", "Rss") + kib(rank, "smaps_rollup", "Pss")
                for rank in self.ranks()]


def kib(process, file, name):
    """Bytes of a line "NAME: 123 kB"."""
    with open(f"/proc/{process}/{file}") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(name + ":"))


def machine_seconds():
    """Of all processors together, not idle."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Load:
    """What other programs than these contestants take of the machine, from now on."""

    def __init__(self, *contestants):
        self.contestants, self.begin = contestants, time.monotonic()
        self.machine, self.own = machine_seconds(), self._own()

    def _own(self):
        return sum(c.processor_seconds() for c in self.contestants)

    def seconds(self):
        return time.monotonic() - self.begin

    def others(self):
        """Processors that they kept busy."""
        return max(0.0, machine_seconds() - self.machine - (self._own() - self.own)) / self.seconds()


@dataclass
class Lap:
    seconds: float  # a step
    others: float   # processors that other programs kept busy meanwhile


@dataclass
class Pair:
    ours: float  # seconds a step
    theirs: float
    others: float  # as a Lap's

    @property
    def ratio(self):
        return self.theirs / self.ours


def warm_up(contestant, steps):
    """So many steps or more, which do not count: their losses."""
    losses = []
    while len(losses) < steps:
        losses += [line["loss"] for line in contestant.turn()[1]]
    return losses


def alternate(ours, theirs, pairs, least):
    """So many pairs of turns of `least` seconds or more, who begins changing from pair to pair. A generator of Pair."""
    for i in range(pairs):
        load = Load(ours, theirs)
        order = [ours, theirs] if i % 2 == 0 else [theirs, ours]
        took = {c: c.turn(least)[0] for c in order}
        yield Pair(took[ours], took[theirs], load.others())


def pair_up(ours, theirs):
    """Of laps, first with first and so on. A generator of Pair."""
    for a, b in zip(ours, theirs):
        yield Pair(a.seconds, b.seconds, max(a.others, b.others))


def spread(values):
    return f"{statistics.median(values):.3f} (from {min(values):.3f} to {max(values):.3f})"
