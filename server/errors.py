"""Every error that a caller can tell apart.

    ZhikuError                     code 500, the service is at fault
    ├── NotFound                   code 404, names something that is not there
    ├── AlreadyExists              code 404, as the old contract has it
    ├── InvalidName                code 403, a name that cannot be a label
    ├── InvalidRequest             code 422, a value that makes no sense
    ├── Busy                       code 503, try again later
    ├── StoreError                 code 500, a vector store does not do what it is asked
    │   └── StoreDown              code 503, it cannot be reached
    ├── MoveFailed                 code 500, a knowledge base stays where it is
    ├── ConfigurationError         code 500, settings contradict each other or the data
    │   └── MissingDependency      code 500, a package has to be installed
    ├── LoadError                  code 500, a file cannot be read
    │   ├── UnsupportedFormat      no loader for this extension
    │   ├── EmptyDocument          read, but there is no text in it
    │   └── DamagedFile            broken, or not what its name says
    │       └── LockedFile         encrypted: the password is missing or wrong
    ├── EmbeddingError             code 500, the embedding model failed or its answer is unusable
    │   ├── DimensionMismatch      the model's vectors do not fit the knowledge base
    │   └── PartlyEmbedded         some chunks of a file have no vector
    ├── LLMError                   code 500, the language model failed
    │   ├── LLMRateLimited         it says that we ask too often
    │   └── LLMIncomplete          its reply is empty or was cut
    ├── BudgetSpent                code 402, what a language model may cost is spent
    ├── ModelDown                  code 503, a language model refuses everything (server.graph.extractor)
    ├── WebError                   code 500, something on the web cannot be reached (server.web.guard)
    ├── RerankError                code 500, the reranker failed (server.retrieval.rerank)
    └── JobCancelled               code 409, somebody stopped the work
        └── GenerationGone         the knowledge base was rebuilt under it

Messages tell what to do next, in Chinese and English, and never hold a secret or a stack trace.
"""

from __future__ import annotations


class ZhikuError(Exception):
    """Base of all expected errors; `code` goes into the body of the answer, the HTTP status stays 200."""

    code = 500

    @property
    def message(self) -> str:
        """The words for the user."""
        return str(self.args[0]) if self.args else type(self).__name__


class NotFound(ZhikuError):
    """The named thing does not exist."""

    code = 404


class AlreadyExists(ZhikuError):
    """The name is taken."""

    code = 404


class InvalidName(ZhikuError):
    """A client's name that cannot be used as a label."""

    code = 403


class InvalidRequest(ZhikuError):
    """A value of the request makes no sense."""

    code = 422


class Busy(ZhikuError):
    """The part that is asked for is occupied; trying again later helps."""

    code = 503


class MoveFailed(ZhikuError):
    """A knowledge base cannot be moved to another vector store or embedding model; it stays where it is."""


class StoreError(ZhikuError):
    """A vector store refuses what it is asked."""


class StoreDown(StoreError):
    """A vector store cannot be reached; what is changed meanwhile reaches it when it is back."""

    code = 503


class ConfigurationError(ZhikuError):
    """The settings contradict each other or the stored data."""


class MissingDependency(ConfigurationError):
    """An optional package is needed; the message says how to install it."""


class LoadError(ZhikuError):
    """A file cannot be turned into text."""


class UnsupportedFormat(LoadError):
    """There is no loader for this kind of file."""


class EmptyDocument(LoadError):
    """The file was read and holds no text."""


class DamagedFile(LoadError):
    """The file is broken, or not what its name says."""


class LockedFile(DamagedFile):
    """The file is encrypted, and what opens it is missing or wrong."""


class EmbeddingError(ZhikuError):
    """The embedding model failed, or its answer cannot be used."""


class DimensionMismatch(EmbeddingError):
    """The embedding model's vectors do not fit those that the knowledge base holds."""


class PartlyEmbedded(EmbeddingError):
    """Some chunks of a file could not be embedded; the others are searchable."""


class LLMError(ZhikuError):
    """The language model failed."""


class LLMRateLimited(LLMError):
    """The provider says that it is asked too often."""


class LLMIncomplete(LLMError):
    """The reply is empty or was cut before its end."""


class BudgetSpent(ZhikuError):
    """What may be spent on a language model is spent."""

    code = 402


class JobCancelled(ZhikuError):
    """Somebody cancelled the job."""

    code = 409


class GenerationGone(JobCancelled):
    """The generation that was written to is no longer there: the knowledge base was rebuilt or deleted."""
