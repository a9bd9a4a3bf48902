"""TextWorld: text adventures made from seeds (arXiv 1806.11532). spec.py is what the table imports."""
