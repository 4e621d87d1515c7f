"""Extras: optional parts of the installation, by the modules that they bring (pyproject.toml)."""

import re
from importlib.metadata import requires
from importlib.util import find_spec

from repro.errors import ReproError

DISTRIBUTION = "llm-wind-tunnel"
# Distributions whose modules have another name.
_DISTRIBUTIONS = {"megatron": "megatron-core", "IPython": "jupyterlab", "PIL": "pillow"}
_DISTRIBUTIONS |= {"google": "protobuf", "holoviews": "hvplot", "myst_nb": "myst-nb"}
_REQUIREMENT = re.compile(r'([\w-]+)[^;]*; extra == ["\'](\w+)["\']')


def missing_part(module: str) -> str | None:
    """Return one line that names the extra of a missing module; None if no extra brings it.

    Examples
    --------
    >>> missing_part("torch.distributed")
    "torch is not installed; fix: install llm-wind-tunnel with the extra 'testbed' (README)"
    """
    top = module.partition(".")[0]
    wanted = _DISTRIBUTIONS.get(top, top)
    extras: dict[str, list[str]] = {}
    for name, extra in _REQUIREMENT.findall("\n".join(requires(DISTRIBUTION) or ())):
        extras.setdefault(extra, []).append(name)
    # Extras contain others: the smallest one is enough.
    for extra in sorted(extras, key=lambda extra: len(extras[extra])):
        if wanted in extras[extra]:
            fix = f"install {DISTRIBUTION} with the extra {extra!r} (README)"
            return f"{top} is not installed; fix: {fix}"
    return None


def require(module: str) -> None:
    """Check that a module of an extra is installed, before other processes need it.

    Raises
    ------
    ReproError
        It is not; the message names the extra.
    """
    if find_spec(module) is None:
        raise ReproError(missing_part(module) or f"{module} is not installed")
