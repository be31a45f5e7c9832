"""A removal killed when it had begun: nobody finds that sandbox alive, though all of it still runs."""

from pathlib import Path

import pytest

from sandboxes import Limits, SandboxExists, SandboxNotFound, SandboxSpec, SandboxState
from sandboxes.images.folder import folder
from sandboxes.tiers.process import ProcessTier
from sandboxes.tiers.record import Records

IMAGES = Path(__file__).parents[3] / "images"


async def test_a_sandbox_whose_removal_was_killed_is_never_alive_again(tmp_path: Path) -> None:
    tier = ProcessTier(tmp_path / "state")
    spec = SandboxSpec(name="box", epoch=1, image=folder(IMAGES, "catan").spec(), limits=Limits())
    await (await tier.create(spec)).close()
    Records(tmp_path / "state").end("box")
    assert (await tier.inspect("box")).state is SandboxState.FAILED
    with pytest.raises(SandboxNotFound):
        await tier.connect("box")
    assert await tier.sweep() == ("box",)
    assert (await tier.inspect("box")).leftovers == ()
    await (await tier.create(spec)).close()
    with pytest.raises(SandboxExists):
        await tier.create(spec)
    await tier.destroy("box")
