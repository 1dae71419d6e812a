"""Short form of a process's command line, beginning with its script or module."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

# Modules that start another one, as torch.distributed.run and accelerate.commands.launch.
_LAUNCHER = re.compile(r"torch\.distributed\.|.*launch")
# At the start of a word: "./mesh 8" and "train --mode push 8" have no shell.
_INTERPRETER = re.compile(r"(?<!\S)(?:\S*/)?(?:(?:python|pypy)[\d.]*t?|(?:ba|da|k|z)?sh) (?=[^\s-])")


@lru_cache(maxsize=4096)
def program(command: str) -> str:
    """Return a command line from its script or module on: "train.py -v" for "srun python -u ./train.py -v".

    The script is the first word that ends in .py or is a module after ``-m``, else the first that ends in
    .sh, so srun, numactl, a shell or torchrun in front don't hide it. Its folder is left out. Without any, as
    in "python /opt/bin/vllm serve", only the interpreter is left out.
    """
    words = command.split(" ")
    for ending in (".py", ".sh"):
        for index, (before, word) in enumerate(pairwise(["", *words])):
            is_module = before in {"-m", "--module"} and word.replace(".", "").isidentifier()
            if (is_module and not _LAUNCHER.match(word)) or (word.endswith(ending) and word[0] != "-"):
                return " ".join([word.rpartition("/")[2], *words[index + 1 :]])
    name, space, arguments = _INTERPRETER.sub("", command, count=1).partition(" ")
    return (name.rpartition("/")[2] or name) + space + arguments
