"""jaxagent: reinforcement learning of tool-using LLM agents in JAX.

Importing the package touches no device and imports no jax. Start reading at `types.py`.
"""

__version__ = "0.1.0"
