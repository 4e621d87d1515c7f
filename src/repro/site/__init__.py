"""The site: documents, executed notebooks, claims, figures and reference in one folder."""
