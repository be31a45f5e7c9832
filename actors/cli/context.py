"""What the options before the command said."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Options of every command."""

    config: Path | None = None
    data_dir: Path | None = None
    debug: bool = False

    def settings(self, **flags: Any) -> "Settings":
        """Settings with this command's flags on top; a flag `sandbox__tier` is the setting sandbox.tier."""
        from actors.settings import load_settings  # 0.2 s of processor, which --help does not need

        named = {name.replace("__", "."): value for name, value in flags.items()}
        data_dir = None if self.data_dir is None else str(self.data_dir)
        return load_settings(self.config, {"data_dir": data_dir, **named})


_current = Context()


def set_up(*, config: Path | None, data_dir: Path | None, debug: bool) -> None:
    """Remember the options; called once, before the command."""
    global _current
    _current = Context(config=config, data_dir=data_dir, debug=debug)


def current() -> Context:
    """The options of this run."""
    return _current
