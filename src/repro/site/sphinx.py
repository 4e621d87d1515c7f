"""What the site adds to Sphinx: formulas without scripts, claims' addresses, Bokeh where needed."""

# Sphinx's and docutils' events have no types of their own here.
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from repro.site.compressed_scripts import SCRIPT, pack_scripts

# The core draws every figure: widgets and tables are other files.
BOKEH = "bokeh.js"
# Pages whose figures are interactive, and the one whose table is.
_TABLE = "claims"
_INTERACTIVE = ("figures/", "notebooks/", "what-if", _TABLE)


class ClaimAddresses(SphinxTransform):
    """Sections that are named by a claim keep its id as it is written: `claims.html#C017`."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        for section in self.document.findall(nodes.section):
            names: list[str] = section.get("names", [])
            for name in names:
                if name.startswith("claim-"):
                    section["ids"].insert(0, name.removeprefix("claim-").upper())


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(ClaimAddresses)
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.connect("html-page-context", _draw_figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _draw_figures(app: Sphinx, page: str, _: str, context: dict[str, Any], *__: object) -> None:
    if page.startswith(_INTERACTIVE) and page != "figures/index":
        app.add_js_file(SCRIPT)
        if page != _TABLE:
            app.add_js_file(BOKEH)
        context["body"] = pack_scripts(context["body"])


def _inline_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_math(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(tex2mathml(node.astext(), as_block=True))
    raise nodes.SkipNode
