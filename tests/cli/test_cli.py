"""The command: exit codes, what goes to stdout and stderr, and no traceback."""

import fcntl
import io
import json
import os
import pty
import shlex
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

VERBS = ("pack", "info", "ls", "verify", "repair", "unpack")


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
    assert text.isascii()


def test_help_says_what_an_overwrite_may_cost(capsys):
    with pytest.raises(SystemExit):
        main(["pack", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "removed before the new one is written" in text
    assert "leaves neither" in text


@pytest.mark.parametrize("words", ["{source} --shard-size 1MB {out}", "--overwrite {source} --force {out}",
                                   "semantickitti --quiet {source} {out}", "{source} {out} --subset"])  # fmt: skip
def test_words_and_options_may_be_mixed(source, tmp_path, words):
    assert main(["pack", *words.format(source=source, out=tmp_path / "out").split()]) == 0
    assert (tmp_path / "out/dataset.json").exists()


def test_verify_lists_the_first_problems_and_counts_the_rest(tmp_path, capsys):
    scans = write_tree(tmp_path / "source", {f"00/{i:06d}": 10 for i in range(30)})
    run(capsys, "pack", scans, tmp_path / "out")
    index = tmp_path / "out/index.npy"
    data = bytearray(index.read_bytes())
    shard = tmp_path / "out/shards/00000.lmdb"
    records = shard.read_bytes()
    for scan in scans.glob("sequences/00/velodyne/*"):
        records = records.replace(scan.read_bytes(), bytes(160))
    shard.write_bytes(records)
    index.write_bytes(data)
    code, _, err = run(capsys, "verify", tmp_path / "out")
    assert code == 1
    assert len(err.splitlines()) == 21
    assert err.splitlines()[-1] == "... and 10 more; --json lists all"


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


SLOW_PACK = """
import sys, time
from fastload.cli.main import main
from fastload.packing import execute
real = execute.ProgressCounter.add
execute.ProgressCounter.add = lambda self, nbytes: (time.sleep(0.5), real(self, nbytes))
sys.exit(main(sys.argv[1:]))
"""


def heed_ctrl_c():
    """A shell lets what it starts in the background ignore Ctrl-C, the tests among it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_is_130_and_leaves_no_dataset(tmp_path):
    source = write_tree(tmp_path / "source", {f"00/{i:06d}": 100 for i in range(60)})
    command = [sys.executable, "-c", SLOW_PACK, "pack", str(source), str(tmp_path / "out"), "--shard-size", "5kB"]
    process = subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c)
    while not list((tmp_path / "out/shards").glob("*.lmdb")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not (tmp_path / "out/dataset.json").exists()


def test_names_that_are_no_utf8_can_be_printed(tmp_path):
    source = write_tree(tmp_path / "source", {"00/000000": 5})
    (source / os.fsdecode(b"odd\xff.txt")).write_text("x")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = run_fastload("pack", source, tmp_path / "out", env=environment)
    assert done.returncode == 0, done.stderr
    assert r"odd\udcff.txt" in done.stderr or r"odd\xff.txt" in done.stderr
    assert run_fastload("pack", source, tmp_path / "o2", "--json", env=environment).returncode == 0


def run_with(redirections, *arguments, python=(), **options):
    """Run the command from a shell with these redirections: `>&-` closes stdout, `2>&-` stderr."""
    words = shlex.join([sys.executable, *python, "-m", "fastload", *map(str, arguments)])
    return subprocess.run(
        ["bash", "-c", f"{words} {redirections}"], capture_output=True, text=True, cwd=REPO, timeout=120, **options
    )


@pytest.fixture
def out(source, tmp_path):
    fastload.pack(source, tmp_path / "ready")
    return tmp_path / "ready"


CLOSED = (">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-")


@pytest.mark.parametrize("closed", CLOSED)
def test_closed_streams_change_nothing_else(out, source, tmp_path, closed):
    for number, (code, *arguments) in enumerate((
        (0, "info", out),
        (0, "info", out, "--json"),
        (0, "verify", out),
        (0, "pack", source, tmp_path / "new"),
        (0, "unpack", out, tmp_path / "again"),
        (2, "info", tmp_path / "nowhere"),
        (2, "info", tmp_path / "nowhere", "--json"),
        (1, "verify", source),
        (2, "bogus"),
        (0, "--help"),
    )):  # fmt: skip
        done = run_with(closed, *arguments)
        assert (number, done.returncode) == (number, code), done.stderr
        if ">&-" in closed.split():
            assert done.stdout == ""
        elif arguments[-1] == "--json":
            json.loads(done.stdout)
        elif code == 2:
            assert done.stdout == ""
        assert ("2>&-" in closed and done.stderr == "") or "Traceback" not in done.stderr
    assert tree_bytes(tmp_path / "again") == tree_bytes(source)
    assert tree_bytes(tmp_path / "new") == tree_bytes(out)  # nothing that was printed went into a file of ours


def test_files_do_not_get_the_numbers_of_closed_streams(out):
    code = """
import os, sys
from fastload.cli import streams
assert sys.stdout is None and sys.stderr is None
with streams.open_streams():
    print("to nobody"); print("to nobody", file=sys.stderr); os.write(1, b"x"); os.write(2, b"x")
    assert [os.get_inheritable(fd) for fd in (0, 1, 2)] == [True] * 3
    fd = os.open(sys.argv[1], os.O_RDONLY)
    assert fd > 2, fd
assert sys.stdout is None and sys.stderr is None
"""
    words = shlex.join([sys.executable, "-W", "error", "-c", code, str(out / "dataset.json")])
    assert subprocess.run(["bash", "-c", f"{words} <&- >&- 2>&-"], cwd=REPO).returncode == 0


@pytest.mark.parametrize("python", [(), ("-u",)])
@pytest.mark.parametrize("arguments", [
    ("info", "{out}"), ("info", "{out}", "--json"), ("verify", "{out}"), ("verify", "{out}", "--json"),
    ("unpack", "{out}", "{tmp}/again"), ("pack", "semantickitti", "{source}", "{tmp}/new"),
    ("info", "{tmp}/nowhere", "--json"), ("--help",), ("--version",), ("info", "--help"),
], ids=" ".join)  # fmt: skip
def test_a_full_stdout_is_a_message_and_1(out, source, tmp_path, arguments, python):
    words = [word.format(out=out, source=source, tmp=tmp_path) for word in arguments]
    done = run_with(">/dev/full", *words, python=python)
    assert done.returncode == 1
    *others, last = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert last.startswith("fastload")
    assert last.endswith(": standard output takes no more: No space left on device")
    assert len(others) == ("nowhere" in words[1] if len(words) > 1 else 0)  # the error itself, and no traceback


@pytest.mark.parametrize("lost", ["2>/dev/full", "2> >(true)", "2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}"])
def test_a_stderr_that_takes_no_more_changes_no_exit_code(out, source, tmp_path, lost):
    assert run_with(lost, "verify", out).returncode == 0
    assert run_with(lost, "pack", source, tmp_path / "new").returncode == 0
    assert run_with(lost, "bogus").returncode == 2
    assert run_with(lost, "info", tmp_path / "nowhere").returncode == 2
    assert fastload.verify(tmp_path / "new").ok


def test_a_reader_that_went_away_is_no_message(out):
    for arguments in (("info", out), ("verify", out, "--json"), ("--help",)):
        process = subprocess.Popen(
            [sys.executable, "-m", "fastload", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=REPO,
        )
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() == 1


@pytest.mark.parametrize("environment", [
    {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "utf-16-le"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
], ids=str)  # fmt: skip
def test_all_that_is_printed_suits_the_stream(source, tmp_path, environment):
    source = source.rename(tmp_path / "quellé 源")
    (source / "été.txt").write_text("x")
    out, broken = tmp_path / "geöffnet 開", tmp_path / "zerstört 壊"
    environment = {**os.environ, **environment}
    encoding = environment.get("PYTHONIOENCODING", "ascii")
    fastload.pack(source, broken)
    shard = broken / "shards/00000.lmdb"
    shard.write_bytes(
        shard.read_bytes().replace((source / "sequences/00/velodyne/000000.bin").read_bytes(), b"?" * 384)
    )
    for code, *arguments in (
        (0, "pack", source, out),
        (0, "info", out),
        (0, "info", out, "--json"),
        (0, "verify", out),
        (1, "verify", broken),
        (1, "verify", broken, "--json"),
        (0, "unpack", out, tmp_path / "zurück 戻"),
        (2, "unpack", out, tmp_path / "x", "--split", "prüfung 試"),
        (2, "info", tmp_path / "fehlt é 無", "--json"),
        (2, "prüfe 試"),
        (2, "info", out, "--é無"),
    ):
        command = [sys.executable, "-m", "fastload", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, cwd=REPO, env=environment, timeout=120)
        assert done.returncode == code, done.stderr.decode(encoding, "replace")
        text, messages = done.stdout.decode(encoding), done.stderr.decode(encoding)
        assert "Traceback" not in messages
        if arguments[-1] == "--json":
            json.loads(text)


def test_a_stream_without_an_encoding_is_printed_to(out, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["info", str(out)]) == 0
    assert stream.encoding is None
    assert str(out) in stream.getvalue()


@pytest.mark.parametrize(("arguments", "named"), [
    (("pack", "", "{tmp}/new"), "SRC"), (("pack", "{source}", ""), "OUT"), (("pack", "", ""), "SRC"),
    (("pack", "semantickitti", "", "{tmp}/new"), "SRC"), (("pack", "semantickitti", "{source}", ""), "OUT"),
    (("pack", "{source}", "{tmp}/new", "--splits", ""), "--splits"),
    (("pack", "{source}", "{tmp}/new", "--shard-size", ""), "shard_size"),
    (("pack", "", "{source}", "{tmp}/new"), "layout ''"),
    (("info", ""), "OUT"), (("verify", ""), "OUT"), (("verify", "", "--quick"), "OUT"),
    (("unpack", "", "{tmp}/new"), "OUT"), (("unpack", "{out}", ""), "DEST"), (("unpack", "", ""), "OUT"),
], ids=str)  # fmt: skip
def test_an_empty_argument_is_wrong_usage_and_never_the_current_folder(
    source, out, tmp_path, capsys, monkeypatch, arguments, named
):
    for folder in (source, out, tmp_path / "empty"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        before = tree_bytes(folder)
        words = [word.format(source=source, out=out, tmp=tmp_path) for word in arguments]
        code, text, err = run(capsys, *words)
        assert (code, text) == (2, "")
        assert f"fastload {arguments[0]}: {named}" in err.splitlines()[-1]
        assert tree_bytes(folder) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("where", ["build_parser", "_run"])
def test_ctrl_c_at_any_time_within_main_is_130(capsys, monkeypatch, where):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"fastload.cli.main.{where}", interrupted)
    code, out, err = run(capsys, "info", "x")
    assert (code, out) == (130, "")
    assert "interrupted" in err


@pytest.mark.parametrize("module", [
    "argparse", "fastload.cli.main", "fastload.cli.verify", "numpy", "fastload.store.info", "fastload.store.manifest",
])  # fmt: skip
def test_ctrl_c_during_an_import_is_130(out, module):
    code = f"""
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Interrupt())
sys.argv[:] = ["fastload", *sys.argv[1:]]
runpy.run_module("fastload", run_name="__main__")
"""
    done = run_python(code, "info", out)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr


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
    import fastload.store.info  # what was imported before, or by others, adds nothing

    assert set(fastload.__all__) <= set(dir(fastload))
    assert all(name in fastload.__all__ for name in dir(fastload) if not name.startswith("__"))
    for name in fastload.__all__:
        assert getattr(fastload, name) is not None
    assert callable(fastload.pack)
    assert callable(fastload.collate)
    with pytest.raises(AttributeError, match="nothing"):
        fastload.nothing


def test_the_parser_knows_all_verbs():
    text = build_parser().format_help()
    assert all(f"\n    {verb} " in text for verb in VERBS)


def test_a_quick_verification_says_what_it_did_not_look_at(packed):
    assert "no checksum of the data was read" in run_fastload("verify", packed, "--quick").stdout
    assert "no checksum" not in run_fastload("verify", packed).stdout
