"""Peers that the harness's tests run: well-behaved ones, and each kind of trouble."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

COUNT = 12
BATCH = 4


def make_sample(number):
    rng = np.random.default_rng(number)
    points = 50 + number
    return {"points": rng.random((points, 4), np.float32), "semantic": rng.integers(0, 99, points, np.int32)}


def join(samples):
    batch = {name: np.concatenate([sample[name] for sample in samples]) for name in ("points", "semantic")}
    return {**batch, "offset": np.cumsum([len(sample["points"]) for sample in samples])}


class Good:
    """Delivers all samples in an order of the seed's, and notes in a file when each epoch begins and ends."""

    def __init__(self, name="good", log=None):
        self.name = name
        self.log = log
        self.turn = -1

    def epoch(self, seed):
        self.turn += 1
        self.write("begin", seed)
        order = np.random.default_rng(seed).permutation(COUNT)
        for first in range(0, COUNT, BATCH):
            yield self.change(join([self.sample(number) for number in order[first : first + BATCH]]))
        self.write("end", seed)

    def sample(self, number):
        return make_sample(number)

    def change(self, batch):
        return batch

    def write(self, what, seed):
        if self.log is not None:
            with open(self.log, "a") as log:
                log.write(json.dumps([what, self.name, seed]) + "\n")


class OtherValue(Good):
    """One value of one sample is another."""

    def sample(self, number):
        sample = make_sample(number)
        if number == 3:
            sample["semantic"][5] += 1
        return sample


class OtherType(Good):
    def change(self, batch):
        return {**batch, "semantic": batch["semantic"].astype(np.int64)}


class Mixed(Good):
    """All fields are there, but those of two samples of one size are exchanged."""

    def sample(self, number):
        sample = make_sample(0)
        sample["semantic"] = make_sample(0)["semantic"] + (number if self.name == "straight" else COUNT - 1 - number)
        sample["points"] = sample["points"] + np.float32(number)
        return sample


class TwiceTheSame(Good):
    """One sample twice, another one never, of the same size: only the sum of digests tells."""

    def sample(self, number):
        sample = {"points": make_sample(0)["points"] + np.float32(number), "semantic": make_sample(0)["semantic"]}
        if self.name != "straight" and number == 1:
            sample["points"] = make_sample(0)["points"]
        return sample


class NoField(Good):
    def change(self, batch):
        return {"points": batch["points"], "offset": batch["offset"]}


class NoOffset(Good):
    def change(self, batch):
        return {"points": batch["points"], "semantic": batch["semantic"]}


class Starts(Good):
    """`offset` holds where samples begin."""

    def change(self, batch):
        return {**batch, "offset": np.concatenate([[0], batch["offset"][:-1]])}


class Sizes(Good):
    """`offset` holds the sizes of the samples."""

    def change(self, batch):
        return {**batch, "offset": np.diff(batch["offset"], prepend=0)[::-1]}


class Tuples(Good):
    def change(self, batch):
        return tuple(batch.values())


class Nothing(Good):
    def change(self, batch):
        return {}


class Strided(Good):
    def change(self, batch):
        return {**batch, "points": batch["points"][:, ::2]}


class LosesLater(Good):
    """Right in the warm-up, a sample short from the second timed round on."""

    def epoch(self, seed):
        for number, batch in enumerate(super().epoch(seed)):
            if number == 0 and self.turn >= 2:
                yield join([make_sample(0)])
            else:
                yield batch


class LiesLater(Good):
    """Right in the warm-up, other values of the same size afterwards."""

    def change(self, batch):
        return batch if self.turn == 0 else {**batch, "points": batch["points"] * 2}


class Raising(Good):
    def epoch(self, seed):
        yield from super().epoch(seed)
        if self.turn == 2:
            raise RuntimeError("the third\nepoch fails")


class Crashing(Good):
    """Dies of a signal, while a process that it started lives on and holds its pipes."""

    def epoch(self, seed):
        yield from super().epoch(seed)
        if self.turn == 1:
            subprocess.Popen(["sleep", "600"], close_fds=False)
            print("these are the last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)


class Hanging(Good):
    """Hangs in the first timed round; what it started is in a session of its own. Writes both numbers to a file."""

    def __init__(self, pids):
        super().__init__()
        self.pids = Path(pids)

    def epoch(self, seed):
        yield from super().epoch(seed)
        if self.turn == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            other = subprocess.Popen(["sleep", "600"], start_new_session=True)
            self.pids.with_suffix(".partial").write_text(f"{os.getpid()} {other.pid}")
            self.pids.with_suffix(".partial").rename(self.pids)
            time.sleep(600)


class Restless(Good):
    """Works in the background while others run."""

    def __init__(self):
        super().__init__()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            sum(range(10_000))


class Eager(Good):
    """Holds memory that is easy to see."""

    def __init__(self, nbytes):
        super().__init__()
        self.held = np.ones(nbytes, np.uint8)


class Chatty(Good):
    def epoch(self, seed):
        print("this must not come between the results")
        return super().epoch(seed)


class RaisingInside(Good):
    """Raises in a library that it calls."""

    def change(self, batch):
        return np.concatenate([batch["points"], batch["semantic"]])


class RaisingAtOnce(Good):
    def __init__(self):
        raise ValueError("cannot be opened")


def open_nothing():
    return None


def open_missing():
    import a_library_that_nobody_has

    return a_library_that_nobody_has


def open_mistaken():
    import benchmarks.a_module_that_was_renamed

    return benchmarks.a_module_that_was_renamed


def open_exiting():
    sys.exit(7)
