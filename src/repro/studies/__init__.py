"""Studies: one module or folder each, with measurement, tables, predictions, figures and claims."""

import pkgutil
from collections.abc import Mapping


def study_modules(part: str) -> Mapping[str, str]:
    """Return the module of each study that has a part, by the study's name.

    Parameters
    ----------
    part
        Module of a study's folder, such as `measurement`. A study without a folder is one module.

    Examples
    --------
    >>> study_modules("claims")["communication"]
    'repro.studies.communication.claims'
    """
    found = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        study, _, own = module.name.removeprefix(f"{__name__}.").partition(".")
        if own == part or not (own or module.ispkg or study == "datasets"):
            found[study] = module.name
    return found
