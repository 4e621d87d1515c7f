"""Parameter files are refused in one line that names file, key and value."""

from pathlib import Path

import pytest

from repro.catalog.models.papers import Model
from repro.catalog.reading import read_yaml
from repro.catalog.systems.clusters import Cluster
from repro.errors import ReproError
from repro.paths import ROOT

_MODEL = """
m:
  label: M
  family: gpt
  published_parameters: 1
  source: s
  full: {layers: 1, hidden_size: 8, attention_heads: 2, sequence_length: 4, vocabulary_size: 9}
  testbed: &small
    {layers: 1, hidden_size: 8, attention_heads: 2, sequence_length: 4, vocabulary_size: 9}
  testbed_pipeline: *small
"""


def _read(folder: Path, text: str) -> dict[str, Model]:
    path = folder / "models.yaml"
    path.write_text(text)
    models: dict[str, Model] = read_yaml(path, dict[str, Model])
    return models


def test_a_valid_file_is_read(tmp_path: Path) -> None:
    assert _read(tmp_path, _MODEL)["m"].full.hidden_size == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layers: 1", "layers: 0"), r"m\.full\.layers: .*greater than 0.*\(got 0\)"),
        (("layers: 1", "depth: 1"), r"m\.full\.(depth|layers)"),
        (("family: gpt", "family: rnn"), r"m\.family: .*'gpt', 'bert' or 't5'.*'rnn'"),
        (
            ("family: gpt", "family: t5"),
            r"family t5 with decoder_sequence_length None; fix: set it",
        ),
        (
            ("attention_heads: 2", "attention_heads: 3"),
            r"full: hidden_size 8 is not a multiple of attention_heads 3; fix: [^({]*$",
        ),
        (("label: M", "label: [M"), r"not valid YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ReproError, match=message) as raised:
        _read(tmp_path, _MODEL.replace(*change))
    assert "models.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_cluster_whose_protocol_has_no_rate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clusters.yaml"
    text = (ROOT / "params" / path.name).read_text()
    path.write_text(text.replace("protocols: [rdma, ipoib, tcp]", "protocols: [rdma, roce]", 1))
    with pytest.raises(ReproError, match=r"clusters.yaml: .*protocols: roce has no rate; choose"):
        read_yaml(path, dict[str, Cluster])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"none\.yaml: no such file"):
        read_yaml(tmp_path / "none.yaml", dict[str, Cluster])
