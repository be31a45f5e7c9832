"""The system-call filter, run through a small interpreter of its own language."""

import struct
import sys

import pytest

from sandboxes.tiers.seccomp import DENIED, build_filter

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}
IOCTL = {"x86_64": 16, "aarch64": 29}
HARMLESS = {
    "x86_64": (0, 1, 59, 9, 41, 231),
    "aarch64": (63, 64, 221, 222, 198, 94),
}  # read write execve mmap socket exit


def run(machine: str, number: int, arguments: tuple[int, ...] = (), architecture: int | None = None) -> int:
    """Return what the kernel would: the action of the filter for one call."""
    program = build_filter(machine)
    assert program is not None
    words = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("=IIQ6Q", number, architecture or ARCHITECTURE[machine], 0, *words)
    code = list(struct.iter_unpack("=HBBI", program))
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        match operation:
            case 0x20:
                accumulator = int.from_bytes(call[constant : constant + 4], sys.byteorder)
            case 0x15:
                at += if_true if accumulator == constant else if_false
            case 0x35:
                at += if_true if accumulator >= constant else if_false
            case 0x45:
                at += if_true if accumulator & constant else if_false
            case 0x06:
                return int(constant)
            case _:
                raise AssertionError(operation)


MACHINES = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


@MACHINES
@pytest.mark.parametrize("name", sorted(DENIED))
def test_denied_calls_fail(machine: str, name: str) -> None:
    number = DENIED[name][machine == "aarch64"]
    if number >= 0:
        assert run(machine, number) == EPERM


@MACHINES
def test_ordinary_calls_pass(machine: str) -> None:
    assert {run(machine, number) for number in HARMLESS[machine]} == {ALLOW}


@MACHINES
def test_forks_pass_and_new_namespaces_do_not(machine: str) -> None:
    assert run(machine, CLONE[machine], (0x01200011,)) == ALLOW
    for flag in (0x20000000, 0x10000000, 0x00020000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80):
        assert run(machine, CLONE[machine], (0x11 | flag,)) == EPERM
    assert run(machine, 435) == ENOSYS


@MACHINES
@pytest.mark.parametrize(
    ("request_number", "action"), [(0x5412, EPERM), (0x541C, EPERM), (0x5401, ALLOW), (0x5413, ALLOW)]
)
def test_terminals_cannot_be_fed(machine: str, request_number: int, action: int) -> None:
    assert run(machine, IOCTL[machine], (0, request_number)) == action
    assert (
        run(machine, IOCTL[machine], (0, request_number | 1 << 32)) == action
    )  # the kernel looks at 32 bits


def test_another_architecture_is_killed_and_x32_refused() -> None:
    assert run("x86_64", 0, architecture=0x40000003) == KILL
    assert run("x86_64", 0x40000000 | 101) == EPERM


def test_no_table_means_no_filter() -> None:
    assert build_filter("riscv64") is None


@MACHINES
def test_the_numbers_are_different_calls(machine: str) -> None:
    numbers = [pair[machine == "aarch64"] for pair in DENIED.values()]
    used = [number for number in numbers if number >= 0]
    assert len(used) == len(set(used))
    assert not set(used) & set(HARMLESS[machine])
