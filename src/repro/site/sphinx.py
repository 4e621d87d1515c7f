"""Sphinx extension of the site: MathML formulas, claims' addresses, Bokeh, and `llms.txt`."""

import re
from collections.abc import Iterator
from pathlib import Path

# Events of Sphinx and docutils have no types here.
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

from repro.site.compressed_scripts import SCRIPT, compress_scripts

# Bokeh's core draws every figure; its widgets and tables are separate files.
BOKEH = "bokeh.js"
# Page with the interactive table, pages with interactive content, and lists of them.
_TABLE = "claims"
_INTERACTIVE = ("figures/", "notebooks/", "what-if", _TABLE)
_LISTS = ("figures/index", "notebooks/README")


class ClaimAddresses(SphinxTransform):
    """Transform that keeps a claim's id as its section's address: `claims.html#C017`."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Insert the id in upper case before the id that docutils made."""
        for section in self.document.findall(nodes.section):
            names: list[str] = section.get("names", [])
            for name in names:
                if name.startswith("claim-"):
                    section["ids"].insert(0, name.removeprefix("claim-").upper())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension; Sphinx calls this."""
    app.add_transform(ClaimAddresses)
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.connect("html-page-context", _add_scripts)
    app.connect("build-finished", _write_llms_txt)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_scripts(app: Sphinx, page: str, _: str, context: dict[str, Any], *__: object) -> None:
    if page.startswith(_INTERACTIVE) and page not in _LISTS:
        app.add_js_file(SCRIPT)
        if page != _TABLE:
            app.add_js_file(BOKEH)
        context["body"] = compress_scripts(context["body"])


def _write_llms_txt(app: Sphinx, failure: Exception | None) -> None:
    """Write the navigation for programs in the format of llmstxt.org."""
    if failure is None:
        root = app.config.root_doc
        lines = [f"# {app.config.html_title}", "", f"> {_paragraph(app.env, root)}"]
        lines += _sections(app.env, root, "Pages")
        Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _sections(env: BuildEnvironment, page: str, title: str) -> Iterator[str]:
    """Yield a section per toctree of a page, headed by its caption or the page's title."""
    trees = list(env.get_doctree(page).findall(addnodes.toctree))
    for tree in trees:
        yield from ("", f"## {tree.get('caption') or title}", "")
        for name, entry in tree["entries"]:
            link = f"- [{name or env.titles[entry].astext()}]({entry}.html)"
            summary = re.split(r"(?<=[.!?])\s", _paragraph(env, entry))[0].rstrip(":")
            yield f"{link}: {summary}" if summary else link
    for tree in trees:
        for _, entry in tree["entries"]:
            yield from _sections(env, entry, env.titles[entry].astext())


def _paragraph(env: BuildEnvironment, page: str) -> str:
    """Return a page's first paragraph on one line without HTML comments; empty without any."""
    for found in env.get_doctree(page).findall(nodes.paragraph):
        if isinstance(found.parent, nodes.section):
            return " ".join(re.sub("<!--.*?-->", "", found.astext()).split())
    return ""


def _inline_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_math(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(tex2mathml(node.astext(), as_block=True))
    raise nodes.SkipNode
