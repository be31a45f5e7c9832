"""The way out of a node: one proxy for each of its sandboxes that may reach something."""

import asyncio
from collections import Counter
from pathlib import Path

from sandboxes.egress.dial import Dialer
from sandboxes.egress.place import load_egress
from sandboxes.egress.proxy import EgressProxy
from sandboxes.egress.secrets import Secrets


class Gateway:
    """Holds no state that matters: policies lie beside the sandboxes, so a new gateway finds them again."""

    def __init__(self, *, secrets: Secrets, dialer: Dialer) -> None:
        self._secrets, self._dialer = secrets, dialer
        self._proxies: dict[str, EgressProxy] = {}
        self._ended: Counter[str] = Counter()

    async def open(self, name: str, directory: Path) -> bool:
        """Serve the sandbox in a directory from now on; it may be served already.

        Returns: False if it has no policy, and so reaches nothing.

        Raises:
            InvalidSpec, OSError: its policy is damaged, or its directory is not there.
        """
        if name in self._proxies:
            return True
        egress = await asyncio.to_thread(load_egress, directory)
        if egress is None or name in self._proxies:
            return egress is not None
        proxy = EgressProxy(directory, egress, sandbox=name, secrets=self._secrets, dialer=self._dialer)
        self._proxies[name] = proxy
        try:
            await proxy.start()
        except BaseException:
            self._proxies.pop(name, None)
            raise
        return True

    async def close(self, name: str) -> None:
        """Cut a sandbox off; one that is not served is cut off already."""
        proxy = self._proxies.pop(name, None)
        if proxy is not None:
            await proxy.close()
            self._ended.update(proxy.counts)

    def names(self) -> list[str]:
        """Return the sandboxes that are served."""
        return list(self._proxies)

    async def close_all(self) -> None:
        """Cut every sandbox off."""
        for name in list(self._proxies):
            await self.close(name)

    def counts(self) -> dict[str, int]:
        """Return how many connections went how, since the start."""
        total = Counter(self._ended)
        for proxy in self._proxies.values():
            total.update(proxy.counts)
        return {str(verdict): number for verdict, number in sorted(total.items())}
