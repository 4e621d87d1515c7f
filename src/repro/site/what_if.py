"""What the same training would cost elsewhere: predicted scenarios on one page."""

from pathlib import Path

from repro.figures.predicted.what_if import scenario_tables
from repro.site.gallery import interactive, read_figures
from repro.site.pages import raw, write_page

_WORDS = (
    "Every number on this page is predicted by the performance model; none is measured. A plan is "
    "written t (tensor), d (data) and p (pipeline parallel size, x virtual stages), b (micro "
    "batch) and what is recomputed. For another model, cluster or batch: "
    "`notebooks/what_if.ipynb` and `repro what-if`."
)


def write_what_if(stage: Path) -> None:
    """Write `what-if.md`."""
    blocks = [_WORDS]
    for one in read_figures():
        if one.experiment == "what_if":
            page = interactive(one.name).replace("../_static", "_static")
            blocks += [one.caption, raw(page)]
    for number, (title, styled) in enumerate(scenario_tables().items()):
        # Identifiers that do not change from one build to the next.
        table = styled.to_html(table_uuid=f"plans{number}", sparse_index=False)
        region = f'<div class="wide" tabindex="0" role="region" aria-label="{title}">'
        blocks += [f"## {title}", raw(f"{region}{table}</div>")]
    write_page(stage / "what-if.md", "What if: the same training elsewhere", *blocks)
