"""What runs on the agent's side of the sandbox. Standard library only, relative imports only.

The zygote imports this folder as the top-level package `confined` in a fresh interpreter, so that nothing of
jaxagent (no environment, no evaluator, no solution) is ever in a confined process's memory.
"""
