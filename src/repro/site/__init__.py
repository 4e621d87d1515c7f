"""Static site of documents, executed notebooks, claims, figures and reference pages."""
