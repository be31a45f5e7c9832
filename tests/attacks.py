"""What the attacks of the contract share: who attacks under which limits, and how."""

from typing import Any, Final

from sandboxes import Limits, Sandbox

MIB: Final = 1 << 20
LIMITS: Final = Limits(memory_bytes=128 * MIB, pids=48, disk_bytes=16 * MIB)
ALIVE: Final = {"code": "print(json.dumps({'alive': sum(range(10))}))"}


async def python(sandbox: Sandbox, code: str, *words: str, timeout: float = 60.0) -> str:
    """Run Python code in a sandbox and return what it says on both streams."""
    result = await sandbox.exec(["python3", "-c", code, *words], timeout=timeout)
    return result.text + result.stderr_text


def own_kernel(bench: Any) -> bool:
    """Whether the sandbox's system calls reach another kernel than the node's."""
    return "own" in str(bench.probe.features.get("kernel", ""))
