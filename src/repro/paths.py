"""Where the project's files are: the one place that turns names into paths."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARAMS = ROOT / "params"
PUBLISHED = ROOT / "data" / "published"
ENWIKI = ROOT / "data" / "enwiki"
RESULTS = ROOT / "results"
