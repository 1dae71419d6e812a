"""Short form of a process's command line, beginning with its script or module."""

from __future__ import annotations

import re
from functools import lru_cache

# No word fits two parts of the pattern, so a hostile command line can't make the search slow.
_STARTER = re.compile(
    r"""(?:\S*/)?(?:
    (?:python|pypy)[\d.]*t?(?:\s+-[WX]\s+\S+|\s+-(?![mcWX]\b)\S+)*\s+(?:-m\s+|(?!-))
    | (?:torchrun|deepspeed|accelerate\s+launch|torch\.distributed\.(?:run|launch))
      \s+(?:.*?\s)?(?:(?:-m|--module)\s+|(?=\S+\.py(?:\s|$)))
    | (?:ba|da|k|z)?sh(?:\s+-\S+)*\s+(?!-)
    | (?:cd|export|module|set|source|ulimit|\.)\s.*?(?:&&|;)\s+
    | (?:exec|env|nohup|\w+=\S*)\s+
    )""",
    re.VERBOSE,
)


@lru_cache(maxsize=4096)
def program(command: str) -> str:
    """Return a command line from its script or module on: "train.py -v" for "/opt/bin/python -u train.py -v".

    Interpreters, shells, torchrun and their options are left out, as is the script's folder. The words arrive
    joined by spaces, so `bash -c` is followed to the first command that does more than prepare.
    """
    while (start := _STARTER.match(command)) and start.end() < len(command):
        command = command[start.end() :]
    name, space, arguments = command.partition(" ")
    return (name.rpartition("/")[2] or name) + space + arguments
