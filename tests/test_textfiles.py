"""Settings in YAML and JSON: plain values, and nothing said twice."""

import errno
import json
import os

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fastload.errors import ResourceError
from fastload.textfiles import ContentError, parse_json, parse_yaml, read_content

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text("abcdeäß 中.", max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcd", max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_json_means_what_it_means_to_python_and_to_yaml(value):
    text = json.dumps(value)
    assert parse_json(text) == parse_yaml(text) == value


@pytest.mark.parametrize("text", [
    "a: 1\nb: 2\na: 3\n", "a: 1\n'a': 1\n", "{a: 1, a: 1}", "10: x\n0xA: y\n", "x:\n  y:\n    a: 1\n    a: 2\n",
    "- {a: 1}\n- {b: 1, b: 2}\n", "true: 1\nyes: 2\n", "base: &b {x: 1, x: 2}\nc: {<<: *b}\n",
])  # fmt: skip
def test_a_key_that_comes_twice_in_yaml_is_refused_with_its_lines(text):
    with pytest.raises(ContentError, match=r"key '.*' comes twice \(lines \d and \d\)"):
        parse_yaml(text)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', '{"x": [{"a": 1, "a": 1}]}', '{"a": 1, "\\u0061": 2}'])
def test_a_key_that_comes_twice_in_json_is_refused(text):
    with pytest.raises(ContentError, match="key 'a' comes twice"):
        parse_json(text)


@pytest.mark.parametrize("text", [
    "a: &a {x: 1, y: 1}\nb: {<<: *a, x: 2}\nc: {x: 2, <<: *a}\n",
    "p:\n  q: &b\n    <<: &a {x: 1, y: 1}\n    x: 2\nc: {<<: *b, y: 3}\nd: {<<: [*a, *b]}\n",
    "=: 1\nb: {=: 2}\n",
])  # fmt: skip
def test_merge_keys_override_on_purpose(text):
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("text", [
    "a: [1", "\ta: 1", "a: !!python/object/apply:os.getcwd []", "[" * 9000, "a: 2024-99-99", "a: \x01",
    "--- 1\n--- 2", "[1]: 2", "!!binary 9: 1",
])  # fmt: skip
def test_what_is_no_yaml_is_refused(text):
    with pytest.raises(ContentError, match="cannot be parsed"):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["{a: 1}", "[1", "", "[" * 99_999])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ContentError, match="cannot be parsed"):
        parse_json(text)


@pytest.mark.parametrize("digits", ["9" * 40, "-" + "9" * 40, "9" * 9000, "0x" + "f" * 9000])
def test_numbers_of_absurd_size_are_refused(digits):
    for parse in (parse_yaml, parse_json)[: 1 if "x" in digits else 2]:
        with pytest.raises(ContentError):
            parse(f"[{digits}]")


def test_the_name_tells_the_form_and_bytes_must_be_text(tmp_path):
    for name, text in (("a.yaml", "\ufeffa: [1]"), ("a.json", '\ufeff{"a": [1]}'), ("a", "a:\n- 1\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_content(tmp_path / name) == read_content(str(tmp_path / name)) == {"a": [1]}
    (tmp_path / "b.json").write_text("a: 1")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("b.json", "c.yaml"):
        with pytest.raises(ContentError):
            read_content(tmp_path / name)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(OSError, match="not a regular file"):
        read_content(tmp_path / "a.yaml")


def test_running_out_of_descriptors_is_said(tmp_path, monkeypatch):
    def refuse(path, *arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ResourceError, match=r"a\.yaml: cannot be opened, too many open files"):
        read_content(tmp_path / "a.yaml")


def test_numbers_with_leading_zeros_stay_what_was_written() -> None:
    assert parse_yaml("[00, 01, 08, 010, 10, 0, -5, 0x10]") == ["00", "01", "08", "010", 10, 0, -5, 16]
