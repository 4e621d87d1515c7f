"""Names in model files that change neither sizes nor times (`params/ignored_fields.yaml`)."""

from typing import Any

from repro.catalog.reading import Entry, read_params


class Ignored(Entry):
    """Names, and beginnings, ends and words of names (between underscores).

    Names in `switched_off` are ignored only while they are false, 0 or empty. Names in `reported`
    change times or sizes in ways that the performance model does not know, and are named with an
    estimate.
    """

    names: frozenset[str]
    switched_off: frozenset[str]
    reported: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()

    def covers(self, name: str, value: Any) -> bool:
        """Return whether a name with this value is ignored."""
        if name in self.switched_off:
            return not value
        return (
            name in self.names
            or name in self.reported
            or name.startswith(self.beginnings)
            or name.endswith(self.ends)
            or any(f"_{word}_" in f"_{name}_" for word in self.words)
        )


class IgnoredFields(Entry):
    """Ignored fields of a `config.json`, and ignored arguments of Megatron."""

    config: Ignored
    arguments: Ignored


def read_ignored() -> IgnoredFields:
    """Read the file."""
    fields: IgnoredFields = read_params("ignored_fields.yaml", IgnoredFields)
    return fields
