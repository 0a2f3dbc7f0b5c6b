"""Bodies of the chat and summary routes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from server.api.schemas import DYNAMIC, LEVEL, LONGEST_QUESTION, MODE, Body, ChatMode, KBName, SearchKind


class HistoryItem(Body):
    """An earlier turn."""

    role: str = Field(description="user, assistant or system", pattern="^(user|assistant|system)$")
    content: str = Field(description="what was said")


class ChatFields(Body):
    """What all kinds of chat take."""

    query: str = Field(max_length=LONGEST_QUESTION, description="the question", examples=["知识库有什么功能？"])
    stream: bool = Field(default=False, description="true = an event per token; false = one event")
    model_name: str | None = Field(default=None, description="a configured model; default: the first one")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 = always the likeliest word")
    max_tokens: int | None = Field(default=None, description="longest answer; 0 or less = as configured")
    prompt_name: str = Field(default="default", description="a template from configs/prompts/")
    details: bool = Field(default=False, description="true = also send checked `citations`, and a model's `thinking`")


class Chat(ChatFields):
    """A chat with the model alone."""

    conversation_id: str = Field(default="", max_length=255, description="to keep and find the conversation")
    history_len: int = Field(default=-1, le=10_000, description="earlier turns of the conversation to show the model")
    history: Annotated[int, Field(le=10_000)] | list[HistoryItem] = Field(
        default_factory=list, description="earlier turns, or how many to load"
    )


class PassageFields(Body):
    """How passages are chosen."""

    top_k: int | None = Field(default=None, ge=1, le=1000, description="most passages to use")
    score_threshold: float | None = Field(
        default=None, ge=0, le=4, description="passages with score <= this are used; lower is stricter"
    )
    search_type: SearchKind = Field(default=None, description="hybrid (default), similarity or keyword")


class GroundedChat(ChatFields, PassageFields):
    """A question that is answered from passages."""

    history: list[HistoryItem] = Field(default_factory=list, description="earlier turns")


class KnowledgeBaseChat(GroundedChat, KBName):
    """A question to a knowledge base."""

    conversation_id: str = Field(default="", max_length=255, description="to keep and find the conversation")
    history_len: int | None = Field(default=None, le=10_000, description="turns of it to show the model")
    mode: ChatMode = Field(default=None, description=f"{MODE}; bypass asks the model alone")
    community_level: int = Field(default=2, ge=0, le=20, description=LEVEL)
    dynamic_community_selection: bool = Field(default=False, description=DYNAMIC)


class FileChat(GroundedChat):
    """A question to the files of a conversation."""

    knowledge_id: str = Field(description="the id that upload_temp_docs gave")


class SearchTempDocs(PassageFields):
    """A search in the files of a conversation."""

    knowledge_id: str = Field(description="the id that upload_temp_docs gave")
    query: str = Field(max_length=LONGEST_QUESTION, description="what to look for")


class SearchEngineChat(GroundedChat):
    """A question to the web."""

    search_engine_name: str = Field(description="duckduckgo, bing, metaphor or searxng", examples=["duckduckgo"])
    split_result: bool = Field(default=False, description="accepted and without effect: results are short")


class AgentChat(ChatFields):
    """A question to an agent."""

    history: list[HistoryItem] = Field(default_factory=list, description="earlier turns")
    tools: list[str] | None = Field(default=None, description="names of the tools it may use; default: all")


class KBChat03(GroundedChat):
    """A question as 0.3 clients ask it."""

    mode: Literal["local_kb", "temp_kb", "search_engine"] = Field(default="local_kb", description="where to look")
    kb_name: str = Field(default="", description="knowledge base, id of temporary files, or search engine")
    stream: bool = Field(default=True, description="false = one completion")
    model_name: str | None = Field(
        default=None, validation_alias=AliasChoices("model", "model_name"), description="a configured model"
    )
    return_direct: bool = Field(default=False, description="true = the sources alone")


class Feedback(Body):
    """What somebody thought of an answer."""

    message_id: str = Field(default="", max_length=32, description="the answer's message_id")
    score: int = Field(default=0, ge=-(2**31), le=2**31 - 1, description="0 to 100, higher is better")
    reason: str = Field(default="", max_length=10_000, description="why")


class SummaryFields(KBName):
    """How summaries are made."""

    allow_empty_kb: bool = Field(default=True, description="make a knowledge base that does not exist")
    vs_type: str | None = Field(default=None, description="vector store of a knowledge base that is made")
    embed_model: str | None = Field(default=None, description="embedding model of one that is made")
    file_description: str = Field(default="", max_length=10_000, description="kept with the summary")
    model_name: str | None = Field(default=None, description="a configured model; default: the first one")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 = always the likeliest word")
    max_tokens: int | None = Field(default=None, description="longest summary; 0 or less = as configured")


class SummarizeFile(SummaryFields):
    """A file to summarise."""

    file_name: str = Field(description="a name as list_files shows it")


class SummarizeKB(SummaryFields):
    """A knowledge base whose files are to be summarised."""


class SummarizeChunks(SummaryFields):
    """Chunks to summarise together."""

    doc_ids: list[str] = Field(default_factory=list, max_length=10_000, description="ids of chunks")
