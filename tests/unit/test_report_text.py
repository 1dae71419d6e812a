"""Names and messages of reports lose the folders of paths and secrets, and nothing else."""

from __future__ import annotations

import time

import pytest

from gswarm_tui.profiling.report_text import LONGEST_READ, clean_text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/home/ada/train.py(12): step", "train.py(12): step"),
        ("load '/home/my data/x.bin' of 3", "load 'x.bin' of 3"),
        ("/home/my data/x.bin", "x.bin"),
        ("load /scratch//ada/x", "load x"),
        ("load //scratch/ada/x", "load x"),
        ("file:///home/ada/x.py", "x.py"),
        ("../secret/x $HOME/secret/y ${D}/secret/z ~ada/secret/w", "x y z w"),
        ("(/home/(ada)/x=1,2/a:b/c.py)", "(c.py)"),
        ("glob /home/*/x#1/*.py", "glob *.py"),
        ("{'path': '/home/ada/x'}", "{'path': 'x'}"),
        ("token=abcdefgh12345", "token=***"),
        ("two\nlines", "two lines"),
        # Names that only look like paths stay.
        ("forward/attention/softmax", "forward/attention/softmax"),
        ("step 3/10", "step 3/10"),
        ("tokens / second / GPU", "tokens / second / GPU"),
        ("operator/(float const*, int)", "operator/(float const*, int)"),
        ("void scale<half, 4>(half*, float)", "void scale<half, 4>(half*, float)"),
    ],
)
def test_folders_and_secrets_are_removed(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@pytest.mark.parametrize("piece", ["/", "/a", "(/", "/a ", " /", "~/a", "'/a", "../", "$a/", "file:/"])
def test_long_names_are_cleaned_in_time(piece: str) -> None:
    began = time.process_time()
    clean_text(piece * (LONGEST_READ // len(piece)))
    assert time.process_time() - began < 2
