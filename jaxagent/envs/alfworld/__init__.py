"""ALFWorld: household tasks in text (arXiv 2010.03768). spec.py is what the table imports."""
