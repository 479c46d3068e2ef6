"""The command: exit codes, what goes to stdout and stderr, and no traceback."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

import fastload
from fastload.cli.main import build_parser, main
from tests.support import REPO, run_fastload, run_python, tree_bytes, write_tree

VERBS = ("pack", "info", "verify", "unpack")


def run(capsys, *arguments):
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def source(tmp_path):
    return write_tree(tmp_path / "source", {"00/000000": 24, "08/000000": 12})


def test_the_whole_round(capsys, source, tmp_path):
    out, again = tmp_path / "out", tmp_path / "again"
    code, text, messages = run(capsys, "pack", source, out)
    assert code == 0
    assert "packed 2 samples (train 1, val 1), 36 points, 720 B into 1 shard" in text
    assert "layout: semantickitti (detected)" in messages
    code, text, _ = run(capsys, "info", out)
    assert code == 0
    assert "2 (train 1, val 1)" in text
    assert "points    float32  (N, 4)  in 2 samples  x y z intensity" in text
    code, text, _ = run(capsys, "verify", out)
    assert (code, text[:5]) == (0, "ok: 2")
    code, text, _ = run(capsys, "unpack", out, again)
    assert (code, text[:40]) == (0, "unpacked 2 samples and 0 attachments: 4 ")
    assert tree_bytes(again) == tree_bytes(source)


def test_json_is_one_object_on_stdout_with_the_promised_keys(capsys, source, tmp_path):
    out = tmp_path / "out"
    code, text, _ = run(capsys, "pack", "semantickitti", source, out, "--json")
    packed = json.loads(text)
    assert code == 0
    assert list(packed)[:2] == ["schema", "fastload_version"]
    assert {"samples", "shards", "bytes", "source_bytes", "seconds", "resumed_shards", "problems"} <= set(packed)
    found = json.loads(run(capsys, "info", out, "--json")[1])
    assert found["schema"] == "fastload.info/1"
    assert set(found) == {
        "schema", "fastload_version", "root", "format_version", "layout", "samples", "points", "shards", "bytes",
        "source_bytes", "splits", "fields", "lossy", "fingerprint",
    }  # fmt: skip
    assert {"kind", "dtype", "shape", "rows", "columns", "codec"} <= set(found["fields"]["points"])
    assert found == fastload.info(out).to_json()
    checked = json.loads(run(capsys, "verify", out, "--json")[1])
    assert list(checked) == [
        "schema", "fastload_version", "root", "ok", "quick", "samples", "shards", "bytes", "seconds", "problems",
    ]  # fmt: skip
    assert json.loads(run(capsys, "unpack", out, tmp_path / "x", "--json")[1])["files"] == 4


def test_verify_json_of_a_damaged_dataset(capsys, source, tmp_path):
    out = tmp_path / "out"
    run(capsys, "pack", source, out)
    shard = out / "shards/00000.lmdb"
    data = bytearray(shard.read_bytes())
    position = data.index((source / "sequences/00/velodyne/000000.bin").read_bytes()[:64])
    data[position] ^= 4
    shard.write_bytes(data)
    code, text, _ = run(capsys, "verify", out, "--json")
    (problem,) = json.loads(text)["problems"]
    assert code == 1
    assert set(problem) == {"kind", "shard", "sample", "index", "field", "path", "found", "expected", "fix"}
    assert (problem["shard"], problem["sample"], problem["field"], problem["index"], problem["kind"]) == (
        "shards/00000.lmdb", "sequences/00/velodyne/000000", "points", 0, "checksum",
    )  # fmt: skip
    code, text, messages = run(capsys, "verify", out)
    assert (code, text[:9]) == (1, "1 problem")
    assert "shards/00000.lmdb, sample sequences/00/velodyne/000000, field points: checksum" in messages


WRONG = (
    "", "pakc", "pack", "pack {source}", "pack a b c d", "pack {source} {out} --bogus", "pack {tmp}/nowhere {out}",
    "pack unknown-layout {source} {out}", "pack {source} {out} --shard-size big",
    "pack {source} {out} --splits {tmp}/nowhere.yaml", "pack {source} {source}", "pack {tmp}/empty {out}",
    "pack {source} {tmp}/file", "info {tmp}/nowhere", "verify {tmp}/nowhere", "unpack {tmp}/nowhere {out}", "info",
    "verify --deep x",
)  # fmt: skip


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_usage_is_2_with_a_message_and_nothing_on_stdout(source, tmp_path, capsys, arguments):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    places = {"source": source, "out": tmp_path / "out", "tmp": tmp_path}
    words = [word.format(**places) for word in arguments.split()]
    try:
        code = main(words)
    except SystemExit as exit_:  # argparse's own
        code = exit_.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.strip()
    assert not (tmp_path / "out").exists()


def test_what_is_no_whole_dataset_is_1(source, tmp_path, capsys):
    for verb in ("info", "verify"):
        code, _, err = run(capsys, verb, source)
        assert code == 1
        assert "not a packed dataset" in err


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples(verb, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([verb, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert f"fastload {verb} " in text
    assert "examples:" in text
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 120


def test_quiet_says_nothing(source, tmp_path):
    done = run_fastload("pack", source, tmp_path / "out", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run_fastload("verify", tmp_path / "out", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_plain_lines_where_stderr_is_no_terminal(source, tmp_path):
    done = run_fastload("pack", source, tmp_path / "out")
    assert "\r" not in done.stderr
    assert done.stdout.count("\n") == 1


def test_plain_progress_comes_once_a_minute(capsys, monkeypatch):
    from fastload.cli import common
    from fastload.packing.report import Progress

    now = [0.0]
    monkeypatch.setattr(common.time, "monotonic", lambda: now[0])
    progress = common.PlainProgress()
    for step in range(1, 301):
        now[0] = float(step)
        progress(Progress("pack", step, 300, step * 10**9, 300 * 10**9))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert lines[0] == "pack: 60 of 300 samples, 60 GB of 300 GB, 1 GB/s, 4 min 00 s left"


def test_a_bar_with_rate_and_time_left_on_a_terminal(scans, tmp_path):
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-m", "fastload", "pack", str(scans), str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=child, stdout=subprocess.DEVNULL, cwd=REPO)
    os.close(child)
    shown = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(parent)
    assert process.wait() == 0
    assert b"pack:" in shown
    assert b"B/s" in shown
    assert b"%|" in shown


def test_ctrl_c_is_130_and_leaves_no_dataset(tmp_path):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 60_000 for i in range(60)})
    command = [sys.executable, "-m", "fastload", "pack", str(source), str(tmp_path / "out"), "--shard-size", "5MB"]
    process = subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "out/shards").glob("*.lmdb")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not (tmp_path / "out/dataset.json").exists()


def test_a_closed_pipe_is_no_traceback(packed):
    process = subprocess.Popen(
        [sys.executable, "-m", "fastload", "info", str(packed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPO,
    )
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert b"Traceback" not in err


def test_names_that_are_no_utf8_can_be_printed(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 5})
    (source / os.fsdecode(b"odd\xff.txt")).write_text("x")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = run_fastload("pack", source, tmp_path / "out", env=environment)
    assert done.returncode == 0, done.stderr
    assert r"odd\udcff.txt" in done.stderr or r"odd\xff.txt" in done.stderr
    assert run_fastload("pack", source, tmp_path / "o2", "--json", env=environment).returncode == 0


def test_import_and_help_load_neither_torch_nor_numpy():
    code = """
import sys, fastload
from fastload.cli.main import build_parser
build_parser().format_help()
assert not {"torch", "numpy", "lmdb"} & set(sys.modules), sorted(sys.modules)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_packing_does_not_load_torch(source, tmp_path):
    code = "import sys; from fastload.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    assert run_python(code, "pack", source, tmp_path / "out").returncode == 0


def test_public_names_are_there_and_listed():
    assert set(fastload.__all__) <= set(dir(fastload))
    for name in fastload.__all__:
        assert getattr(fastload, name) is not None
    assert callable(fastload.pack)
    assert callable(fastload.collate)
    with pytest.raises(AttributeError, match="nothing"):
        fastload.nothing


def test_the_parser_knows_all_verbs():
    text = build_parser().format_help()
    assert all(f"\n    {verb} " in text for verb in VERBS)
