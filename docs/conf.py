"""Sphinx settings of the documentation site. `make docs` builds it (scripts/docs_site.py)."""

from __future__ import annotations

project = "Covey"
author = "The Covey developers"
copyright = "The Covey developers"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4  # links to headings, as on a code host
suppress_warnings = ["myst.header"]  # methods.md: every heading of the second level is a method
highlight_language = "none"
nitpicky = True

html_theme = "furo"
html_title = "Covey"
html_static_path = ["_static"]
html_css_files = ["covey.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00695c"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#4db6ac"},
}
