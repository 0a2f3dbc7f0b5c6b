"""Words of Chinese and English that say the opposite of each other."""

from __future__ import annotations

from functools import cache

from server.retrieval.analysis import terms

_OPPOSITES = (
    "increase decrease|increased decreased|rise fall|rose fell|grew shrank|gain lose|gained lost|win lose|won lost|"
    "before after|first last|most least|more less|highest lowest|largest smallest|higher lower|larger smaller|"
    "north south|east west|left right|maximum minimum|accept reject|allow forbid|enable disable|support oppose|"
    "success failure|begin end|open close|true false|"
    "增加 减少|上升 下降|提高 降低|增长 下降|支持 反对|允许 禁止|成功 失败|之前 之后|以前 以后|最大 最小|最高 最低|"
    "最多 最少|大于 小于|高于 低于|多于 少于|北部 南部|东部 西部|北 南|东 西|左 右|启用 禁用|打开 关闭|开始 结束|"
    "胜利 失败|同意 拒绝|至少 至多"
)


def says_opposite(claim: str, text: str) -> bool:
    """Whether one word of the claim is the opposite of one in the other text."""
    said, held = set(terms(claim)), set(terms(text))
    return any(_opposites().get(term, "") in held - said for term in said - held)


@cache
def _opposites() -> dict[str, str]:
    pairs = [[terms(word)[0] for word in pair.split()] for pair in _OPPOSITES.split("|")]
    return {one: other for pair in pairs for one, other in (pair, pair[::-1])}
