"""What a slot fits, and what may be shown in it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import ImageSpec, InvalidSpec, Limits, SandboxSpec, SlotSpec, fitting
from sandboxes.tiers.admission import Admission
from sandboxes.tiers.record import Record, Records, boot_id

IMAGE = ImageSpec(name="test", root=Path("/images/test"))
FITS = fitting(IMAGE, Limits())


@pytest.mark.parametrize(
    ("image", "limits", "does_fit"),
    [
        pytest.param({}, {}, True, id="the-same"),
        pytest.param({}, {"idle_deadline_s": 1.0}, True, id="deadlines-come-with-the-claim"),
        pytest.param({}, {"wall_deadline_s": 1.0, "start_deadline_s": 1.0}, True, id="all-of-them"),
        pytest.param({}, {"memory_bytes": 64 << 20}, False, id="other-memory"),
        pytest.param({}, {"disk_files": 2048}, False, id="other-disk"),
        pytest.param({}, {"cpu": 0.5}, False, id="other-cpu"),
        pytest.param({"name": "other"}, {}, False, id="other-image"),
        pytest.param({"root": Path("/images/other")}, {}, False, id="other-folder"),
        pytest.param({"digest": "sha256:1"}, {}, False, id="built-again"),
        pytest.param({"bind_root": False}, {}, False, id="folder-in-the-image"),
        pytest.param({"preload": ("json",)}, {}, False, id="other-modules"),
        pytest.param({"turn_script": None}, {}, False, id="no-turns"),
    ],
)
def test_fitting(image: dict[str, object], limits: dict[str, object], does_fit: bool) -> None:
    found = fitting(replace(IMAGE, **image), replace(Limits(), **limits))  # type: ignore[arg-type]
    assert (found == FITS) is does_fit


@pytest.mark.parametrize(
    "name", ["", "slot", "slot-1", "alice-0123456789abcdef", "slot-0123456789ABCDEF", ".."]
)
def test_names_of_slots(name: str) -> None:
    with pytest.raises(InvalidSpec, match="slot"):
        SlotSpec(name=name, image=IMAGE, limits=Limits())


def test_a_data_directory_belongs_to_one_living_sandbox(tmp_path: Path) -> None:
    image, data = tmp_path / "image", tmp_path / "data"
    for directory in (image, data):
        directory.mkdir()
    (image / "take_turn.py").touch()
    records = Records(tmp_path / "state")
    records.prepare()
    admission = Admission(records, ())
    spec = SandboxSpec(name="two", epoch=1, image=replace(IMAGE, root=image), data_dir=data)
    admission.check(spec)
    alive = Record(
        name="one",
        tier="t",
        epoch=1,
        labels={},
        created_ms=0,
        uid=None,
        data_dir=str(data),
        boot_id=boot_id(),
    )
    pid = os.getpid()
    start_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    alive = replace(alive, pid=pid, start_ticks=start_ticks)
    records.directory("one").mkdir()
    records.save(alive)
    for _ in range(2):  # also when the record was read before
        with pytest.raises(InvalidSpec, match="in use by sandbox one"):
            admission.check(spec)
        admission.check(replace(spec, name="one"))
    records.save(replace(alive, data_dir=None))
    admission.check(spec)
    records.save(alive)
    with pytest.raises(InvalidSpec, match="in use by sandbox one"):
        admission.check(spec)
    records.save(replace(alive, start_ticks=1))  # another process has that number by now
    admission.check(spec)
