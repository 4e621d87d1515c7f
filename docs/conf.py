"""Sphinx configuration of the site; `repro site` copies it to `build/site` with all pages."""

from repro.site.sphinx import setup as setup

project = "repro"
html_title = "repro: the cost of the network in distributed LLM training"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static"]

# The pipeline executed the notebooks; their stderr is progress output.
nb_execution_mode = "off"
nb_output_stderr = "remove"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# Browsers show MathML without scripts.
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
# Single backquotes in docstrings mark names.
default_role = "code"

# Pages without sidebars.
_WIDE = ("index", "claims", "documents", "figures/index", "provenance", "what-if", "search")
html_theme = "pydata_sphinx_theme"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
# Browsers refuse to fetch summaries of search results from files on disk.
html_show_search_summary = False
html_theme_options = {
    "logo": {"text": "repro"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 8,
    "show_prev_next": False,
    "secondary_sidebar_items": {key: ["page-toc"] for key in ("docs/**", "reference/*", "[A-Z]*")},
    "footer_start": [],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars: dict[str, list[str]] = {page: [] for page in _WIDE}
