"""Answers questions: finds passages, lets a model or the quoting answerer write, checks what is cited.

An answer is a stream of parts (`server.chat.parts`): `Begun` with the sources, `Said` and `Thought` as they come,
`Done` at the end. Errors are raised; what shape all this has for a client is the routes' business.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from configs import Settings
from configs.settings import EXTRACTIVE
from server.chat import extractive, followup
from server.chat.citations import Checked, MarkFilter, check
from server.chat.context import context_of, conversation, fenced, fit_sources
from server.chat.history import History
from server.chat.parts import Asked, Begun, Citation, Done, Part, Said, Step, Thought
from server.chat.support import Closeness
from server.domain import Found, Hit
from server.errors import EmbeddingError, InvalidRequest, LLMError
from server.graph.facts import within
from server.models.chat import ChatModel, Message, Piece, Usage
from server.models.chat_models import ChatModels
from server.prompts import Prompts
from server.retrieval.analysis import language
from server.tokens import estimate_tokens

log = logging.getLogger(__name__)

Tell = Callable[[Step], None]
Finder = Callable[[str, Tell], Awaitable[Found]]
"""Finds what a question is answered from: passages, and what a graph says beside them. It may tell how far it is."""

_MARGIN = 50
"""Tokens that estimates may be wrong by."""
_PROMPT_ROOM = 400
"""Tokens that a template and the names of its sources take."""
_FACTS_SHARE = 8
"""One part in so many of a prompt for what a graph says of entities, one for relations, and one for reports."""
_LONGEST_REWRITE = 500
_REWRITE_TOKENS, _REWRITE_HISTORY = 200, 1500


class ChatService:
    """Answers questions, from passages or from the model alone."""

    def __init__(
        self,
        settings: Settings,
        models: ChatModels,
        prompts: Prompts,
        history: History,
        closeness: Closeness | None = None,
    ) -> None:
        self.models = models
        self.prompts = prompts
        self.history = history
        self._settings = settings
        self._closeness = closeness  # calibrated, to hold claims against sources in another language

    def check(self, asked: Asked) -> None:
        """Refuse what cannot work before the stream begins.

        Raises:
            ConfigurationError: no such model; InvalidRequest: no such prompt, or the question is too long.
        """
        model = self.model_of(asked)
        if model is not None and estimate_tokens(asked.query) > _budget(model, asked):
            raise InvalidRequest(
                f"问题过长，超出模型 {model.name} 的上下文 / the question does not fit into the context of {model.name}"
            )
        code = language(asked.query)
        self.prompts.render(asked.kind, asked.prompt_name, code, input="", context="", question="", history="")

    def quotes(self, asked: Asked) -> bool:
        """Whether the answer will be quoted from passages, without a model."""
        return (asked.model_name or self.models.default) == EXTRACTIVE

    def model_of(self, asked: Asked) -> ChatModel | None:
        """The model that is to answer; None for the one that quotes."""
        name = asked.model_name or self.models.default
        return None if name == EXTRACTIVE else self.models.get(name)

    async def answer(
        self, asked: Asked, find: Finder | None = None, closeness: Closeness | None = None
    ) -> AsyncGenerator[Part]:
        """The parts of an answer; without `find` the model answers by itself.

        Raises:
            ZhikuError: the search or the model failed; what was said until then has been handed out.
        """
        model, message_id = self.model_of(asked), uuid.uuid4().hex
        earlier = asked.history or await self.history.turns(asked.conversation)
        await self.history.begin(message_id, asked)
        said: list[str] = []
        done: Done | None = None
        try:
            question = await self._standalone(asked, earlier, model) if find else asked.query
            found = Found([])
            if find is not None:
                async with aclosing(_steps(find, question)) as steps:
                    async for step in steps:
                        if isinstance(step, Step):
                            yield step
                        else:
                            found = self._fitting(asked, model, step)
            sources = found.hits
            yield Begun(message_id, question, sources)
            written = self._written(asked, model, earlier, found, closeness, grounded=find is not None)
            async with aclosing(written) as parts:
                async for part in parts:
                    if isinstance(part, Said):
                        said.append(part.text)
                    done = part if isinstance(part, Done) else None
                    if done is None:
                        yield part
            if done is not None:
                done = await self._with_citations(asked, done, sources)
                await asyncio.wrap_future(self.history.end(message_id, asked, done.text, done))
                yield done
        finally:
            if done is None:  # it failed, or the client left; what was said is kept without holding up the end
                self.history.end(message_id, asked, "".join(said))

    # ---- the question

    async def _standalone(self, asked: Asked, earlier: Sequence[Message], model: ChatModel | None) -> str:
        """The question as it is searched for: follow-ups say in full what they are about."""
        if not any(turn.role == "user" for turn in earlier):
            return asked.query
        by_rule = followup.standalone(asked.query, earlier)
        if model is None or not self._settings.rewrite_questions:
            return by_rule
        code = language(asked.query)
        turns = conversation(earlier, "", _REWRITE_HISTORY)[:-1]
        shown = fenced("\n".join(f"{turn.role}: {turn.content}" for turn in turns if turn.role != "system"))
        prompt = self.prompts.render("rewrite", "default", code, history=shown, question=asked.query)
        try:
            written = await model.complete([Message("user", prompt)], max_tokens=_REWRITE_TOKENS)
        except LLMError as error:
            log.warning("searching by rule, the model could not rewrite the question: %s", error.message)
            return by_rule
        rewritten = written.strip().strip("\"'“”「」")
        return rewritten if 0 < len(rewritten) <= _LONGEST_REWRITE and "\n" not in rewritten else by_rule

    def _fitting(self, asked: Asked, model: ChatModel | None, found: Found) -> Found:
        """What fits into the model's prompt; what a graph says gets a share of it at most."""
        if model is None:
            return found
        room = _budget(model, asked) - estimate_tokens(asked.query) - _PROMPT_ROOM
        facts = [
            fact
            for kind in dict.fromkeys(fact.kind for fact in found.facts)
            for fact in within((one for one in found.facts if one.kind == kind), room // _FACTS_SHARE)
        ]
        hits = fit_sources(found.hits, room - sum(estimate_tokens(fact.text) for fact in facts))
        return replace(found, hits=hits, facts=tuple(facts))

    # ---- the text

    async def _written(
        self,
        asked: Asked,
        model: ChatModel | None,
        earlier: Sequence[Message],
        found: Found,
        closeness: Closeness | None,
        *,
        grounded: bool,
    ) -> AsyncGenerator[Part]:
        """The answer's text, from the model or, when there is none, from the passages."""
        if model is not None:
            begun = False
            try:
                async with aclosing(self._generated(asked, model, earlier, found, grounded=grounded)) as parts:
                    async for part in parts:
                        begun = True
                        yield part
                return
            except LLMError as error:
                if begun or not (grounded and self._settings.extractive_fallback):
                    raise
                log.warning("answering by quotation, the model failed: %s", error.message)
        pieces = [extractive.no_model(asked.query)]
        if grounded:
            pieces = await asyncio.to_thread(self._quoted, asked, found.hits, closeness)
        for piece in pieces:
            yield Said(piece)
        yield Done("".join(pieces))

    def _quoted(self, asked: Asked, sources: Sequence[Hit], closeness: Closeness | None) -> list[str]:
        return list(extractive.answer(asked.query, sources, closeness=closeness))

    async def _generated(
        self, asked: Asked, model: ChatModel, earlier: Sequence[Message], found: Found, *, grounded: bool
    ) -> AsyncGenerator[Part]:
        turns = conversation(earlier, self._prompt(asked, found, grounded=grounded), _budget(model, asked))
        temperature = self._settings.temperature if asked.temperature is None else asked.temperature
        marks = MarkFilter(len(found.hits)) if found.hits else None
        said, thinking, usage, cut = "", "", None, False
        limit = _longest_answer(model, asked, turns)
        async with aclosing(model.stream(turns, temperature, limit, asked.options)) as pieces:
            async for piece in _with_end(pieces):
                text = piece.text if piece is not None else ""
                if marks is not None:
                    text = marks.feed(text) if piece is not None else marks.finish()
                if text:
                    said += text
                    yield Said(text)
                if piece is not None:
                    usage, cut = piece.usage or usage, cut or piece.cut
                    if piece.thinking:
                        thinking += piece.thinking
                        yield Thought(piece.thinking)
        counted = usage or Usage(sum(estimate_tokens(turn.content) for turn in turns), estimate_tokens(said + thinking))
        yield Done(said, thinking, usage=counted, model=model.name, cut=cut)

    def _prompt(self, asked: Asked, found: Found, *, grounded: bool) -> str:
        code = language(asked.query)
        if not grounded:
            return self.prompts.render(
                asked.kind, asked.prompt_name, code, input=asked.query, question=asked.query, context="", history=""
            )
        name, context = asked.prompt_name if found.hits else "empty", context_of(found.hits, found.facts)
        return self.prompts.render(
            asked.kind, name, code, question=asked.query, input=asked.query, context=context, history=""
        )

    # ---- its citations

    async def _with_citations(self, asked: Asked, done: Done, sources: Sequence[Hit]) -> Done:
        if not (sources and asked.cited):
            return done
        try:
            checked = await asyncio.to_thread(self._checked, done.text, sources, self._closeness)
        except EmbeddingError as error:  # the answer is there: claims in another language stay unverified
            log.warning("citations are checked by words alone, the embedding model failed: %s", error.message)
            checked = await asyncio.to_thread(self._checked, done.text, sources, None)
        return replace(done, citations=[citation_of(one, sources[one.number - 1]) for one in checked])

    def _checked(self, text: str, sources: Sequence[Hit], closeness: Closeness | None) -> list[Checked]:
        contexts = [" ".join([source.file_name, *source.headings]) for source in sources]
        return check(text, [source.text for source in sources], contexts=contexts, closeness=closeness)


async def _steps(find: Finder, question: str) -> AsyncGenerator[Step | Found]:
    """What a search tells of its steps, and at last what it has found."""
    told: asyncio.Queue[Step | None] = asyncio.Queue()
    search = asyncio.ensure_future(find(question, told.put_nowait))
    search.add_done_callback(lambda _: told.put_nowait(None))
    try:
        while (step := await told.get()) is not None:
            yield step
        yield await search
    finally:
        search.cancel()


def citation_of(checked: Checked, source: Hit) -> Citation:
    """A checked claim with its place in the canonical text of the source's file."""
    verdict = checked.verdict
    offset = source.start
    return Citation(
        number=checked.number,
        claim=checked.claim.text,
        source=source,
        start=None if offset is None else offset + verdict.start,
        end=None if offset is None else offset + verdict.end,
        quote=source.text[verdict.start : verdict.end],
        verified=verdict.verified,
        support=round(verdict.support, 4),
    )


def _budget(model: ChatModel, asked: Asked) -> int:
    """Tokens that a prompt may take; an answer is never promised more than half of the context."""
    size = model.settings.context_size
    return size - min(asked.max_tokens or model.settings.max_output_tokens, size // 2) - _MARGIN


def _longest_answer(model: ChatModel, asked: Asked, turns: Sequence[Message]) -> int | None:
    """The answer's length that the model is asked for; None = as configured, and then being cut is an error."""
    if asked.max_tokens is None:
        return model.settings.max_output_tokens if asked.may_be_cut else None
    used = sum(estimate_tokens(turn.content) for turn in turns)
    return max(1, min(asked.max_tokens, model.settings.context_size - used - _MARGIN))


async def _with_end(pieces: AsyncGenerator[Piece]) -> AsyncGenerator[Piece | None]:
    """The pieces, and None after the last one."""
    async for piece in pieces:
        yield piece
    yield None
