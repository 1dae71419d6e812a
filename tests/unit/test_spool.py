"""The spool loses no frame in any order of events until it is full; then it counts the losses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gswarm_agent import spool as spool_module
from gswarm_agent.folder import Folder
from gswarm_agent.frame import TABLES, Frame, Hello, HostFacts
from gswarm_agent.metrics import HOST_COLUMNS
from gswarm_agent.spool import ENDED, UNREADABLE, Record, Spool, pack, unpack
from gswarm_agent.wire import MAGIC, WIRE_VERSION, Decoder, Lost, encode

HELLO = Hello("1", "", 1000, False, HostFacts("n1", "boot"), (), {})
HEADER = b"gswarm-spool %d\n" % WIRE_VERSION


def frame(seq: int) -> Frame:
    row = (float(seq), *(None,) * (len(HOST_COLUMNS) - 1))
    return TABLES.frame(seq, 10**18 + seq, 0.0, 0, gpus=(), host=row)


def everything(spool: Spool, life: str, at_once: int = 300) -> list[Frame]:
    """Return all waiting frames of a life, as a head gets them."""
    decoder, after = Decoder(), 0
    hello = encode(replace(HELLO, life=life)) if life == spool.life else spool.hello(life)
    list(decoder.feed(MAGIC + hello))
    found: list[Frame] = []
    while records := spool.read(life, after, at_once):
        after = records[-1].seq
        for message in decoder.feed(b"".join(record.data for record in records)):
            assert isinstance(message, Frame)
            found.append(message)
    return found


def dropped(spool: Spool, life: str) -> int:
    """Return how many frames are reported as lost to a head that has none yet."""
    return sum(gap.seq - after for after, gap in gaps(spool, life))


def gaps(spool: Spool, life: str) -> list[tuple[int, Lost]]:
    """Return the reported losses of a life, each with the sequence before it."""
    found, after = list[tuple[int, Lost]](), 0
    while records := spool.read(life, after, 300):
        if gap := spool.lost_before(life, after, records[0]):
            found.append((after, gap))
        after = records[-1].seq
    if gap := spool.lost_at_the_end(life, after):
        found.append((after, gap))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(str(tmp_path / "top"), "rec@n1", create=True)
    yield folder
    folder.close()


def begun(folder: Folder, life: str, memory: int = 10**6, disk: int = 10**6) -> Spool:
    spool = Spool(folder, memory, disk)
    spool.begin(replace(HELLO, life=life))
    return spool


class Lives(RuleBasedStateMachine):
    """Random test of an agent that puts frames, spills, ends and restarts, and a head that acknowledges."""

    def __init__(self) -> None:
        super().__init__()
        self.place = TemporaryDirectory()
        self.folder = Folder(f"{self.place.name}/top", "rec@n1", create=True)
        self.kept: dict[str, list[int]] = {}
        self.acknowledged: dict[str, int] = {}
        self.number = 0
        self.begin()

    def teardown(self) -> None:
        self.folder.close()
        self.place.cleanup()

    @rule()
    def a_life_ends_and_the_next_begins(self) -> None:
        self.spool.spill()
        self.begin()

    def begin(self) -> None:
        self.number, self.seq = self.number + 1, 0
        self.life = f"life{self.number}"
        self.spool = begun(self.folder, self.life, memory=3_000)
        for life, seq in self.acknowledged.items():
            self.spool.acknowledge(life, seq)
        self.kept[self.life] = []

    @rule(count=st.integers(1, 40))
    def measures(self, count: int) -> None:
        for _ in range(count):
            self.seq += 1
            self.spool.put(frame(self.seq))
            self.kept[self.life].append(self.seq)

    @rule()
    def spills(self) -> None:
        assert self.spool.spill()

    @rule(data=st.data())
    def acknowledges(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from(sorted(self.kept)))
        upto = data.draw(st.integers(0, max(self.kept[life], default=0)))
        self.spool.acknowledge(life, upto)
        self.acknowledged[life] = max(upto, self.acknowledged.get(life, 0))
        self.kept[life] = [seq for seq in self.kept[life] if seq > upto]

    @rule(after=st.integers(0, 50))
    def goes_on_from(self, after: int) -> None:
        wanted = [seq for seq in self.kept[self.life] if seq > after]
        found = [record.seq for record in self.spool.read(self.life, after, 10**9)]
        assert found == wanted[: len(found)]
        assert bool(found) == bool(wanted)

    @invariant()
    def delivers_what_is_not_acknowledged(self) -> None:
        for life, kept in self.kept.items():
            assert [each.seq for each in everything(self.spool, life)] == kept
        left = {waiting["life"]: waiting["frames"] for waiting in self.spool.waiting()}
        assert left == {life: len(kept) for life, kept in self.kept.items() if kept}
        assert self.spool.empty == (not left)
        assert set(self.spool.former_lives()) == set(left) - {self.life}


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 1_000)


records = st.lists(
    st.builds(Record, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=60)),
    max_size=6,
)


@given(records, st.integers(0, 400))
def test_a_file_cut_off_anywhere_yields_its_first_records(written: list[Record], cut: int) -> None:
    content = HEADER + b"".join(map(pack, written))
    found = list(unpack(content[:cut]))
    assert found == written[: len(found)]
    assert list(unpack(content)) == written
    if cut >= len(content):
        assert found == written


@given(records.filter(bool), st.data())
def test_a_changed_byte_is_detected(written: list[Record], data: st.DataObject) -> None:
    content = bytearray(HEADER + b"".join(map(pack, written)))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    found = list(unpack(bytes(content)))
    assert found == written[: len(found)]
    assert len(found) < len(written)


@given(st.binary(max_size=200))
def test_any_other_file_has_no_records(content: bytes) -> None:
    assert list(unpack(content)) == []


@pytest.mark.parametrize("harm", ["truncated", "empty", "garbage", "other version"])
def test_a_damaged_segment_loses_its_own_frames_only(folder: Folder, tmp_path: Path, harm: str) -> None:
    spool = begun(folder, "one")
    for seq in range(1, 61):
        spool.put(frame(seq))
    spool.spill()
    first, *others = sorted((tmp_path / "top/rec@n1").glob("*.frames"))
    assert others
    whole = first.read_bytes()
    after = int(others[0].stem.rpartition("-")[2])
    first.write_bytes(
        {
            "truncated": whole[:-3],
            "empty": b"",
            "garbage": b"\xff" * 100,
            "other version": b"gswarm-spool 999\n" + whole[len(HEADER) :],
        }[harm]
    )
    again = begun(folder, "two")
    found = [each.seq for each in everything_of(again, "one")]
    assert found[-1] == 60
    assert found == (list(range(1, after - 1)) if harm == "truncated" else []) + list(range(after, 61))
    again.acknowledge("one", 60)
    assert again.empty


def everything_of(spool: Spool, life: str) -> list[Frame]:
    """Return the frames of a life and then its hello, read in the order in which delivery does."""
    spool.read(life, 0, 1)
    return everything(spool, life)


def test_the_oldest_frames_are_dropped_and_counted_at_the_disk_bound(folder: Folder) -> None:
    spool = begun(folder, "one", memory=1_000, disk=6_000)
    for seq in range(1, 301):
        spool.put(frame(seq))
    found = everything(spool, "one")
    assert [each.seq for each in found] == list(range(found[0].seq, 301))
    ((_, gap),) = gaps(spool, "one")
    assert gap == Lost("one", found[0].seq - 1, 10**18 + found[0].seq, UNREADABLE)


def test_acknowledged_frames_do_not_count_as_lost(folder: Folder) -> None:
    spool = begun(folder, "one", memory=10_000, disk=1_000)
    for seq in range(1, 1001):
        spool.put(frame(seq))
    first = spool.read("one", 0, 1)[0]
    assert spool.lost_before("one", first.seq - 3, first) is not None
    assert spool.lost_before("one", first.seq - 1, first) is None
    spool.acknowledge("one", first.seq - 1)
    assert spool.lost_before("one", 0, first) is None


def test_frames_of_former_lives_go_first(folder: Folder) -> None:
    spool = begun(folder, "one")
    for seq in range(1, 31):
        spool.put(frame(seq))
    spool.spill()
    spool = begun(folder, "two", memory=2_000, disk=15_000)
    for seq in range(1, 51):
        spool.put(frame(seq))
    left = everything(spool, "one")
    assert [each.seq for each in left] == list(range(31 - len(left), 31))
    assert len(left) < 30
    assert [each.seq for each in everything(spool, "two")] == list(range(1, 51))


def test_a_killed_life_leaves_its_count_until_that_is_acknowledged(folder: Folder) -> None:
    killed = begun(folder, "one")
    for seq in range(1, 11):
        killed.put(frame(seq))
    killed.acknowledge("one", 4)
    again = Spool(folder)
    again.acknowledge("one", 6)
    again.begin(replace(HELLO, life="two"))
    assert again.former_lives() == ["one"]
    assert gaps(again, "one") == [(0, Lost("one", 10, 10**18 + 10, ENDED))]
    assert again.lost_at_the_end("one", 10) is None
    again.acknowledge("one", 9)
    assert (again.former_lives(), again.empty) == (["one"], False)
    again.acknowledge("one", 10)
    assert (again.former_lives(), again.empty) == ([], True)
    assert Spool(folder).former_lives() == []


def test_a_life_killed_while_it_writes_the_counts_reports_no_loss_twice(
    folder: Folder, tmp_path: Path
) -> None:
    for life in ("one", "two", "three"):
        begun(folder, life).put(frame(1))
    tally = tmp_path / "top/rec@n1/tally"
    before = tally.read_bytes()
    fourth = begun(folder, "four")
    fourth.acknowledge("one", 1)
    fourth.acknowledge("two", 1)
    begun(folder, "five")
    now = tally.read_bytes()
    assert len(now) < len(before)
    tally.write_bytes(now + before[len(now) :])
    assert begun(folder, "six").former_lives() == ["three"]


def test_losses_within_and_at_the_end_of_a_former_life_are_reported(folder: Folder, tmp_path: Path) -> None:
    killed = begun(folder, "one")
    for seq in range(1, 61):
        killed.put(frame(seq))
    killed.spill()
    killed.put(frame(61))
    segments_ = sorted((tmp_path / "top/rec@n1").glob("*.frames"))
    segments_[1].write_bytes(b"?")
    hole, after = (int(path.stem.rpartition("-")[2]) for path in segments_[1:3])
    again = begun(folder, "two")
    assert gaps(again, "one") == [
        (hole - 1, Lost("one", after - 1, 10**18 + after, UNREADABLE)),
        (60, Lost("one", 61, 10**18 + 61, ENDED)),
    ]


def test_a_tally_of_another_version_is_ignored(folder: Folder, tmp_path: Path) -> None:
    begun(folder, "one").put(frame(1))
    (tmp_path / "top/rec@n1/tally").write_bytes(b"?" * 48)
    assert begun(folder, "two").former_lives() == []


def test_files_of_others_in_the_folder_are_left_alone(folder: Folder, tmp_path: Path) -> None:
    for name in ("x.frames", "1-a-2.frames", "00000001-a-000000000002.frame", "00000001-a.frames"):
        (tmp_path / "top/rec@n1" / name).write_bytes(b"?")
    assert begun(folder, "one").empty


ON_A_SMALL_DISK = """
import subprocess, sys
sys.path[:0] = ["agent", "."]
from tests.unit.test_spool import begun, dropped, everything, frame
from gswarm_agent import spool as spool_module
from gswarm_agent.folder import Folder
spool_module.SEGMENT_BYTES = 8_000
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", sys.argv[1]], check=True)
spool = begun(Folder(sys.argv[1] + "/top", "rec@n1", create=True), "one", memory=2_000)
for seq in range(1, 2001):
    spool.put(frame(seq))
left = [each.seq for each in everything(spool, "one")]
assert left[0] == 1 and left[-1] == 2000, left
print(len(left) > 100, 2000 - len(left) - dropped(spool, "one"))
"""


@pytest.mark.root("mount a small disk")
def test_a_full_disk_keeps_the_oldest_and_the_newest_frames_and_counts_the_others(tmp_path: Path) -> None:
    words = ["unshare", "--mount", sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True 0\n", "")


def test_a_full_disk_loses_nothing_while_memory_has_room(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = begun(folder, "one")
    spool.put(frame(1))
    assert spool.spill()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", fail)
    spool.put(frame(2))
    assert not spool.spill()
    monkeypatch.undo()
    assert [each.seq for each in everything(spool, "one")] == [1, 2]
    assert spool.spill()
    assert [each.seq for each in everything(spool, "one")] == [1, 2]


@pytest.mark.parametrize("failing", [PermissionError(13, "no"), OSError(5, "bad disk")])
def test_a_failing_disk_loses_only_frames_that_memory_cannot_hold(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, failing: OSError
) -> None:
    spool = begun(folder, "one", memory=2_000)
    for seq in range(1, 21):
        spool.put(frame(seq))
    spool.spill()

    def fail(*_: object) -> None:
        raise failing

    monkeypatch.setattr(os, "write", fail)
    for seq in range(21, 101):
        spool.put(frame(seq))
    monkeypatch.undo()
    found = [each.seq for each in everything(spool, "one")]
    assert found[:20] == list(range(1, 21))
    assert found[20:] == list(range(101 - len(found[20:]), 101))
    assert dropped(spool, "one") == 100 - len(found)
