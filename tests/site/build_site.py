"""Build the site for a folder of results, as a separate process since imports fix the paths.

    python tests/site/build_site.py FOLDER [made-up]

`made-up` first writes made-up results of both scaling experiments, and figures of one. Without it
the site has no pages of modules, which take most of the time.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import repro.paths

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    repro.paths.RESULTS = folder
    import typer
    from typer.main import get_command

    from repro.cli import app
    from repro.site import build, reference

    build._PAGES = folder / "pages"
    if "made-up" in sys.argv:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from made_up import made_up_experiment

        from repro.claims.published import documented_claims
        from repro.claims.verdicts import judge
        from repro.figures.claim_dots import compared_figures
        from repro.figures.experiments.every import every_figure, save_figures

        results = {
            name: made_up_experiment().assign_attrs(experiment=name, profile="default")
            for name in ("strong_scaling", "weak_scaling")
        }
        judgements = judge(documented_claims(), results)
        (folder / "claims.json").write_text(json.dumps([asdict(one) for one in judgements]))
        drawn = every_figure({"weak_scaling": results["weak_scaling"]})
        save_figures([*drawn, *compared_figures(judgements)], folder / "figures")
    else:
        reference._documented_modules = lambda: []
    build.build_site(typer.Context(get_command(app), info_name="repro"))
