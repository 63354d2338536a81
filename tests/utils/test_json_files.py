"""JSON that is damaged or written by anybody."""

from __future__ import annotations

import pytest

from sce_video.utils.files import parse_json, read_json, read_json_lines


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "Expecting property name"),
        (b"\xff{}", "invalid start byte"),
        (b"[" * 100_000, "recursion"),
        (b"[" * 60 + b"]" * 60, "nested more than 50 deep"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "nested more than 50 deep"),
        (b"1" * 5000, "limit"),
    ],
)
def test_the_file_and_the_reason_are_named(tmp_path, content, reason):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json is not JSON: .*{reason}"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.json.* is not JSON"):
        list(read_json_lines(tmp_path / "a.json") if b"\xff" in content else [parse(content)])


def parse(content):
    return parse_json(content.decode(), "a.json, line 3")


def test_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a": ')
    assert [row for _, row in read_json_lines(path)] == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2 is not JSON"):
        list(read_json_lines(path))
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1 is no object"):
        list(read_json_lines(path))
