"""AgentDojo: an assistant with the tools of an office worker (mail, calendar, files, bank, travel, Slack).

spec.py is what a run refers to, tasks.py the tasks by name. env.py runs one of them; suites.py is the only file that
imports the package, which takes seconds, so it happens in the workers.
"""
