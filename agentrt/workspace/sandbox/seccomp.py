"""The filter of system calls: refuses those that reach past namespaces, and that no ordinary program needs."""

import platform
import struct
from functools import cache

from agentrt.errors import UsageError

# Kernel keys have no namespace, so a command would find those of this program; the others are where the kernel had most
# of the faults by which programs have left their namespaces. Numbers are those of <asm/unistd.h>.
_REFUSED_CALLS = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "open_by_handle_at": (304, 265),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}
# Sockets of other families have no network namespace: by AF_VSOCK a command would reach the host of a virtual machine.
_SOCKET_CALL = (41, 198)
_SOCKET_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
# The name of the machine, its place in the pairs above, and what the kernel calls it.
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the second with the error EPERM
# Where they are in `struct seccomp_data`; of the first argument the lower half, since a family is an `int`.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_X32 = 0x40000000  # the other numbers by which x86_64 knows the same calls


@cache
def make_filter() -> bytes:
    """Return the filter as the kernel takes it: a program of classic BPF."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise UsageError(
            f"BubblewrapSandbox knows the system calls of {' and '.join(_ARCHITECTURES)}, not of {machine!r}: use "
            f"DockerSandbox(image)"
        )
    place, name = _ARCHITECTURES[machine]
    numbers = [numbers[place] for numbers in _REFUSED_CALLS.values()]
    # A jump says how many instructions it passes over.
    refuse = 4 + len(numbers) + 2 + len(_SOCKET_FAMILIES)
    allow = refuse + 1
    # Calls of another architecture, such as those of 32 bits, have other numbers, so all of them are refused.
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_IF_EQUAL, 0, refuse - 2, name), (_LOAD, 0, 0, _NUMBER)]
    program.append((_JUMP_IF_AT_LEAST, refuse - 4, 0, _X32))
    for number in numbers:
        program.append((_JUMP_IF_EQUAL, refuse - len(program) - 1, 0, number))
    program.append((_JUMP_IF_EQUAL, 0, allow - len(program) - 1, _SOCKET_CALL[place]))
    program.append((_LOAD, 0, 0, _FIRST_ARGUMENT))
    for family in _SOCKET_FAMILIES:
        program.append((_JUMP_IF_EQUAL, allow - len(program) - 1, 0, family))
    program += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
