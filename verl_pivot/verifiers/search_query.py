"""Verifier `search_query`: a search query is right if it shares words with the expert's, or finds its documents."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from verl_pivot.data.tagged_text import split_at_tags
from verl_pivot.off_loop import run_off_loop
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.extraction import extract_argument
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.search_documents import find_documents, open_corpus
from verl_pivot.verifiers.search_query_words import Query, difference, share_of_words
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse

MAX_CHARS = 1000
"""Most characters of a query."""


class SearchQueryOptions(Options):
    """Options of the verifier `search_query`."""

    argument: ToolArgument | None = None
    """Argument that holds the query, as "tool.argument"; None for the text in <search> (Search-R1)."""
    mode: Literal["words", "documents"] = "words"
    """
    words: number of words that both queries have, divided by the number that either has; articles, prepositions etc. do
    not count. Numbers, names and their order, negations and words such as "from" and "before" must be the same, and no
    word may be replaced by another.
    documents: share of the expert's `num_documents` best documents in `corpus` (BM25) that the query finds too.
    """
    min_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.6
    """Smallest share with which a query is accepted."""
    corpus: Path | None = None
    """File of JSON lines, one document each, with its text in "text" or "contents"; other lines are left out."""
    num_documents: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of best documents of each query that are compared, in mode `documents`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.mode == "documents") != (self.corpus is not None):
            raise ValueError("mode 'documents' needs a corpus, and mode 'words' takes no corpus")
        if self.corpus is not None and not self.corpus.is_file():
            raise ValueError(f"corpus {self.corpus} is not a file")
        return self


@register("search_query", options=SearchQueryOptions)
class SearchQueryVerifier:
    """Compares the action's query with the expert's.

    Several different queries in one text count as none. Text after the query, where Search-R1 stops the policy, is
    refused.
    """

    def __init__(self, options: SearchQueryOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        expert, query = self._query(turn.expert), self._query(action)
        if isinstance(expert, Verdict) or not _kept_query(expert).words:
            return broken_expert("the expert's action holds no query")
        if isinstance(query, Verdict):
            return query
        if self._options.corpus is not None:
            try:
                size = self._options.corpus.stat().st_size
                expert_documents, documents = await run_off_loop(size, self._find_documents, expert, query)
            except OSError as error:
                return broken_expert(f"the corpus cannot be read: {error}")
            if not expert_documents:
                return broken_expert(
                    f"the expert's query finds no document. {open_corpus(self._options.corpus).problem}"
                )
            share = len(expert_documents & documents) / len(expert_documents)
        else:
            asked, asked_by_expert = Query(query), _kept_query(expert)
            if (other := difference(asked, asked_by_expert)) is not None:
                return refuse(Reason.WRONG_VALUE, f"{other}: {query}")
            share = share_of_words(asked, asked_by_expert)
        if share >= self._options.min_share:
            return Verdict.accept(detail=f"share {share:.2f}")
        return refuse(Reason.WRONG_VALUE, f"share {share:.2f}: {query}")

    def _find_documents(self, *queries: str) -> list[set[int]]:
        assert self._options.corpus is not None, "mode documents has a corpus"
        return [find_documents(self._options.corpus, query, self._options.num_documents) for query in queries]

    def _query(self, action: Message) -> str | Verdict:
        """The action's query, or a refusal."""
        if self._options.argument is not None:
            found = extract_argument(action, self._options.argument)
        elif action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE)
        else:
            tagged = split_at_tags(action.content, "<search>", "</search>")
            queries = {query.strip() for query in tagged.inside}
            if tagged.inside and tagged.outside[-1].strip():
                return refuse(Reason.TEXT_BEHIND_ANSWER, tagged.outside[-1].strip())
            if len(queries) > 1:
                return refuse(Reason.SEVERAL_ANSWERS)
            found = queries.pop() if queries else refuse(Reason.NO_ANSWER)
        if isinstance(found, Verdict):
            return found
        if not found.strip():
            return refuse(Reason.NO_ANSWER)
        return refuse(Reason.TOO_LONG) if len(found) > MAX_CHARS else found


_kept_query = lru_cache(maxsize=4096)(Query)
