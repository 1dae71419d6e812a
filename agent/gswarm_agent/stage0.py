"""The first thing that runs on a node: given to a bare ``python3 -IS -c``, with BUNDLE PACKAGE FOLDERS ARGS…

It finds or fetches the agent and becomes it, in the same process. BUNDLE is the hash of the bundle's
manifest, PACKAGE that of the agent's own lines in it. FOLDERS, in hex and with zeros between them, are where
the head itself imports these from, which a node may share. What Python does at its start to find installed
packages is left out (-S): it takes 3 ms, and ten times as long where some of them bring code for that.

Before the agent speaks, this may say on standard output: ``GSWARM-OLD VERSION`` (this Python is too old; exit
status 64 lets another be tried), ``GSWARM-NEED ID`` (answer with eight bytes of length and the payload) or
``GSWARM-FAIL KIND TEXT``. Every Python 3 must be able to read this file, and it imports only what it needs,
because it is in the way of the first frame.
"""

import errno
import os
import stat
import sys

# hashlib, the last, brings OpenSSL: that takes 3 ms, and 4 MB of what the agent may use.
for module in ("_sha2", "_sha256", "hashlib"):
    try:
        hashing = __import__(module)
        break
    except ImportError:
        pass


def digest(data: bytes) -> str:
    """The SHA-256, in hex."""
    return str(hashing.sha256(data).hexdigest())


def say(text: str) -> None:
    """Tell the head something, a line."""
    os.write(1, (text + "\n").encode("utf-8", "replace"))


def failure(kind: str, text: str) -> SystemExit:
    """Tell the head why no agent will come; raise what this returns."""
    say("GSWARM-FAIL %s %s" % (kind, text))
    return SystemExit(3)


def content(path: str) -> bytes:
    """A whole file."""
    with open(path, "rb") as file:
        return file.read()


def line(data: bytes, name: str) -> str:
    """The manifest's line for a file."""
    return "%s %d %s\n" % (digest(data), len(data), name)


def package_in(folders: "list[str]") -> str:
    """The hash of the agent in these folders; empty where they don't have it and all that it needs."""
    for name in ("pynvml.py", "msgpack/__init__.py", "gswarm_agent/__init__.py"):
        tops = [folder for folder in folders if os.path.isfile(os.path.join(folder, name))]
        if not tops:
            return ""
    top = tops[0]
    names = [
        os.path.relpath(os.path.join(folder, name), top)
        for folder, _, found in os.walk(os.path.join(top, "gswarm_agent"))
        for name in found
        if name.endswith(".py")
    ]
    lines = [line(content(os.path.join(top, name)), name) for name in sorted(names)]
    return digest("".join(lines).encode())


def make_private(folder: str) -> None:
    """Make sure that a folder is there, is ours, and that nobody else can write to it."""
    os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(errno.EPERM, "not a private folder of this user")


def is_whole(folder: str, bundle: str) -> bool:
    """Whether every file of the bundle is in the folder, as it should be."""
    try:
        manifest = content(os.path.join(folder, "MANIFEST"))
        if digest(manifest) != bundle:
            return False
        for listed in manifest.decode().splitlines(True):
            name = listed.rstrip("\n").split(" ", 2)[2]
            if line(content(os.path.join(folder, name)), name) != listed:
                return False
    except FileNotFoundError:
        return False
    return True


def receive(count: int) -> bytes:
    """So many bytes from the head."""
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            raise SystemExit(3)
        data += more
    return data


def fetch(bundle: str) -> "dict[str, bytes]":
    """The bundle's files from the head, the manifest last: path -> content."""
    import zlib

    say("GSWARM-NEED " + bundle)
    manifest, _, rest = zlib.decompress(receive(int.from_bytes(receive(8), "big"))).partition(b"\0")
    if digest(manifest) != bundle:
        raise failure("payload", "MANIFEST")
    files = {}
    for listed in manifest.decode().splitlines(True):
        size, name = listed.rstrip("\n").split(" ", 2)[1:]
        files[name], rest = rest[: int(size)], rest[int(size) :]
        if line(files[name], name) != listed:
            raise failure("payload", name)
    files["MANIFEST"] = manifest
    return files


def write(path: str, data: bytes) -> None:
    """Put a file in its place at once: others who use the folder see the old one or the new one, whole."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    temporary = "%s.%s.%d" % (path, os.uname().nodename, os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise


def place(bundle: str) -> str:
    """A folder that holds the bundle, whole: in the user's cache, else under /tmp."""
    files = None
    problems = []
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.expanduser("~/.cache")
    for top in (os.path.join(cache, "gswarm-tui"), "/tmp/gswarm-tui-%d" % os.geteuid()):  # noqa: S108  # private
        folder = os.path.join(top, "agent-" + bundle[:16])
        try:
            make_private(top)
            make_private(folder)
            if not is_whole(folder, bundle):
                files = files or fetch(bundle)
                for name, data in files.items():
                    write(os.path.join(folder, name), data)
            return folder
        except OSError as error:
            problems.append("%s: %s" % (top, error.strerror))
    raise failure("cache", "; ".join(problems))


def main() -> None:
    """Become the agent."""
    if sys.version_info < (3, 9):
        say("GSWARM-OLD %d.%d.%d" % sys.version_info[:3])
        raise SystemExit(64)
    bundle, package, told = sys.argv[1:4]
    folders = os.fsdecode(bytes.fromhex(told)).split("\0") if told else []
    if package_in(folders) == package:
        sys.path += folders  # last, because other packages that are there must not hide Python's own
    else:
        sys.path.insert(0, place(bundle))
    from gswarm_agent.__main__ import main as run

    sys.exit(run(sys.argv[4:]))


if __name__ == "__main__":
    main()
