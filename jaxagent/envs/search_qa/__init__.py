"""Search QA: answer a question with the help of a search engine over a corpus of one's own (Search-R1's set-up)."""

from jaxagent.envs.search_qa.spec import ENTRY

__all__ = ["ENTRY"]
