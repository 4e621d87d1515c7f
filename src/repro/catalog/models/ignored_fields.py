"""Names in model files that change neither sizes nor times (`params/ignored_fields.yaml`)."""

from repro.catalog.reading import Entry, read_params


class Ignored(Entry):
    """Names, and beginnings, ends and words of names (between underscores)."""

    names: frozenset[str]
    beginnings: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()

    def covers(self, name: str) -> bool:
        """Return whether a name is ignored."""
        return (
            name in self.names
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
