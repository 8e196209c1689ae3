"""Programs of frameworks, checkpointed at random moments and restored in other workers; each must end as natively.

    moments.py KATYDID [--rounds N] [--jobs N] [--within SECONDS] [--only NAMES] [--driver DRIVER] [--seed N] [--fault FAULT]

Each program of items.txt first runs natively. Then it runs under `katydid run`, and after a random time of its native one a
checkpoint ends it. Program and restore have a private server or one that others use, in all four pairs in turn. A trial whose
program ends before its checkpoint begins is made again, at an earlier moment. A line of JSON a trial:

    restored     it came back and said what it says natively
    kept         so it did, by the process of its worker that the image has
    refused      the checkpoint was refused, the program went on, and said what it says natively
    over         the program had ended before its checkpoint began, each time
    LOST         its checkpoint ended it, and it did not come back or said something else

The exit status is 1 if any was lost.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Items that start several processes, need two devices, or are about time, profiles or lost contexts.
LEFT_OUT = ["_of_two", "two_devices", "speed", "profiler", "suite", "nvml", "mpi", "loader", "processes", "assertion"]
# Seconds that a program or a restore may take.
RUN_TIMEOUT = 300
# A program that ended before its checkpoint runs again so often, each time with a shorter delay at most.
ATTEMPTS = 6
SHORTER = 0.7


def items(only):
    """Names and command lines of the programs."""
    for line in (HERE / "items.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, command, _, _ = (part.strip() for part in line.split("|"))
        wanted = any(name == it or name.startswith(f"{it}.") for it in only) if only else True
        if wanted and not any(part in name for part in LEFT_OUT):
            script, item = command.split()
            yield name, [sys.executable, str(HERE / script), item]


def said(text):
    """What an item says that is compared."""
    return [line for line in text.splitlines() if line.startswith(("same ", "near "))]


def agree(one, other):
    """Whether two runs said the same, as far as `near` asks."""
    if len(one) != len(other):
        return False
    for first, second in zip(one, other):
        if first == second:
            continue
        left, right = first.split(), second.split()
        if left[0] != "near" or left[:3] != right[:3]:
            return False
        tolerance, value, beside = (float(part) for part in (left[2], left[3], right[3]))
        if abs(value - beside) > tolerance * max(abs(value), abs(beside)):
            return False
    return True


class Bench:
    """What all trials share."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = Path(tempfile.mkdtemp(prefix="moments-"))
        self.end = time.monotonic() + arguments.within
        self.lock = threading.Lock()
        self.counts = {}
        self.driver = ["--driver", arguments.driver]
        faults = {"KATYDID_FAULT": arguments.fault} if arguments.fault else {}
        self.variables = {**os.environ, **faults}
        self.address = f"unix:{self.folder}/server"
        serve = [arguments.katydid, "serve", "--listen", self.address, "--quiet", *self.driver]
        self.server = subprocess.Popen(serve, stdout=subprocess.DEVNULL)

    def close(self):
        self.server.terminate()
        self.server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def tell(self, **trial):
        with self.lock:
            outcome = trial["outcome"]
            self.counts[outcome] = self.counts.get(outcome, 0) + 1
            print(json.dumps(trial), flush=True)

    def native(self, program):
        """What the program says natively and how long it takes; none if it cannot run here."""
        name, command = program
        begun = time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT)
        words = said(ended.stdout)
        if ended.returncode or not words:
            self.tell(item=name, outcome="absent", text=(ended.stderr.strip().splitlines() or [""])[-1][-200:])
            return None
        return name, command, words, time.monotonic() - begun

    def trial(self, program, number):
        """One checkpoint of one program."""
        name, _, _, seconds = program
        generator = random.Random(f"{self.arguments.seed}.{name}.{number}")
        longest = 0.95 * seconds
        for attempt in range(ATTEMPTS):
            if time.monotonic() > self.end:
                return
            trial = self.attempt(program, number, generator.uniform(0.3, max(0.6, longest)))
            if trial["outcome"] != "over" or attempt + 1 == ATTEMPTS:
                self.tell(**trial)
                return
            longest *= SHORTER

    def attempt(self, program, number, delay):
        """Runs the program, asks for its checkpoint after a delay, and restores it; what came of that."""
        name, command, words, _ = program
        folder = Path(tempfile.mkdtemp(prefix="trial-", dir=self.folder))
        shared = ["--server", self.address]
        first = shared if number & 1 else self.driver
        second = shared if number & 2 else self.driver
        trial = {"item": name, "number": number, "delay": round(delay, 2), "run_by": first[0], "restored_by": second[0]}
        with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
            run = [self.arguments.katydid, "run", *first, "--name", f"{name}-{number}", "--", *command]
            running = subprocess.Popen(run, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.variables)
            time.sleep(delay)
            image = folder / "image"
            take = [self.arguments.katydid, "checkpoint", f"{name}-{number}", "-o", str(image), "--json"]
            taken = subprocess.run(take, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            status = running.wait()
            if taken.returncode:
                trial["text"] = (taken.stderr or taken.stdout).strip()[-400:]
                agrees = status == 0 and agree(words, said((folder / "out").read_text()))
                is_over = "no job" in trial["text"] or "ended" in trial["text"]
                trial["outcome"] = ("over" if is_over else "refused") if agrees else "LOST"
            else:
                restore = [self.arguments.katydid, "restore", *second, str(image)]
                back = subprocess.run(restore, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=RUN_TIMEOUT)
                agrees = back.returncode == 0 and agree(words, said((folder / "out").read_text()))
                is_kept = json.loads(taken.stdout).get("worker_images", 0)
                trial["outcome"] = ("kept" if is_kept else "restored") if agrees else "LOST"
        if trial["outcome"] == "LOST":
            trial["out"] = (folder / "out").read_text()[-400:]
            trial["err"] = (folder / "err").read_text()[-1200:]
        shutil.rmtree(folder, ignore_errors=True)
        return trial


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("katydid")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4))
    parser.add_argument("--within", type=float, default=560.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", default="", help="a value of KATYDID_FAULT for the programs, such as no-replay")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    only = [name for name in arguments.only.split(",") if name]
    try:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            known = [it for it in pool.map(bench.native, items(only)) if it]
            trials = [(program, number) for number in range(arguments.rounds) for program in known]
            list(pool.map(lambda it: bench.trial(*it), trials))
    finally:
        bench.close()
    print(json.dumps({"programs": len(known), "outcomes": bench.counts}), flush=True)
    sys.exit(1 if bench.counts.get("LOST") else 0)


if __name__ == "__main__":
    main()
