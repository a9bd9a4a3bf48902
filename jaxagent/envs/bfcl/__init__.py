"""BFCL multi-turn (Berkeley Function-Calling Leaderboard, v3/v4): several user turns over stateful Python tools.

spec.py is what a run refers to. env.py plays the turns; backend.py holds the tools' instances and runs calls on them;
verdict.py is the benchmark's check of a turn; calls.py reads messages; data.py reads the package's files.
"""
