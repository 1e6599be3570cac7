"""Tables in Markdown."""

from __future__ import annotations

from emugpu.markdown import table


def test_a_table_has_a_line_for_each_row_whatever_is_in_it():
    rows = [("kernel7", "297,321", ""), ("`ld.shared|ld.global`", "", "two\nlines")]
    assert list(table(("run", "cycles", "what"), rows, right={"cycles"})) == [
        "| run | cycles | what |",
        "|---|---:|---|",
        "| kernel7 | 297,321 | |",
        "| `ld.shared\\|ld.global` | | two lines |",
    ]
    assert list(table(("", "n"), [])) == ["| | n |", "|---|---|"]
