"""The system-call filter of the process tier, assembled here so that no library is needed.

A deny list after the practice of flatpak and Docker: what reaches for the kernel's administration, other
processes' memory or new namespaces fails with EPERM; clone3, whose flags a filter cannot read, with ENOSYS,
so that the C library falls back to clone.
"""

import platform
import struct
from typing import Final

# linux/filter.h, linux/seccomp.h
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_ABOVE: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_JUMP_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_EPERM: Final = 0x00050001
_ENOSYS: Final = 0x00050026
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16  # of struct seccomp_data
_X32_BIT: Final = 0x40000000

_NEW_NAMESPACES: Final = 0x7E020080  # CLONE_NEW{USER,PID,NET,IPC,UTS,CGROUP,NS} and NEWTIME, linux/sched.h
_TERMINAL_INPUT: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

# asm/unistd_64.h and asm-generic/unistd.h: name -> (x86_64, aarch64); -1: does not exist there
DENIED: Final[dict[str, tuple[int, int]]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "move_mount": (429, 429), "open_tree": (428, 428), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, -1), "ioperm": (173, -1),
    "modify_ldt": (154, -1),
    "lookup_dcookie": (212, 18), "vhangup": (153, 58), "nfsservctl": (180, 42), "uselib": (134, -1),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235), "set_mempolicy": (238, 237),
}  # fmt: skip
_CLONE: Final = (56, 220)
_CLONE3: Final = (435, 435)
_IOCTL: Final = (16, 29)
_AUDIT_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # linux/audit.h


def build_filter(machine: str | None = None) -> bytes | None:
    """Return the filter as the bytes of a `struct sock_filter` array, None for a machine that we have no
    table of.
    """
    found = _AUDIT_ARCHITECTURES.get(machine or platform.machine())
    if found is None:
        return None
    column, architecture = found
    program = [(_LOAD, 0, 0, _OFFSET_ARCHITECTURE), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    program.append((_LOAD, 0, 0, _OFFSET_NUMBER))
    if column == 0:
        program += [
            (_JUMP_ABOVE, 0, 1, _X32_BIT),
            (_RETURN, 0, 0, _EPERM),
        ]  # else x32 numbers would slip through
    for numbers in DENIED.values():
        if numbers[column] >= 0:
            program += [(_JUMP_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _EPERM)]
    program += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ENOSYS)]
    program += [(_JUMP_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _OFFSET_ARGUMENTS)]
    program += [(_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    program += [(_JUMP_EQUAL, 0, 5, _IOCTL[column]), (_LOAD, 0, 0, _OFFSET_ARGUMENTS + 8)]
    program += [(_JUMP_EQUAL, 1, 0, _TERMINAL_INPUT[0]), (_JUMP_EQUAL, 0, 1, _TERMINAL_INPUT[1])]
    program += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
