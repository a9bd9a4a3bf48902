"""AppWorld (Trivedi et al. 2024) through its official package, which lives in a virtual environment of its own.

    trainer, worker                                  AppWorld's Python
    spec.py tasks.py prompt.py expert.py env.py  --  serve.py: a server, and a forked process for every episode
                     server.py (the host's end)      world.py (one world)  seal.py (the answers out of its reach)

The three files on the right import nothing but the standard library, `appworld` and the frames of envs/confined.
"""
