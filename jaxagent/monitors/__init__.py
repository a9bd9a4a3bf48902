"""Alarms in words: what is wrong with a run, since when, what usually causes it and what to try."""
