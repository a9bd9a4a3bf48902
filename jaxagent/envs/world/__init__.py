"""The embedded world: small apps with AppWorld's contract, worlds from seeds, scripted agents.

engine.py and goal.py are the machine (state, calls, unit tests); easy*.py the easy level; apps/,
people.py, full.py and kinds/ the full one; tasks.py the splits; env.py the environment; spec.py what a run
imports; expert.py the scripted agents; inline.py runs their (trusted) code without a sandbox.
"""
