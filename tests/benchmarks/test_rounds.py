"""Interleaved rounds: their order, their figures, and what becomes of contenders that misbehave."""

import json
import re
import statistics
from pathlib import Path

import pytest

from benchmarks.harness.runner import plan_orders
from tests.benchmarks import odd_peers
from tests.benchmarks.odd_peers import COUNT, make_sample
from tests.benchmarks.support import contender, memcpy_of, named, run

NBYTES = sum(array.nbytes for number in range(COUNT) for array in make_sample(number).values())


def reference(**options):
    return contender("reference", "Good", **options)


def line_of(words):
    """The number of the line with these words in the file of the odd peers."""
    lines = Path(odd_peers.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


def statuses(report):
    return {entry["name"]: entry["status"] for entry in report["contenders"]}


def test_each_round_runs_everyone_once_in_an_order_of_the_seeds_and_never_two_at_a_time(tmp_path):
    log = tmp_path / "log"
    names = ["reference", "b", "c"]
    contenders = [contender(name, "Good", name=name, log=str(log)) for name in names]
    code, report = run(tmp_path, contenders, "--rounds", "5", "--seed", "7")
    assert code == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line[0] for line in lines] == ["begin", "end"] * (len(lines) // 2)
    ran = [(name, seed) for what, name, seed in lines if what == "begin"]
    assert ran[:3] == [(name, 7) for name in names], "the warm-up comes first"
    assert ran[3:] == [(name, 7 + number) for number, order in enumerate(report["orders"], 1) for name in order]
    assert all(sorted(order) == sorted(names) for order in report["orders"])
    assert len({tuple(order) for order in report["orders"]}) > 1


def test_orders_hang_on_the_seed_alone():
    names = list("abcdef")
    assert plan_orders(names, 9, 3) == plan_orders(names, 9, 3)
    assert plan_orders(names, 9, 3) != plan_orders(names, 9, 4)
    firsts = {order[0] for order in plan_orders(names, 200, 0)}
    assert firsts == set(names)


def test_figures_are_those_of_the_rounds(tmp_path, capsys):
    code, report = run(
        tmp_path, [reference(), contender("other", "Good")], "--rounds", "5", limits=[memcpy_of(tmp_path / "bytes")]
    )
    assert code == 0 == report["exit_code"]
    assert report["schema"] == "fastload.benchmark/1"
    base, other = report["contenders"]
    for entry in (base, other):
        assert [figures["round"] for figures in entry["rounds"]] == [1, 2, 3, 4, 5]
        assert all(figures["samples"] == COUNT and figures["nbytes"] == NBYTES for figures in entry["rounds"])
        assert all(0 < figures["first_batch_s"] <= figures["seconds"] for figures in entry["rounds"])
        assert all(0 < figures["consume_s"] < figures["seconds"] for figures in entry["rounds"])
        seconds = [figures["seconds"] for figures in entry["rounds"]]
        assert entry["summary"]["seconds"]["median"] == pytest.approx(statistics.median(seconds))
        assert entry["summary"]["seconds"]["best"] == min(seconds)
        assert entry["summary"]["bytes_per_s"]["best"] == pytest.approx(NBYTES / min(seconds))
        assert entry["summary"]["peak_pss_bytes"] == max(figures["pss_bytes"] for figures in entry["rounds"])
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(base["rounds"], other["rounds"], strict=True)]
    assert other["summary"]["to_reference"]["median"] == pytest.approx(statistics.median(ratios))
    limit = report["limits"][0]
    allowed = [figures["nbytes"] / figures["seconds"] for figures in limit["rounds"]]
    held = [NBYTES / figures["seconds"] / rate for figures, rate in zip(other["rounds"], allowed, strict=True)]
    assert other["summary"]["limit"] == "memcpy:1"
    assert other["summary"]["to_limit"]["median"] == pytest.approx(statistics.median(held))
    assert "x reference" in capsys.readouterr().out


def test_all_that_is_said_of_machine_and_settings(tmp_path):
    _, report = run(tmp_path, [reference()], "--rounds", "1", "--seed", "3")
    machine = report["machine"]
    assert {"cpu", "cores", "cores_usable", "memory_bytes", "kernel", "file_system", "commit"} <= set(machine)
    assert machine["file_system"]
    assert {"torch", "numpy", "lmdb", "fastload"} == set(machine["packages"])
    assert report["settings"] == {"rounds": 1, "seed": 3, "timeout_s": 600.0, "check_every_round": False}


def test_the_tree_s_memory_is_seen(tmp_path):
    _, report = run(tmp_path, [reference(), contender("eager", "Eager", nbytes=100_000_000)], "--rounds", "1")
    small, large = (entry["summary"]["peak_pss_bytes"] for entry in report["contenders"])
    assert 90_000_000 < large - small < 120_000_000


@pytest.mark.parametrize(("peer", "reason"), [
    ("OtherValue", "field 'semantic': other values"),
    ("OtherType", "bytes of int64"),
])  # fmt: skip
def test_other_content_is_wrong_and_gets_no_figures(tmp_path, capsys, peer, reason):
    code, report = run(tmp_path, [reference(), contender("odd", peer), contender("good", "Good")], "--rounds", "2")
    assert code == 1 == report["exit_code"]
    odd = named(report["contenders"], "odd")
    assert odd["status"] == "wrong"
    assert reason in odd["reason"]
    assert odd["rounds"] == []
    assert odd["summary"]["to_reference"] is None is odd["summary"]["seconds"]
    assert named(report["contenders"], "good")["summary"]["to_reference"]["median"] > 0
    out = capsys.readouterr().out
    assert "WRONG" in next(line for line in out.splitlines() if line.startswith("odd "))
    assert reason in " ".join(out.split())


@pytest.mark.parametrize(("peer", "reason"), [
    ("Mixed", "joined wrongly"),
    ("TwiceTheSame", "field 'points': other values"),
])  # fmt: skip
def test_samples_are_told_apart(tmp_path, peer, reason):
    contenders = [contender("reference", peer, name="straight"), contender("odd", peer, name="odd")]
    code, report = run(tmp_path, contenders, "--rounds", "1")
    assert code == 1
    assert reason in named(report["contenders"], "odd")["reason"]


def test_a_round_that_delivers_less_is_wrong(tmp_path):
    code, report = run(tmp_path, [reference(), contender("odd", "LosesLater")], "--rounds", "3")
    odd = named(report["contenders"], "odd")
    assert (code, odd["status"]) == (1, "wrong")
    assert "9 samples" in odd["reason"]
    assert "round 2" in odd["reason"]
    assert len(odd["rounds"]) == 1
    assert odd["summary"]["seconds"] is None


@pytest.mark.parametrize("checked", [False, True])
def test_values_of_timed_rounds_are_checked_on_request(tmp_path, checked):
    options = ["--check-every-round"] if checked else []
    code, report = run(tmp_path, [reference(), contender("odd", "LiesLater")], "--rounds", "2", *options)
    assert (code, statuses(report)["odd"]) == ((1, "wrong") if checked else (0, "ok"))


@pytest.mark.parametrize(("peer", "reason"), [
    ("NoField", "ValueError: field 'semantic': the batch has points, offset; expected this field too"),
    ("NoOffset", "'offset': the batch has points, semantic; the peer has to add it: (B,) integers, where each"),
    ("Starts", "222 rows in a batch; expected 168, the last of 'offset': (B,) integers, where each sample"),
    ("Sizes", "they never fall"),
    ("Tuples", "a batch is tuple; expected a dict (a mapping) of names to arrays or CPU tensors: points, semantic,"),
    ("Nothing", "field 'points': the batch has nothing"),
    ("Strided", "not contiguous"),
    ("Raising", "RuntimeError: the third epoch fails (tests/benchmarks/odd_peers.py:{'the third'})"),
    ("RaisingInside", "(tests/benchmarks/odd_peers.py:{'return np.concatenate'})"),
    ("RaisingAtOnce", "ValueError: cannot be opened (tests/benchmarks/odd_peers.py:{'cannot be opened'})"),
    ("open_nothing", "odd_peers:open_nothing gave NoneType; expected an object with epoch(seed)"),
    ("Crashing", "signal 11, SIGSEGV; its last words: these are the last words"),
    ("open_exiting", "exit code 7"),
    ("open_mistaken", "ModuleNotFoundError"),
])  # fmt: skip
def test_who_fails_is_reported_and_the_others_go_on(tmp_path, capsys, peer, reason):
    code, report = run(tmp_path, [reference(), contender("odd", peer)], "--rounds", "3", "--timeout", "60")
    odd = named(report["contenders"], "odd")
    assert (code, odd["status"]) == (1, "failed")
    assert re.sub(r"\{'(.*)'\}", lambda found: str(line_of(found[1])), reason) in odd["reason"]
    assert odd["summary"]["seconds"] is None
    assert len(named(report["contenders"], "reference")["rounds"]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert f"odd: FAILED: {odd['reason']}" in out


def test_who_hangs_is_ended_in_time_with_all_that_it_started(tmp_path):
    pids = tmp_path / "pids"
    code, report = run(
        tmp_path, [reference(), contender("odd", "Hanging", pids=str(pids))], "--rounds", "2", "--timeout", "3"
    )
    odd = named(report["contenders"], "odd")
    assert (code, odd["status"]) == (1, "failed")
    assert "no answer within 3 s (--timeout)" in odd["reason"]
    assert len(named(report["contenders"], "reference")["rounds"]) == 2
    from tests.benchmarks.test_processes import all_gone

    assert all_gone(map(int, pids.read_text().split()))


def test_what_is_not_installed_is_said_and_is_no_failure(tmp_path, capsys):
    code, report = run(tmp_path, [reference(), contender("odd", "open_missing")], "--rounds", "1")
    odd = named(report["contenders"], "odd")
    assert (code, odd["status"]) == (0, "unavailable")
    assert "not installed: the Python module a_library_that_nobody_has" in odd["reason"]
    assert odd["summary"]["seconds"] is None
    assert "not here" in capsys.readouterr().out


@pytest.mark.parametrize(("peer", "expected"), [("Strided", 1), ("open_missing", 0)])
def test_without_the_reference_there_are_no_ratios(tmp_path, peer, expected):
    code, report = run(tmp_path, [contender("reference", peer), contender("good", "Good")], "--rounds", "2")
    good = named(report["contenders"], "good")
    assert (code, good["status"]) == (expected, "unchecked")
    assert good["summary"]["seconds"]["median"] > 0
    assert good["summary"]["to_reference"] is None


def test_who_works_while_others_run_is_named(tmp_path, capsys):
    run(tmp_path, [reference(), contender("odd", "Restless"), contender("good", "Good")], "--rounds", "4")
    out = capsys.readouterr().out
    assert "odd: not idle while others ran" in out
    assert "good: not idle" not in out


def test_what_a_peer_prints_stays_out_of_the_results(tmp_path, capsys):
    code, _ = run(tmp_path, [reference(), contender("odd", "Chatty")], "--rounds", "1")
    assert code == 0
    assert "between the results" not in capsys.readouterr().out


@pytest.mark.parametrize("names", [["other"], ["other:2"], ["other:0", "odd"]])
def test_only_some_without_the_reference_are_measured_and_compared_with_nothing(tmp_path, capsys, names):
    contenders = [
        reference(),
        *(contender(name, "Good") for name in ("other:0", "other:2")),
        contender("odd", "OtherType"),
    ]
    limits = [memcpy_of(tmp_path / "bytes")]
    code, report = run(tmp_path, contenders, "--rounds", "2", "--only", *names, limits=limits)
    assert code == 0
    assert report["reference"] is None
    assert set(statuses(report).values()) == {"unchecked"}
    out = capsys.readouterr().out
    for entry in report["contenders"]:
        assert "--only left out the reference, reference; name it too" in entry["reason"]
        assert entry["summary"]["to_reference"] is None is entry["summary"]["to_limit"]
        assert entry["summary"]["seconds"]["median"] > 0
        assert len(entry["rounds"]) == 2
        line = next(line for line in out.splitlines() if line.startswith(f"{entry['name']} "))
        assert line.endswith("not compared")
    assert "x reference" in out


def test_only_some_with_the_reference(tmp_path, capsys):
    contenders = [contender(name, "Good") for name in ("reference", "other:0", "other:2")]
    code, report = run(tmp_path, contenders, "--rounds", "1", "--only", "other:2", "reference")
    assert code == 0
    assert statuses(report) == {"reference": "ok", "other:2": "ok"}
    assert report["reference"] == "reference"
    assert named(report["contenders"], "other:2")["summary"]["to_reference"]["median"] > 0
    assert "not compared" not in capsys.readouterr().out
