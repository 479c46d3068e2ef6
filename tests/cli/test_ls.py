"""`fastload ls`: names for pipes, a table for people, objects for programs; in order, and never a traceback."""

import json
import os
import shutil
import subprocess
import sys
import unicodedata

import numpy as np
import pytest

import fastload
from fastload import PackedDataset
from fastload.cli.main import main
from fastload.schema import Field, Schema
from tests.support import REPO, MadeSample, rebind, run_fastload, run_python, write_store, write_tree

RAW, CONTROL, FOREIGN = os.fsdecode(b"raw\xff\xe9"), "new\nline\x1b[31m\t\x7f\x9b\\", "\u00e9 \u7121"
SCHEMA = Schema((
    Field("points", "array", "float32", (4,), "points"),
    Field("semantic", "array", "uint16", (), "points"),
    Field("image", "image"),
    Field("pose", "array", "float64", (4, 4)),
))  # fmt: skip


def run(capfdbinary, *arguments):
    code = main(list(map(str, arguments)))
    out, err = capfdbinary.readouterr()
    return code, out, err.decode()


@pytest.fixture
def odd(tmp_path):
    """Names and samples of all kinds: split a with numbers 0 to 2, split b with 3 to 5."""
    points = {"points": np.zeros((3, 4), np.float32)}
    write_store(tmp_path / "odd", SCHEMA, [
        MadeSample("empty", "a", {"points": np.zeros((0, 4), np.float32)}),
        MadeSample("pose", "a", {"pose": np.zeros((4, 4))}),
        MadeSample(RAW, "a", points | {"semantic": np.zeros(3, np.uint16)}),
        MadeSample(CONTROL, "b", {}),
        MadeSample("p", "b", points | {"image": np.zeros(77, np.uint8)}),
        MadeSample(FOREIGN, "b", points),
    ])  # fmt: skip
    return tmp_path / "odd"


def test_names_one_a_line_in_order(packed, capfdbinary):
    code, out, err = run(capfdbinary, "ls", packed)
    assert (code, err) == (0, "")
    assert out.decode().splitlines() == list(PackedDataset(packed).names)
    for split in ("train", "val"):
        out = run(capfdbinary, "ls", packed, "--split", split)[1]
        assert out.decode().splitlines() == list(PackedDataset(packed, split).names)
    assert run(capfdbinary, "ls", packed, "--quiet")[1].count(b"\n") == 6


def test_names_that_are_no_utf8_are_their_bytes_and_control_characters_escapes(odd, capfdbinary):
    lines = run(capfdbinary, "ls", odd)[1].split(b"\n")
    assert lines == [
        b"empty", b"pose", b"raw\xff\xe9", rb"new\nline\x1b[31m\t\x7f\x9b" + b"\\\\", b"p", FOREIGN.encode(), b"",
    ]  # fmt: skip
    assert run(capfdbinary, "ls", odd, "--long")[1].splitlines()[3].endswith(b"  raw\xff\xe9")


CATEGORIES = ("Cc", "Cf", "Zl", "Zp")
HIDDEN = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in CATEGORIES]
SPOOFS = [
    "a\u2028b", "a\u2029b", "a\x85b", "a\u202eb", "a\u2066b", "a\u200bb", "a\ufeffb", "a\nb", "a\\nb", "a\\u2028b",
    "a\\\\nb", "ab", "a\\", "a\rb", "a\x1b]0;title\x07b", "a\U000e0041b", "a\x9b2Jb", "a\vb", "a\fb", "a\x1cb",
    "\u00e9 \u3000\u7121 \U0001f600",
]  # fmt: skip


@pytest.mark.parametrize("option", [(), ("--long",)])
def test_no_name_breaks_a_line_or_looks_like_another(tmp_path, capfdbinary, option):
    """Names of samples and splits: one line each, of printable characters, all different; --json has them exact."""
    samples = [MadeSample(f"{at}{name}", split, {}) for at, split in enumerate(SPOOFS) for name in (*SPOOFS, *HIDDEN)]
    write_store(tmp_path / "d", SCHEMA, samples, per_shard=len(samples))
    text = run(capfdbinary, "ls", tmp_path / "d", *option)[1].decode()
    lines = text.splitlines()[len(option) :]
    assert text.count("\n") == len(lines) + len(option)
    assert not set("".join(lines)) & set(HIDDEN)
    infos = [PackedDataset(tmp_path / "d").info(index) for index in range(len(samples))]
    splits = {}
    for line, info in zip(lines, infos, strict=True):
        end = line[text.index("name") :] if option else line
        assert (end.encode().decode("unicode_escape") if end.isascii() else end) == info.name
        splits.setdefault(info.split, set()).add(line.split()[1] if option else "")
    assert len(set.union(*splits.values())) == (len(SPOOFS) if option else 1)
    assert all(len(shown) == 1 for shown in splits.values())
    objects = [json.loads(line) for line in run(capfdbinary, "ls", tmp_path / "d", "--json")[1].splitlines()]
    assert [(values["name"], values["split"]) for values in objects] == [(info.name, info.split) for info in infos]
    err = run(capfdbinary, "ls", tmp_path / "d", "--split", "nope")[2]
    assert err.endswith("choose one of them\n")
    assert not set(err[:-1]) & set(HIDDEN)


def test_one_split_at_a_time(odd, capfdbinary):
    """An index counts within one split or in all, so several are refused, whatever the form."""
    for option in ((), ("--long",), ("--json",)):
        for again in ("b", "a", "nope\n"):
            code, out, err = run(capfdbinary, "ls", odd, "--split", "a", *option, "--split", again)
            assert code == 2
            assert f"--split: found 'a', {again!r}; expected one" in err
            assert (list(json.loads(out)) if out else []) == (
                ["schema", "fastload_version", "error", "problems"] if option == ("--json",) else []
            )


def test_numbers_are_those_of_the_whole_dataset(odd, capfdbinary):
    for option in ((), ("--long",)):
        lines = run(capfdbinary, "ls", odd, "--split", "b", "--json", *option)[1].splitlines()
        assert [(values["index"], values["number"]) for values in map(json.loads, lines)] == [(0, 3), (1, 4), (2, 5)]


def test_names_lead_back_to_their_samples_through_a_pipe(tmp_path):
    source = write_tree(tmp_path / "source", {f"00/{number:06d}": 5 for number in range(3)})
    velodyne = source / "sequences/00/velodyne"
    (velodyne / "000001.bin").rename(velodyne / os.fsdecode(b"a\xff b.bin"))
    shutil.rmtree(source / "sequences/00/labels")
    fastload.pack(source, tmp_path / "d")
    words, root = f"{sys.executable} -m fastload", tmp_path / "d"
    pipe = f"{words} ls {root} | grep -a 'b$' | tr '\\n' '\\0' | xargs -0 {words} unpack {root} {tmp_path}/x --name"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", pipe], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "x").rglob("*.bin")] == [os.fsdecode(b"a\xff b.bin")]


def test_a_stdout_that_lacks_characters_gets_escapes(odd):
    for variables in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        command = [sys.executable, "-m", "fastload", "ls", str(odd)]
        done = subprocess.run(command, cwd=REPO, env=os.environ | variables, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        lines = done.stdout.split(b"\n")
        assert lines[2] == b"raw\xff\xe9"
        assert lines[5] == rb"\xe9 \u7121"


def test_a_stdout_of_text_only_takes_the_names(odd, monkeypatch):
    import io

    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["ls", str(odd)]) == 0
    assert stream.getvalue().splitlines()[:2] == ["empty", "pose"]


def test_the_table_is_aligned_and_says_what_is_stored(odd, capfdbinary):
    out = run(capfdbinary, "ls", odd, "--long")[1].decode("utf-8", "surrogateescape")
    header, *lines = out.splitlines()
    titles = header.split()
    assert titles == ["number", "split", "points", "bytes", "shard", "fields", "name"]
    assert len(lines) == 6
    name_at = header.index("name")
    dataset = PackedDataset(odd)
    for index, line in enumerate(lines):
        info = dataset.info(index)
        points = "-" if info.points is None else str(info.points)
        cells = [str(index), info.split, points, str(info.nbytes), info.shard, ",".join(info.fields) or "-"]
        assert line[:name_at].split() == cells
        assert line[name_at - 2 : name_at] == "  "
        for column in ("number", "points", "bytes"):
            end = header.index(column) + len(column)
            assert line[end - 1] != " "
            assert line[end] == " "
    (line,) = run(capfdbinary, "ls", odd, "--long", "--split", "b")[1].splitlines()[2:3]
    assert line.split()[:3] == [b"4", b"b", b"3"]


def test_json_is_one_object_a_line_with_all_that_is_known(odd, capfdbinary):
    for more in ((), ("--long",), ("--quiet",)):
        code, out, err = run(capfdbinary, "ls", odd, "--json", *more)
        assert (code, err) == (0, "")
        objects = [json.loads(line) for line in out.splitlines()]
        dataset = PackedDataset(odd)
        assert len(objects) == 6
        for index, values in enumerate(objects):
            info = dataset.info(index)
            assert list(values.items()) == [
                ("schema", "fastload.ls/1"), ("fastload_version", fastload.__version__), ("name", info.name),
                ("index", index), ("number", info.number), ("split", info.split), ("points", info.points),
                ("bytes", info.nbytes), ("shard", info.shard),
                ("fields", {name: list(shape) for name, shape in info.fields.items()}),
            ]  # fmt: skip
    objects = [json.loads(line) for line in run(capfdbinary, "ls", odd, "--json", "--split", "b")[1].splitlines()]
    assert [(values["index"], values["name"]) for values in objects] == [(0, CONTROL), (1, "p"), (2, FOREIGN)]


def test_an_empty_dataset_gives_nothing_and_the_table_its_header(tmp_path, capfdbinary):
    write_store(tmp_path / "d", SCHEMA, [])
    assert run(capfdbinary, "ls", tmp_path / "d") == (0, b"", "")
    assert run(capfdbinary, "ls", tmp_path / "d", "--json") == (0, b"", "")
    assert run(capfdbinary, "ls", tmp_path / "d", "--long")[1].split()[0] == b"number"


def test_wrong_requests_have_the_codes_of_the_other_verbs(packed, tmp_path, capfdbinary):
    for code, text, *words in (
        (2, "split 'nope'", packed, "--split", "nope"),
        (2, "train, val; choose one of them", packed, "--split", ""),
        (2, "no such file or folder", tmp_path / "nowhere"),
        (2, "OUT: the path is empty", ""),
        (1, "not a packed dataset", tmp_path),
        (1, "not a folder", packed / "dataset.json"),
    ):
        for option in ((), ("--long",)):
            assert run(capfdbinary, "ls", *words, *option)[:2] == (code, b"")
        found, out, err = run(capfdbinary, "ls", *words, "--json")
        assert found == code
        assert text in err
        assert "Traceback" not in err
        assert list(json.loads(out)) == ["schema", "fastload_version", "error", "problems"]
    with pytest.raises(SystemExit) as exit_:
        main(["ls", str(packed), "--bogus"])
    assert exit_.value.code == 2


@pytest.mark.parametrize("file", ["names.bin", "names.npy", "index.npy", "dataset.json"])
@pytest.mark.parametrize("option", ["--long", "--json"])
def test_damage_is_1_and_named(packed, tmp_path, capfdbinary, file, option):
    shutil.copytree(packed, tmp_path / "d")
    data = bytearray((tmp_path / "d" / file).read_bytes())
    data[-9] ^= 1
    (tmp_path / "d" / file).write_bytes(data)
    code, _, err = run(capfdbinary, "ls", tmp_path / "d", option)
    assert code == 1
    assert file in err
    (tmp_path / "d" / file).unlink()
    code, _, err = run(capfdbinary, "ls", tmp_path / "d", option)
    assert code == 1
    assert file in err
    assert "Traceback" not in err


def test_what_was_sound_is_listed_before_the_damage_is_named(packed, tmp_path):
    shutil.copytree(packed, tmp_path / "d")
    index = np.load(tmp_path / "d/index.npy")
    index["shard"][4] = 9
    with open(tmp_path / "d/index.npy", "wb") as file:
        np.lib.format.write_array(file, index, version=(3, 0))
    rebind(tmp_path / "d")
    done = run_fastload("ls", tmp_path / "d", "--json")
    assert done.returncode == 1
    assert "index.npy: row 4 (sequences/08/velodyne/000001) is damaged" in done.stderr
    assert "error" in json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("option", ["", "--long", "--json"])
@pytest.mark.parametrize("python", ["", "-u"])
def test_a_reader_that_has_read_enough_is_no_error(tmp_path, option, python):
    names = [MadeSample(f"{number:05d}{'x' * 200}", "all", {}) for number in range(3000)]
    write_store(tmp_path / "d", SCHEMA, names, per_shard=3000)
    command = f"{sys.executable} {python} -m fastload ls {tmp_path}/d {option} | head -n 2"
    done = subprocess.run(["bash", "-c", command], cwd=REPO, capture_output=True, text=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2
    whole = subprocess.run(
        ["bash", "-c", command.replace("head -n 2", "cat")], cwd=REPO, capture_output=True, text=True
    )
    assert [line for line in whole.stdout.splitlines() if "x" * 200 in line][-1].count("02999x") == 1
    assert whole.stdout.count("x" * 200) == 3000


def test_a_full_or_closed_stdout(packed):
    command = f"{sys.executable} -m fastload ls {packed}"
    full = subprocess.run(["bash", "-c", f"{command} > /dev/full"], cwd=REPO, capture_output=True, text=True)
    assert (full.returncode, full.stderr) == (
        1,
        "fastload ls: standard output takes no more: No space left on device\n",
    )
    closed = subprocess.run(["bash", "-c", f"{command} >&-"], cwd=REPO, capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_nothing_heavy_is_loaded(packed):
    code = """
import sys
from fastload.cli.main import main
assert main(sys.argv[1:]) == 0
assert not {"torch", "fastload.dataset", "fastload.packing"} & set(sys.modules)
"""
    for option in ((), ("--long",), ("--json",)):
        done = run_python(code, "ls", packed, *option)
        assert done.returncode == 0, done.stderr


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["ls", "--help"])
    text = capsys.readouterr().out
    assert exit_.value.code == 0
    assert "examples:\n  fastload ls " in text
    assert "one JSON object a line" in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 120
