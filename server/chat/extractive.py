"""Answers without a language model: the sentences that fit the question best, quoted with their source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from server.domain import Hit

NOTICE = {
    "zh": "（未使用语言模型：以下是从知识库中摘录的原文。）",
    "en": "(No language model wrote this: these are quotations from the knowledge base.)",
}
NOTHING = {
    "zh": "知识库中没有找到与问题相关的内容。（未使用语言模型。）",
    "en": "The knowledge base holds nothing that fits this question. (No language model wrote this.)",
}
NO_MODEL = {
    "zh": "没有配置语言模型，无法自由对话。请在 configs/model.yaml 的 llm_models 中添加模型，"
    "或使用 /chat/knowledge_base_chat 从知识库中摘录答案。",
    "en": "No language model is configured, so there is nobody to chat with. Add one to llm_models in "
    "configs/model.yaml, or ask /chat/knowledge_base_chat, which quotes answers from the knowledge base.",
}


def answer(question: str, hits: Sequence[Hit]) -> Iterator[str]:
    """The answer in pieces, as a model would stream it."""
    raise NotImplementedError
