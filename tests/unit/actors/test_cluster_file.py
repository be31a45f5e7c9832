"""config/ray/cluster.yaml is what `ray up` takes."""

from pathlib import Path

import yaml  # type: ignore[import-untyped]
from ray.autoscaler._private.util import prepare_config, validate_config

FILE = Path(__file__).resolve().parents[3] / "config/ray/cluster.yaml"


def test_the_cluster_file_fits_rays_schema() -> None:
    config = prepare_config(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    validate_config(config)
    assert config["provider"]["type"] == "local"
