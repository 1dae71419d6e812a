"""If the head reads from a pipe, the agent writes to that pipe directly and the relay process only waits."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import termios
import time

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import MAGIC, Decoder, Message, Start, encode
from tests.integration.agent_node import Node, disconnect, kill, sequences, until
from tests.integration.agent_process import PATIENCE_S

SMALL = 4096


def test_frames_arrive_without_waking_the_relay(node: Node) -> None:
    head = node.attach()
    head.hear(Frame, 2)
    os.kill(head.process.pid, signal.SIGSTOP)
    head.hear(Frame, 6)
    os.kill(head.process.pid, signal.SIGCONT)
    disconnect(head)


def test_a_pipe_that_is_full_for_a_while_loses_no_frame(node: Node) -> None:
    head = node.attach()
    (hello,) = head.hear(Hello)
    assert head.process.stdout is not None
    pipe = head.process.stdout.fileno()
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, SMALL)

    def unread() -> int:
        return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0])

    until(lambda: unread() > SMALL * 3 // 4)
    more = node.waiting()[hello.life] + 20  # by then it is full
    until(lambda: node.waiting()[hello.life] >= more)
    head.hear(Frame, more + 5)
    found = sequences(head, hello.life)
    assert found == list(range(1, len(found) + 1))
    disconnect(head)


def test_next_head_connects_after_the_pipe_of_the_last_one_ends(node: Node) -> None:
    first = node.attach()
    (hello,) = first.hear(Hello)
    first.hear(Frame, 2)
    assert first.process.stdout is not None
    first.process.stdout.close()
    assert first.process.wait(PATIENCE_S) == 0
    second = node.attach((hello.life, 1))
    second.hear(Frame, 3)
    assert sequences(second, hello.life)[:3] == [2, 3, 4]
    disconnect(second)


def test_the_relay_writes_to_a_socket_itself_and_leaves_it_blocking(node: Node) -> None:
    ours, theirs = socket.socketpair()
    heard: list[Message] = []
    decoder = Decoder()
    command = node.words()
    with ours, theirs, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=theirs.fileno()) as joining:
        try:
            assert joining.stdin is not None
            joining.stdin.write(MAGIC + encode(Start(100, time.time_ns())))
            joining.stdin.flush()
            ours.settimeout(PATIENCE_S)
            while sum(isinstance(message, Frame) for message in heard) < 3:
                heard += decoder.feed(ours.recv(65536))
            assert os.get_blocking(theirs.fileno())
            kill(node.pid)
        finally:
            joining.kill()


def test_a_pipe_is_blocking_again_after_the_relay(node: Node) -> None:
    reading, writing = os.pipe()
    try:
        with subprocess.Popen(node.words(), stdin=subprocess.PIPE, stdout=writing) as joining:
            assert joining.stdin is not None
            joining.stdin.write(MAGIC + encode(Start(100, time.time_ns())))
            joining.stdin.flush()
            until(lambda: not os.get_blocking(writing))
        assert os.get_blocking(writing)
    finally:
        os.close(reading)
        os.close(writing)


def test_the_relay_ends_with_its_head_even_if_the_agent_hangs(node: Node) -> None:
    head = node.attach()
    head.hear(Frame, 1)
    pid = node.pid
    os.kill(pid, signal.SIGSTOP)
    other = node.attach()
    assert other.process.stdin is not None
    other.process.stdin.close()
    assert other.process.wait(PATIENCE_S) == 0
    os.kill(pid, signal.SIGCONT)
    disconnect(head)
