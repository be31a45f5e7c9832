"""The list of tiers: all can be opened, the strongest that works is chosen, and the reasons are told."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandboxes import ImageSpec, Lack, Probe, Tier, TierUnavailable, UnknownTier, open_tier
from sandboxes.tiers import registry

IMAGE = ImageSpec(name="catan", root=Path("/x"))


@pytest.mark.parametrize("name", list(registry.TIERS))
def test_every_tier_of_the_list_can_be_opened(name: str, tmp_path: Path) -> None:
    tier = open_tier(name, tmp_path, allow_mounts=(tmp_path,))
    assert isinstance(tier, Tier)
    assert tier.name == name


def test_an_unknown_tier_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UnknownTier) as caught:
        open_tier("iron", tmp_path)
    assert str(caught.value).startswith("there is no tier 'iron': there is auto, ")


class Stand:
    """A tier as far as the choice looks at one."""

    def __init__(self, name: str, *, why: str = "", has_image: bool = True) -> None:
        self.name, self._why, self._has_image = name, why, has_image

    async def probe(self) -> Probe:
        lacks = (Lack(what="engine", why=self._why, effect="install it"),) if self._why else ()
        return Probe(tier=self.name, ok=not self._why, features={}, lacks=lacks)

    async def has_image(self, image: ImageSpec) -> bool:
        return self._has_image


CASES: list[Any] = [
    pytest.param({}, "gvisor", [], id="the-strongest"),
    pytest.param({"gvisor": {"why": "no runsc"}}, "docker", ["not gvisor: engine: no runsc"], id="next"),
    pytest.param(
        {"gvisor": {"why": "no runsc"}, "docker": {"has_image": False}},
        "process",
        ["not gvisor: engine: no runsc", "image catan is not built (skylease images build catan)"],
        id="image-not-built",
    ),
    pytest.param(
        {name: {"why": "broken"} for name in ("gvisor", "docker", "process")},
        None,
        ["not process: engine: broken"],
        id="never-unsafe",
    ),
]


@pytest.mark.parametrize(("broken", "chosen", "said"), CASES)
def test_the_choice(
    broken: Mapping[str, Mapping[str, Any]],
    chosen: str | None,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("gvisor", "docker", "process", "unsafe")
    monkeypatch.setattr(registry, "TIERS", dict.fromkeys(names, ""))
    monkeypatch.setattr(registry, "open_tier", lambda name, *_a, **_k: Stand(name, **broken.get(name, {})))
    if chosen is None:
        with pytest.raises(TierUnavailable) as caught:
            asyncio.run(registry.choose_tier(tmp_path, images=[IMAGE]))
        reasons = str(caught.value)
    else:
        tier, why = asyncio.run(registry.choose_tier(tmp_path, images=[IMAGE]))
        assert tier.name == chosen
        reasons = "; ".join(why)
    assert all(words in reasons for words in said)
