"""Page of predicted scenarios: the same training on other clusters."""

from pathlib import Path

from repro.figures.predicted.what_if import scenario_tables
from repro.site.gallery import interactive, read_figures
from repro.site.pages import raw, write_page

_INTRODUCTION = (
    "The performance model predicts every number on this page; none is measured. A plan gives the "
    "sizes t (tensor parallel), d (data parallel) and p (pipeline parallel, x virtual stages), the "
    "micro batch b and the recomputed activations. For another model, cluster or batch, use "
    "`repro what-if` or `notebooks/what_if.ipynb`."
)


def write_what_if(pages: Path) -> None:
    """Write `what-if.md`."""
    blocks = [_INTRODUCTION]
    for one in read_figures():
        if one.experiment == "what_if":
            blocks += [one.caption, raw(interactive(one).replace("../_static", "_static"))]
    for number, (title, styled) in enumerate(scenario_tables().items()):
        # Fixed identifiers give the same page in every build.
        table = styled.to_html(table_uuid=f"plans{number}", sparse_index=False)
        region = f'<div class="wide" tabindex="0" role="region" aria-label="{title}">'
        blocks += [f"## {title}", raw(f"{region}{table}</div>")]
    write_page(pages / "what-if.md", "What if: the same training elsewhere", *blocks)
