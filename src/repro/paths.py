"""Paths of the project's folders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARAMS = ROOT / "params"
PUBLISHED = ROOT / "data" / "published"
ENWIKI = ROOT / "data" / "enwiki"
RESULTS = ROOT / "results"
